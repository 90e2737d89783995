"""Sizes of static passes."""

from __future__ import annotations

from functools import cache

NODE_BUCKETS = (1, 9, 17, 33, 65, 129)
"""Columns of a pass, root included. On a GPU, up to about 180 columns take as long as reading the weights once."""

MANY_ROWS, FEW_COLUMNS = 16, 5
"""From so many rows on, there is a size between 1 column and 9, which for 32 rows take half as long again as 1."""

MIN_SLOTS = 512
"""Key slots of the smallest program; larger programs have this times a power of two."""

LOOK_AHEAD = 512
"""Extra slots for new tokens, so that the size of a program seldom changes, and a row's first buffers seldom grow."""

MAX_GRAPHS = 64
"""Maximum number of captured programs of a set of buffers; the least recently used one is dropped."""

MAX_LOGITS = 1 << 31
"""Maximum bytes of the logits that these hold, which is what they do not share."""

MAX_READ = 2048
"""Tokens, padding included, of prompts that are read by a static pass. Longer ones keep a GPU busy in any pass."""

MAX_READ_TOGETHER = 2048
"""Tokens of longer prompts that a regular session reads in one pass. Up to half of that, a pass of a model of 7 B
parameters takes as long as the host needs to launch it."""

WARM_PASSES = 2
"""Passes of a size, this one included, from which on it is captured: many sizes occur only once."""

PADDED_TOKENS = 2048
"""Tokens of padding that passes of a size cost in larger ones. After these its own capture, some tens of milliseconds,
pays. Passes over few rows and columns are padded for hundreds of passes: a GPU hardly takes longer for them."""

PADDED_COLUMNS = (33, 129, 9)
"""Columns of the larger sizes, which have all rows of their buffers: few, so that they are captured soon."""

MAX_PADDED = 320
"""Rows times columns of these, at most. A model of 7 B parameters takes twice as long for them as for one."""

RETRY_PASSES = 256
"""Passes of a size after which a capture that found no memory is tried again. Each try empties torch's cache of free
memory, so that the next passes take longer."""

EXACT_NODES = 33
"""Columns of every pass in exact mode, plain ones included."""


def row_bucket(rows: int) -> int:
    """Round up to a power of two."""
    return 1 << (rows - 1).bit_length()


def node_bucket(columns: int, rows: int = 1) -> int:
    """The smallest bucket with at least this many columns, for a pass of so many rows."""
    if rows >= MANY_ROWS and 1 < columns <= FEW_COLUMNS:
        return FEW_COLUMNS
    most = NODE_BUCKETS[-1]
    beyond = -(-(columns - 1) // (most - 1)) * (most - 1) + 1
    return next((bucket for bucket in NODE_BUCKETS if columns <= bucket), beyond)


@cache
def padded_tokens(rows: int, nodes: int) -> int:
    """The tokens that a static pass of so many rows computes, whose largest tree has so many nodes."""
    rows = row_bucket(rows)
    return rows * node_bucket(1 + nodes, rows)


def slot_bucket(slots: int) -> int:
    """The smallest bucket with at least `slots` slots: MIN_SLOTS times a power of two."""
    bucket = MIN_SLOTS
    while bucket < slots:
        bucket *= 2
    return bucket
