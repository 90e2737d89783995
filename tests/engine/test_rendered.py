"""Prompts that have already been through a chat template or a tokenizer."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, GenerationConfig

import copyspec
from tests.helpers.texts import FRAME_TEMPLATE, bart, byte_level, llama, new_engine

CHAT = [{"role": "user", "content": "the cat sat on the mat"}]


@pytest.fixture(scope="module")
def tiny() -> copyspec.Engine:
    return new_engine()


def test_a_rendered_prompt_is_what_the_chat_is(tiny: copyspec.Engine, caplog: pytest.LogCaptureFixture) -> None:
    text = tiny.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    as_chat = tiny.generate(CHAT, max_new_tokens=8)
    with caplog.at_level(logging.WARNING, "copyspec"):
        assert tiny.generate(text, rendered=True, max_new_tokens=8).token_ids == as_chat.token_ids
        assert not caplog.records
        plain = tiny.generate(text, max_new_tokens=8)
        tiny.generate([text, text], max_new_tokens=2)
    assert plain.prompt_tokens > as_chat.prompt_tokens
    (record,) = caplog.records
    assert "a control token of the tokenizer, and is read as plain text: rendered=True" in record.getMessage()


def test_the_text_to_be_edited_may_write_about_control_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """A file about chat templates is no prompt that one made."""
    engine = new_engine()
    token = engine.tokenizer.eos_token
    text = f"The model end a turn with {token}."
    with caplog.at_level(logging.WARNING, "copyspec"):
        engine.generate(f"Correct: {text}", edit_source=text, max_new_tokens=2)
        assert not caplog.records
        engine.generate(f"Correct: {text}", edit_source="The cat.", max_new_tokens=2)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("options", [{"chat": True}, {"system": "Be kind."}])
def test_rendered_goes_with_no_chat(tiny: copyspec.Engine, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rendered=True says that the prompt went through a chat template"):
        tiny.generate("a", rendered=True, **options)
    with pytest.raises(ValueError, match="prompt 0 is a chat, but rendered=True"):
        tiny.generate(CHAT, rendered=True)
    with pytest.raises(TypeError, match="rendered must be True, False or 'auto'; got str: 'yes'"):
        tiny.generate("a", rendered="yes")  # type: ignore[call-overload]


WRITTEN = ["</s>", "a</s>", "<s>a", "<s><s>a", "<s>a</s>", "</s></s>a b", "a <s> b </s> c", "é<s>", "x" * 50 + "</s>\n"]


@pytest.mark.parametrize("around", ["$A", "<s> $A", "$A </s>", "<s> $A </s>"])
def test_control_tokens_of_any_text_are_read_as_the_tokenizer_reads_them(around: str) -> None:
    """As vLLM reads them, but without a second token at the beginning or end."""
    tokenizer = deepcopy(byte_level())
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=around, special_tokens=special)
    engine = copyspec.Engine(llama(len(tokenizer)), tokenizer)
    for text in [*WRITTEN, "plain", "a < b | c"]:
        begin = "<s>" * (around.startswith("<s>") and not text.startswith("<s>"))
        end = "</s>" * (around.endswith("</s>") and not text.endswith("</s>"))
        wanted = tokenizer(begin + text + end, add_special_tokens=False)["input_ids"]
        encoded = engine.codec.encode_parsed(text)
        assert (encoded is None) == (text in ("plain", "a < b | c"))
        result = engine.generate(text, rendered="auto", max_new_tokens=4)
        assert result.token_ids == engine.generate(wanted, max_new_tokens=4).token_ids
        assert result.prompt_tokens == len(wanted)
        if encoded is not None and encoded.offsets is not None:
            assert len(encoded.offsets()) == len(encoded.ids)
    as_chat = [engine.generate(CHAT, rendered=rendered, max_new_tokens=4).token_ids for rendered in (False, "auto")]
    assert as_chat[0] == as_chat[1]


def test_a_tokenizer_that_writes_the_template_adds_none_to_what_begins_with_a_control_token() -> None:
    tokenizer = byte_level(template=FRAME_TEMPLATE, wraps=True)
    engine = copyspec.Engine(llama(len(tokenizer)), tokenizer, name="framing")
    shown = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert engine.generate(shown, rendered="auto", max_new_tokens=4).prompt_tokens == len(ids)
    text = "write about </s> and <s>"
    as_text, result = (engine.generate(text, rendered=rendered, max_new_tokens=4) for rendered in (False, "auto"))
    assert result.token_ids == as_text.token_ids and result.prompt_tokens == as_text.prompt_tokens


def test_encodings_are_prompts_without_their_padding(tiny: copyspec.Engine) -> None:
    texts = ["the cat sat", "the sea and the school and the sea"]
    wanted = [tiny.generate(text, max_new_tokens=8) for text in texts]
    one = tiny.tokenizer(texts[0])
    assert tiny.generate(one, max_new_tokens=8).token_ids == wanted[0].token_ids
    for side in ("left", "right"):
        both = tiny.tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
        for encoding in (both, dict(both), BatchEncoding({name: value.tolist() for name, value in both.items()})):
            results = tiny.generate(encoding, max_new_tokens=8)  # type: ignore[call-overload]
            assert [result.token_ids for result in results] == [result.token_ids for result in wanted]
            assert [result.prompt_tokens for result in results] == [result.prompt_tokens for result in wanted]
    mixed = tiny.generate([texts[0], {"input_ids": both["input_ids"][1][:7]}], max_new_tokens=2)  # type: ignore[call-overload]
    assert mixed[1].prompt_tokens == 7


def test_encodings_of_more_than_text_are_refused(tiny: copyspec.Engine) -> None:
    ids = tiny.tokenizer("the cat sat")["input_ids"]
    zeros = [0] * len(ids)
    known = {"token_type_ids": zeros, "mm_token_type_ids": torch.tensor(zeros), "offset_mapping": [(0, 1)] * len(ids)}
    wanted = tiny.generate(ids, max_new_tokens=4)
    result = tiny.generate({"input_ids": ids, "pixel_values": None, **known}, max_new_tokens=4)  # type: ignore[call-overload]
    assert result.token_ids == wanted.token_ids
    for name, value in (
        ("pixel_values", torch.zeros(1, 3, 2, 2)),
        ("input_features", [[0.5]]),
        ("token_type_ids", [[1] * len(ids)]),
        ("mm_token_type_ids", torch.ones(1, len(ids))),
    ):
        encoding = {"input_ids": torch.tensor([ids]), name: value}
        for prompt in (encoding, ["the cat", encoding]):
            with pytest.raises(TypeError, match=f"is an encoding with {name} "):
                tiny.generate(prompt, max_new_tokens=2)  # type: ignore[call-overload]


def test_padding_without_a_mask_is_what_generate_takes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(len(byte_level()))
    monkeypatch.setattr(model, "generation_config", GenerationConfig(bos_token_id=0, pad_token_id=2))
    engine: Any = copyspec.Engine(model, byte_level())
    rows = torch.tensor([[2, 2, 40, 41, 42], [50, 51, 52, 53, 54]])
    expected = model.generate(rows, max_new_tokens=8)[:, 5:].tolist()
    for padded in (rows, rows.numpy(), {"input_ids": rows}, [{"input_ids": row} for row in rows]):
        results = engine.generate(padded, max_new_tokens=8)
        assert [list(result.token_ids) for result in results] == expected
        assert [result.prompt_tokens for result in results] == [3, 5]
    shown = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    for padded, config in ((rows.tolist(), {}), (shown, {}), (rows, {"eos_token_id": [1, 2]})):
        results = engine.generate(padded, generation_config=config, max_new_tokens=1)
        assert [result.prompt_tokens for result in results] == [5, 5]
    for ids, place in (([40, 2, 41], "between others"), ([2, 2], "alone")):
        with pytest.raises(ValueError, match=f"prompt 0 holds the padding token 2 {place}, and generate would hide it"):
            engine.generate(torch.tensor([ids]))


def test_an_encoder_reads_padding_without_a_mask_as_in_generate() -> None:
    model, ids = bart(len(byte_level())), torch.tensor([[40, 41, 42, 0, 0]])
    assert model.generation_config is not None and model.generation_config.pad_token_id == 0
    expected = model.generate(ids, max_new_tokens=8)[0, 1:].tolist()
    engine: Any = copyspec.Engine(model, byte_level())
    for sequence in (ids, {"input_ids": ids}):
        (result,) = engine.generate(sequence, max_new_tokens=8)
        assert result.prompt_tokens == 5 and list(result.token_ids) == expected


def test_masks_that_hide_more_than_padding(tiny: copyspec.Engine) -> None:
    ids = torch.tensor([[5, 6, 7]])
    with pytest.raises(ValueError, match="attention_mask masks tokens between others"):
        tiny.generate({"input_ids": ids, "attention_mask": torch.tensor([[1, 0, 1]])})
    with pytest.raises(ValueError, match="input_ids and attention_mask differ in shape"):
        tiny.generate({"input_ids": ids, "attention_mask": torch.ones(1, 2)})
    with pytest.raises(ValueError, match="attention_mask has another number of them"):
        tiny.generate({"input_ids": ids, "attention_mask": torch.ones(2, 3)})
