"""Sizes of static passes."""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache

SIZES = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens of a pass, padding included. Steps are small where a GPU begins to be bound by arithmetic instead of by
reading the weights, at about 180 tokens on an H200. Wider passes are multiples of the last one."""

SCORED = 64
"""Scores of a pass that mostly reads prompts: it is wider than twice this, and computes scores for so many tokens."""

PREFILL_TOKENS = SIZES[-1]
"""Tokens of a pass that reads prompts, the prefill chunk: rows that are decoded meanwhile wait for no more."""

PAGE = 64
"""Slots of a page, the unit in which rows hold keys and values."""

MIN_SLOTS = 512
"""Slots of the smallest pool; larger pools have this times a power of two."""

MAX_RESERVED = 2048
"""Maximum new tokens per row for which slots are reserved; the pool grows for longer outputs."""

MAX_MOVES = 128
"""Accepted nodes that a pass moves into place; more are moved before it."""

SPLIT = 256
"""Slots of a row that one program attends to at least: on an H200, half of that took 1.6 times as long at 8,000 slots,
since twice as many partial results are written and read."""

QUERIES = 32
"""Queries of a program of attention: the tokens of a tile times the heads that share a key head."""

WARM_PASSES = 2
"""Passes of a size, this one included, from which on it is captured."""

RARE = 16
"""Passes of a size that run in a larger one that is captured, before it is captured itself. After these a capture, some
tens of milliseconds, pays."""

MAX_PADDED = 128
"""Tokens of such a larger size, at most, or twice those that are asked for: a model of 7 B parameters takes a fifth
longer for so many than for one."""

RETRY_PASSES = 256
"""Passes of a size after which a capture that found no memory is tried again. Each try empties torch's cache of free
memory, so that the next passes take longer."""

EXACT_TOKENS = 64
"""Tokens of every pass in exact mode that gives scores, plain ones included."""

EXACT_SPLIT = 1024
"""`SPLIT` in exact mode, where it is the same for all passes."""


@lru_cache  # asked for many sizes in each pass
def size_of(tokens: int) -> int:
    """The smallest size of pass for so many tokens."""
    if tokens <= SIZES[-1]:
        return SIZES[bisect_left(SIZES, tokens)]
    return -(-tokens // SIZES[-1]) * SIZES[-1]


def slot_bucket(slots: int) -> int:
    """The smallest pool with at least `slots` slots: MIN_SLOTS times a power of two."""
    bucket = MIN_SLOTS
    while bucket < slots:
        bucket *= 2
    return bucket
