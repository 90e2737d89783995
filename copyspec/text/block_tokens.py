"""The tokens of a prompt's blocks, as an output has them that starts with them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from copyspec.sources import FORK
from copyspec.text.blocks import Block

PARAGRAPH = 100
"""Characters of a line from which it is a paragraph if it ends like a sentence: lines of code and verse are shorter."""

END_TOKENS = 4  # of a paragraph that its last ones are encoded with

_ENDS = re.compile(r"[.!?][\"')\]”’]*[ \t]*(\n\s*)(?=[\"'“(]?[^\W\d_a-z])")
_BREAKS = (":", ":\n", ":\n\n", "\n", "\n\n", ">", ">\n", "```\n", '"', "“", "'", "‘", "«", "„", "`", "**", "> ", "- ")

Encode = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]
"""The token ids of a text and the characters of each."""


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """The tokens of a block."""

    ids: list[int]  # FORK in front of what follows a paragraph's end
    starts: list[tuple[int, int]]  # where an edited text may start: (token, bucket)
    ends: list[list[int]]  # by FORK, what the output may end with there instead


def encode_block(text: str, block: Block, encode: Encode) -> EncodedBlock:
    """The tokens that `block` of `text` has in an output, which may leave it behind any paragraph.

    Many tokenizers join a paragraph's last mark with the line breaks behind it: where the output goes on with
    something else, that token is another one.
    """
    own = text[block.start : block.stop]
    tokens, places = encode(own)
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    ends: list[list[int]] = []
    done = 0
    for stop in _paragraph_ends(own) if places else ():
        at = bisect_right(places, stop, key=itemgetter(1))  # the token that holds the line break
        back = max(done, at - END_TOKENS)
        ending = list(encode(own[places[back][0] : stop])[0]) if back < at < len(tokens) else []
        same = 0
        while back + same < at and same < len(ending) and ending[same] == tokens[back + same]:
            same += 1
        if back + same < at:
            continue  # cut otherwise from here on: nothing is known of its end
        ids += [*tokens[done:at], FORK]
        offsets += [*places[done:at], (stop, stop)]
        ends.append(ending[same:])
        done = at
    ids += tokens[done:]
    offsets += places[done:]
    starts = [(start - block.start, bucket) for start, bucket in block.starts]
    return EncodedBlock(ids, token_starts(starts, offsets), ends)


def break_tokens(encode: Callable[[str], Sequence[int]]) -> frozenset[int]:
    """Tokens that labels, openings and lines end with: what is said first may be over behind them."""
    found = [encode(before + mark) for mark in _BREAKS for before in ("", "a", "a ")]
    return frozenset(ids[-1] for ids in found if ids)


def _paragraph_ends(text: str) -> Iterator[int]:
    for match in _ENDS.finditer(text):
        if match.start(1) - (text.rfind("\n", 0, match.start(1)) + 1) >= PARAGRAPH:
            yield match.start(1)


def token_starts(starts: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The tokens that hold the characters, each once, with their buckets."""
    found: dict[int, int] = {}
    at = 0
    for start, bucket in starts:
        while at < len(offsets) and offsets[at][1] <= start:
            at += 1
        if at < len(offsets):
            found[at] = max(bucket, found.get(at, 0))
    return list(found.items())
