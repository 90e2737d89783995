"""Tokenizers of many kinds, by how they decode: `CODECS`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from transformers import ByT5Tokenizer, CTRLTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from copyspec.text.codec import Codec
from tests.helpers.texts import byte_fallback, byte_level, sentencepiece_like


def word_pieces() -> PreTrainedTokenizerFast:
    """Pieces that begin with "##" continue a word; all others begin one, after a space."""
    pieces = ["[UNK]", "[SEP]", "[PAD]", *"abcdehost.,", "the", "cat", "##s", "##er", "##é", "sat", "école", "."]
    tokenizer = Tokenizer(WordPiece({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]", bos_token="[SEP]"
    )


def visible_spaces(*, strips: bool) -> PreTrainedTokenizerFast:
    """A BPE tokenizer with byte fallback and visible spaces, and no space before the first word. `strips`: as that of
    Mistral, its decoder strips one space all the same; that of Gemma does not."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁", "▁▁▁▁", "\n"]
    pieces += [*"abcdehost", "▁a", "▁th", "th", "▁true", "true"]
    model = BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a"), ("t", "h"), ("▁", "th")], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )


def joined_pieces() -> CTRLTokenizer:
    """As that of CTRL: "hel@@" is joined with the next token."""
    vocabulary = ["hel@@", "lo", "the", "cat@@", "s", "<unk>", "é@@", "a"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
        Path(folder, "merges.txt").write_text("#version: 0.2\n")
        return CTRLTokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt")


class Stripping(PreTrainedTokenizer):
    """A tokenizer in Python that strips all spaces at both ends of what it decodes."""

    pieces = ("<unk>", "</s>", "▁", "▁the", "▁cat", "s", ".", "\n", "é")

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def get_vocab(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces)}

    def _tokenize(self, text: str, **_: object) -> list[str]:
        return [piece if piece in self.pieces else "<unk>" for piece in text.replace(" ", "▁")]

    def _convert_token_to_id(self, token: str) -> int:
        return self.pieces.index(token) if token in self.pieces else 0

    def _convert_id_to_token(self, index: int) -> str:
        return self.pieces[index]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace("▁", " ").strip(" ")


MAKERS: dict[str, Callable[[], PreTrainedTokenizerFast | PreTrainedTokenizer]] = {
    "byte-level": byte_level,
    "llama 2": byte_fallback,
    "mistral": lambda: visible_spaces(strips=True),
    "gemma": lambda: visible_spaces(strips=False),
    "t5": sentencepiece_like,
    "word pieces": word_pieces,
    "bytes": ByT5Tokenizer,
    "ctrl": joined_pieces,
    "stripping": lambda: Stripping(unk_token="<unk>", eos_token="</s>"),
}


@cache
def codec_of(kind: str) -> Codec:
    """The codec of one kind, made once."""
    return Codec(MAKERS[kind]())
