"""The sizes that static passes come in."""

from __future__ import annotations

NODE_BUCKETS = (1, 9, 17, 33, 65, 129)
"""Columns of a pass, root included. A pass reads all weights whatever its columns, up to about 180 columns on a GPU."""

MIN_SLOTS = 512
"""Key slots that the smallest program attends to; larger ones see this times a power of two."""

LOOK_AHEAD = 512
"""Slots beyond those in use that a pass attends to when their number grows: it seldom does."""

MAX_GRAPHS = 12
"""Captured programs that are alive at once; the one that was not used for longest makes room."""

WARM_PASSES = 2
"""Passes of one shape before it is captured: many shapes are seen once."""

EXACT_NODES = 33
"""Columns of every pass in exact mode, plain ones too."""


def row_bucket(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def node_bucket(columns: int) -> int:
    """The smallest number of columns that holds so many."""
    most = NODE_BUCKETS[-1]
    beyond = -(-(columns - 1) // (most - 1)) * (most - 1) + 1
    return next((bucket for bucket in NODE_BUCKETS if columns <= bucket), beyond)


def slot_bucket(slots: int) -> int:
    """MIN_SLOTS times a power of two, at least `slots`."""
    bucket = MIN_SLOTS
    while bucket < slots:
        bucket *= 2
    return bucket
