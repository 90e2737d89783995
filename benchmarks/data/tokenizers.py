"""Makes `tokenizer.json` files from the vocabularies that tiktoken reads: base64 of each token's bytes and its rank."""

from __future__ import annotations

import base64
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2_SPECIAL = ["<|endoftext|>"]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(2, 246)),
]


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the rank of each token."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line.strip())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def gpt2(path: Path) -> Tokenizer:
    return _tokenizer(read_ranks(path), None, GPT2_SPECIAL)


def llama3(path: Path) -> Tokenizer:
    return _tokenizer(read_ranks(path), WORDS % "{1,3}", LLAMA3_SPECIAL, ignore_merges=True)


def qwen(path: Path) -> Tokenizer:
    tokenizer = _tokenizer(read_ranks(path), WORDS % "", QWEN_SPECIAL)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def given(path: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, without truncation."""
    tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _tokenizer(
    ranks: dict[bytes, int], words: str | None, special: list[str], *, ignore_merges: bool = False
) -> Tokenizer:
    """A byte-level BPE of these ranks; `words` cuts texts into words, by default as GPT-2 does."""
    letters = _letters()
    text = {token: "".join(letters[byte] for byte in token) for token in ranks}
    # A pair is merged if it is a token: in the order of ranks, at every place where the token can be cut.
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        cuts = [(token[:n], token[n:]) for n in range(1, len(token))]
        pairs = [(one, other) for one, other in cuts if one in ranks and other in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    model = models.BPE(
        {text[token]: rank for token, rank in ranks.items()},
        [(text[one], text[other]) for one, other in merges],
        ignore_merges=ignore_merges,
    )
    tokenizer = Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    tokenizer.pre_tokenizer = (
        byte_level
        if words is None
        else pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), byte_level])
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    return tokenizer


def _letters() -> list[str]:
    """Return the letter that stands for each byte in a byte-level vocabulary: itself where it is printable."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
