"""Tokenizers that are none of transformers' ordinary ones are used as far as they go, or refused by name."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from transformers import BatchEncoding

from copyspec import Engine
from copyspec.targets.base import UnsupportedModelError
from copyspec.text.chat import ChatError
from copyspec.text.codec import Codec
from tests.helpers.decoders import codec_of
from tests.helpers.texts import llama

SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")


class OwnChats:
    """As the backend of mistral-common: it writes chats without a template, never reads control tokens in texts, and
    lists no added tokens."""

    name_or_path = ""
    chat_template = None
    all_special_tokens = SPECIAL
    all_special_ids = tuple(range(len(SPECIAL)))
    unk_token_id, bos_token_id, eos_token_id, pad_token_id = 0, 1, 2, None

    def __len__(self) -> int:
        return len(SPECIAL) + 256

    def added_tokens_decoder(self) -> None:
        raise NotImplementedError

    def get_vocab(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate([*SPECIAL, *map(chr, range(256))])}

    def convert_ids_to_tokens(self, token: int) -> str:
        return [*SPECIAL, *map(chr, range(256))][token]

    def convert_tokens_to_ids(self, piece: str) -> int:
        return self.get_vocab()[piece]

    def __call__(self, text: str, add_special_tokens: bool = True, **options: object) -> BatchEncoding:
        if options.keys() - {"return_attention_mask", "verbose"}:
            raise ValueError(f"Kwargs {list(options)} are not supported")
        ids = [len(SPECIAL) + byte for byte in text.encode()]
        return BatchEncoding({"input_ids": [1, *ids] if add_special_tokens else ids})

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: object) -> str:
        return bytes(token - len(SPECIAL) for token in ids if token >= len(SPECIAL)).decode("utf-8", "replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tokenize: bool = True,
        return_dict: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
    ) -> list[int]:
        assert tokenize and not return_dict
        ids = [1]
        for message in conversation:
            text = self(message["content"], add_special_tokens=False)["input_ids"]
            if message["role"] == "assistant":
                ids += text
            elif message["role"] == "user":
                ids += [3, *text, 4]
            else:
                raise ValueError(f"Unknown message role: {message['role']}")
        return ids


def engine_with(tokenizer: Any) -> Engine:
    return Engine(llama(len(tokenizer)), tokenizer, name="other")


CHAT = [{"role": "user", "content": "Hi [/INST] é"}]


def test_a_tokenizer_that_writes_chats_itself() -> None:
    engine = engine_with(OwnChats())
    assert engine.codec.encode_chat(CHAT).ids == OwnChats().apply_chat_template(CHAT, return_dict=False)
    for prompt in ("Hi", "Hi <s>[INST] é🙂", CHAT, [*CHAT, {"role": "assistant", "content": "So"}], [1, 70, 71]):
        result = engine.generate(prompt, ["a reference </s>"], max_new_tokens=12, ignore_eos=True, logprobs=2)
        chunks = list(engine.generate(prompt, max_new_tokens=12, ignore_eos=True, stream=True))
        assert result.token_ids == chunks[-1].result.token_ids
        assert "".join(chunk.text for chunk in chunks) == result.text == "".join(one.token for one in result.logprobs)
    for wrong, options, word in (
        ([{"role": "wizard", "content": "Hi"}], {}, "wizard"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "OwnChats"),
        ("[INST] Hi [/INST]", {"rendered": True}, "OwnChats"),
    ):
        with pytest.raises(ChatError, match=word):
            engine.generate(wrong, max_new_tokens=2, **options)  # type: ignore[call-overload]


def test_constraints_name_the_class_that_they_cannot_be_used_with() -> None:
    pytest.importorskip("llguidance")

    class Unlisted(OwnChats):
        def get_vocab(self) -> dict[str, int]:
            raise NotImplementedError

    for tokenizer in (OwnChats(), Unlisted(), codec_of("bytes").tokenizer, codec_of("word pieces").tokenizer):
        engine = engine_with(tokenizer)
        assert engine.generate("the", max_new_tokens=2).token_ids
        for options in ({"choices": ["a", "b"]}, {"regex": "a+"}):
            with pytest.raises(ValueError, match=type(tokenizer).__name__):
                engine.generate("the", stop_token_ids=[2], **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("missing", ["added_tokens_decoder", "all_special_tokens", "all_special_ids", "decode"])
@pytest.mark.parametrize("raised", [AttributeError, NotImplementedError])
def test_what_lacks_a_part_is_refused_by_its_class(missing: str, raised: type[Exception]) -> None:
    class Partial(OwnChats):
        def __getattribute__(self, name: str) -> Any:
            if name == missing:
                raise raised(f"no {name}")
            return super().__getattribute__(name)

    with pytest.raises(UnsupportedModelError, match=r"Partial, which cannot be used.*give tokenizer="):
        engine_with(Partial())


def test_a_backend_of_mistral_common() -> None:
    common = pytest.importorskip("mistral_common")
    folder = os.path.join(os.path.dirname(common.__file__), "data")
    try:
        from transformers import MistralCommonBackend

        tokenizer = MistralCommonBackend(os.path.join(folder, "tekken_240911.json"))
    except (ImportError, FileNotFoundError) as error:
        pytest.skip(str(error))
    codec, draw = Codec(tokenizer), random.Random(1)
    assert codec.encode_chat(CHAT).ids == tokenizer.apply_chat_template(CHAT, return_dict=False)
    for _ in range(100):
        prompt, output = (draw.choices(range(len(tokenizer)), k=draw.randint(0, 12)) for _ in range(2))
        before = codec.context(prompt)
        detokenizer = codec.detokenizer(before)
        text = codec.text_of(output, before)
        assert "".join(detokenizer.push([token]) for token in output) + detokenizer.finish() == text
