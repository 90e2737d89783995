"""Measured priors: the weight of a cursor in each situation, before anything is learned from the row.

Fitted by maximum likelihood of the next token along recorded outputs: `benchmarks.replay.fit` writes the files. The
event that no cursor is right has the weight "miss".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from copyspec.drafters.copying.situations import COUNT, CROWD, CROWD_ROWS, FAMILIES, STRIDE


class Priors(NamedTuple):
    """Fitted numbers. In the file they are by family or row, and those that do not occur at its end are left out."""

    weights: list[float]  # [COUNT], by situation
    crowds: list[float]  # [CROWD], by cell of the crowd table


def _read(name: str) -> Priors:
    tables = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"), parse_int=float)
    weights = [weight for family in FAMILIES for weight in (tables["weights"][family] + [0.0] * STRIDE)[:STRIDE]]
    crowds = [factor for row in CROWD_ROWS for factor in tables["crowds"][row]]
    assert len(weights) == COUNT and len(crowds) == CROWD
    return Priors(weights, crowds)


NAMED, FOUND = _read("priors.json"), _read("priors_found.json")
"""For rows whose sources the caller named, and for those whose sources were found in the prompt."""
