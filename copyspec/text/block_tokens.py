"""Tokens of a prompt's blocks (texts that may be edited), encoded as they appear at the start of an output."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from copyspec.common.sequences import common_prefix
from copyspec.sources import FORK
from copyspec.text.blocks import Block

PARAGRAPH = 100
"""Minimum characters of a line that counts as a paragraph if it ends like a sentence; lines of code and verse are
shorter."""

END_TOKENS = 4  # how many last tokens of a paragraph are encoded again at its end

_ENDS = re.compile(r"[.!?][\"')\]”’]*[ \t]*(\n\s*)(?=[\"'“(]?[^\W\d_a-z])")
_BREAKS = (":", ":\n", ":\n\n", "\n", "\n\n", ">", ">\n", "```\n", '"', "“", "'", "‘", "«", "„", "`", "**", "> ", "- ")

Encode = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""Returns the token ids of a text and the character range of each."""


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block as tokens."""

    ids: list[int]  # with FORK before the tokens that follow a paragraph's end
    starts: list[tuple[int, int]]  # (token, bucket) where an edited text may start
    ends: list[list[int]]  # for each FORK, the alternative tokens of an output that ends there
    asks: bool  # whether it ends with a question mark


def encode_block(text: str, block: Block, encode: Encode) -> EncodedBlock:
    """Encode `block` of `text` as it would appear in an output, which may leave the block after any paragraph.

    Many tokenizers merge a paragraph's last punctuation mark with the line breaks after it, so if the output continues
    differently, that token is a different one.
    """
    own = text[block.start : block.stop]
    tokens, places = encode(own)
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    ends: list[list[int]] = []
    done = 0
    for stop in _paragraph_ends(own) if places else ():
        at = bisect_right(places, stop, key=itemgetter(1))  # index of the token that holds the line break
        back = max(done, at - END_TOKENS)
        ending = list(encode(own[places[back][0] : stop])[0]) if back < at < len(tokens) else []
        same = common_prefix(ending, tokens[back:at])
        if back + same < at:
            continue  # the two encodings differ from here on, so the alternative ending is unknown
        ids += [*tokens[done:at], FORK]
        offsets += [*places[done:at], (stop, stop)]
        ends.append(ending[same:])
        done = at
    ids += tokens[done:]
    offsets += places[done:]
    starts = [(start - block.start, bucket) for start, bucket in block.starts]
    return EncodedBlock(ids, token_starts(starts, offsets), ends, own.endswith("?"))


def break_tokens(encode: Callable[[str], Sequence[int]]) -> frozenset[int]:
    """Tokens that end labels, openings and lines: after them an output's introduction may be over and a copy may
    begin."""
    found = [encode(before + mark) for mark in _BREAKS for before in ("", "a", "a ")]
    return frozenset(ids[-1] for ids in found if ids)


def _paragraph_ends(text: str) -> Iterator[int]:
    for match in _ENDS.finditer(text):
        if match.start(1) - (text.rfind("\n", 0, match.start(1)) + 1) >= PARAGRAPH:
            yield match.start(1)


def token_starts(starts: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Map character positions to the tokens that hold them, each token once with its highest bucket."""
    found: dict[int, int] = {}
    at = 0
    for start, bucket in starts:
        while at < len(offsets) and offsets[at][1] <= start:
            at += 1
        if at < len(offsets):
            found[at] = max(bucket, found.get(at, 0))
    return list(found.items())
