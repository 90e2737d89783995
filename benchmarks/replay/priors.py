"""Writes fitted weights as the file `copyspec/drafters/copying/priors.json`."""

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


def priors_json(weights: Sequence[float], crowds: Sequence[float]) -> str:
    """Return the content of the file. `weights` are indexed by situation, `crowds` by cell of the crowd table."""
    rows = []
    for family, name in enumerate(FAMILIES):
        used = _columns(family)
        row = [f"{weights[family * STRIDE + column]:.3g}" if column in used else "0" for column in range(max(used) + 1)]
        rows.append(f'  "{name}": [\n{_wrapped(row)}\n  ]')
    tables = []
    size = len(crowds) // len(CROWD_ROWS)
    for number, name in enumerate(CROWD_ROWS):
        cells = [f"{factor:.2f}" for factor in crowds[number * size : (number + 1) * size]]
        lines = ",\n".join("   " + ", ".join(cells[start : start + GAPS]) for start in range(0, size, GAPS))
        tables.append(f'  "{name}": [\n{lines}\n  ]')
    return '{\n "weights": {\n' + ",\n".join(rows) + '\n },\n "crowds": {\n' + ",\n".join(tables) + "\n }\n}\n"


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


def _wrapped(cells: Sequence[str]) -> str:
    return textwrap.fill(", ".join(cells), 112, initial_indent="   ", subsequent_indent="   ")
