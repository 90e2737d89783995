"""Writes fitted weights as the module `copyspec/drafters/copying/priors.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from copyspec.drafters.copying.corpus import COMMON_TOKENS, EDIT
from copyspec.drafters.copying.situations import (
    COMMON,
    CROWD_ROWS,
    EDIT_START,
    FAMILIES,
    FOLLOWED_RESUMED,
    GAPS,
    LATER_START,
    MISS,
    PROMPT_START,
    RESUMED,
    RESUMED_BY_KIND,
    STRIDE,
    VERSION,
)
from copyspec.text.blocks import BUCKETS

HEAD = '''"""Measured priors: the weight of a cursor in each situation, before anything is learned from the row.

Fitted by maximum likelihood of the next token along recorded outputs: written by `benchmarks.replay.fit`. The event
that no cursor is right has the weight "miss".
"""

from __future__ import annotations

from copyspec.drafters.copying.situations import COUNT, CROWD, CROWD_ROWS, FAMILIES, STRIDE

# fmt: off
# By family, then by column: match length, unless `situations` says otherwise. 0: does not occur.
_WEIGHTS: dict[str, tuple[float, ...]] = {
'''
MIDDLE = """}

# By kind of cursor and match length, then by how many cursors of the node have that length (a line each), then by how
# much shorter it is than the node's longest.
_CROWDS: dict[str, tuple[float, ...]] = {
"""
TAIL = """}
# fmt: on

PRIORS: list[float] = [float(weight) for name in FAMILIES for weight in (_WEIGHTS[name] + (0.0,) * STRIDE)[:STRIDE]]
CROWDS: list[float] = [factor for name in CROWD_ROWS for factor in _CROWDS[name]]
assert len(PRIORS) == COUNT and len(CROWDS) == CROWD
"""


def priors_module(weights: Sequence[float], crowds: Sequence[float]) -> str:
    """Return the source code of the module. `weights` are indexed by situation, `crowds` by cell of the crowd table."""
    lines = []
    for family, name in enumerate(FAMILIES):
        used = _columns(family)
        row = [f"{weights[family * STRIDE + column]:.3g}" if column in used else "0" for column in range(max(used) + 1)]
        lines += [f'    "{name}": (', *_wrap(row), "    ),"]
    text = HEAD + "\n".join(lines) + "\n" + MIDDLE
    size = len(crowds) // len(CROWD_ROWS)
    for number, name in enumerate(CROWD_ROWS):
        text += f'    "{name}": (\n'
        for start in range(number * size, (number + 1) * size, GAPS):
            text += "        " + ", ".join(f"{factor:.2f}" for factor in crowds[start : start + GAPS]) + ",\n"
        text += "    ),\n"
    return text + TAIL


def _columns(family: int) -> Sequence[int]:
    """Return the columns of a family that can occur."""
    if VERSION <= family < EDIT_START:
        return range(STRIDE)
    if family < EDIT_START:
        return range(1, STRIDE)
    if family == COMMON:
        return range((COMMON_TOKENS + 1) // 2)
    if family == MISS:
        return range(2)
    if family == EDIT_START:
        return range(6)  # two for an encoder's input, two after a paragraph break, one after a label
    if family in (LATER_START, RESUMED_BY_KIND[EDIT], FOLLOWED_RESUMED):
        return range(STRIDE)
    if family == PROMPT_START:
        return range(BUCKETS)
    return range(1, RESUMED) if "resumed" in FAMILIES[family] else range(1)


def _wrap(cells: Sequence[str]) -> list[str]:
    return textwrap.wrap(", ".join(cells) + ",", 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
