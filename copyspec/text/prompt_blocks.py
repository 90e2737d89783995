"""Turns the blocks of a prompt (texts that its output may edit or repeat) into draft sources, if the caller named
none."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter

from copyspec.sources import FORK, Source
from copyspec.text.blocks import encode_block, find_blocks
from copyspec.text.codec import Codec, Lead

_BORDER = "<|border|>"
"""Replaces control tokens in the searched text, so that a block ends there."""

MAX_TOKENS = 8000  # last tokens of a prompt that are searched
_WIDTH = array("q").itemsize


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """A block as a source, in the tokens it has at the start of an output."""

    source: Source
    pieces: Sequence[tuple[int, int | None]]
    """Pieces of the block as (first token, shift): in a piece, token i of the block is token shift + i of the prompt;
    shift is None if the piece does not occur there."""

    def place(self, token: int) -> int | None:
        """Index in the prompt of the block's token number `token`, or None."""
        shift = self.pieces[bisect_right(self.pieces, token, key=itemgetter(0)) - 1][1]
        return None if shift is None else shift + token


def prompt_blocks(codec: Codec, prompt: Sequence[int]) -> list[PromptBlock]:
    """The most probable blocks of a prompt, for an output that directly follows it."""
    tail = prompt[-MAX_TOKENS:]
    text = "".join(
        _BORDER if is_control else codec.decode(list(tokens))
        for is_control, tokens in groupby(tail, codec.special_ids.__contains__)
    )
    encode = partial(_encode, codec, codec.lead(prompt, starts_text=False))
    own = array("q", prompt).tobytes()
    blocks = []
    for span in find_blocks(text):
        block = encode_block(text, span, encode)
        if block.ids:
            source = Source(block.ids, "block", block.starts, (span.start, span.stop), block.ends, block.asks)
            forks = [token for token, token_id in enumerate(block.ids) if token_id == FORK]
            borders = pairwise([-1, *forks, len(block.ids)])
            pieces = [(fork + 1, _shift(block.ids[fork + 1 : stop], own, fork + 1)) for fork, stop in borders]
            blocks.append(PromptBlock(source, pieces))
    return blocks


def _encode(codec: Codec, lead: Lead, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
    encoded = codec.encode_copy(text, lead)
    return encoded.ids, encoded.offsets() if encoded.offsets is not None else []


def _shift(ids: Sequence[int], prompt: bytes, start: int) -> int | None:
    """The last position of `ids` in the prompt, minus `start`. The first and last token are ignored, because they may
    be merged with their neighbours in the prompt."""
    cut = 1 if len(ids) > 2 else 0
    needle = array("q", ids[cut : len(ids) - cut]).tobytes()
    at = prompt.rfind(needle)
    while at >= 0 and at % _WIDTH:
        at = prompt.rfind(needle, 0, at + len(needle) - 1)
    return at // _WIDTH - cut - start if at >= cut * _WIDTH else None
