"""Texts in a prompt that its output may edit or repeat, as sources of drafts, when the caller named none."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from copyspec.sources import Source
from copyspec.text.blocks import find_blocks, token_starts
from copyspec.text.codec import Codec

_BORDER = "<|border|>"
"""In place of a control token: a block ends there."""

MOST_TOKENS = 8000  # of a prompt, the last ones, that are looked at
_WIDTH = array("q").itemsize


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """One such text, in the tokens that it has at the start of an output."""

    source: Source
    shift: int | None
    """Where in the prompt its tokens stand: token i of the block is token shift + i. None where no such place is."""


def prompt_blocks(codec: Codec, prompt: Sequence[int]) -> list[PromptBlock]:
    """The likeliest texts of a prompt whose output follows it."""
    tail = prompt[-MOST_TOKENS:]
    text = "".join(
        _BORDER if is_control else codec.decode(list(tokens))
        for is_control, tokens in groupby(tail, codec.special_ids.__contains__)
    )
    lead = codec.lead(prompt, starts_text=False)
    own = array("q", prompt).tobytes()
    blocks = []
    for block in find_blocks(text):
        encoded = codec.encode_copy(text[block.start : block.stop], lead)
        if not encoded.ids:
            continue
        offsets = encoded.offsets() if encoded.offsets is not None else []
        starts = token_starts([(start - block.start, bucket) for start, bucket in block.starts], offsets)
        source = Source(encoded.ids, "block", starts, (block.start, block.stop))
        blocks.append(PromptBlock(source, _shift(encoded.ids, own)))
    return blocks


def _shift(ids: Sequence[int], prompt: bytes) -> int | None:
    """The last place of `ids` in the prompt. Their ends may be joined to what stands around them there."""
    cut = 1 if len(ids) > 2 else 0
    needle = array("q", ids[cut : len(ids) - cut]).tobytes()
    at = prompt.rfind(needle)
    while at >= 0 and at % _WIDTH:
        at = prompt.rfind(needle, 0, at + len(needle) - 1)
    return at // _WIDTH - cut if at >= cut * _WIDTH else None
