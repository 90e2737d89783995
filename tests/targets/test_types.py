"""`benchmarks.architectures` on a few types, one per outcome, and its table."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import transformers

from kit.architectures import model_types

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "benchmarks" / "results" / "architectures.json").read_text())
OUTCOMES = Counter(entry["outcome"] for entry in TABLE["types"])


def test_nothing_in_the_table_is_wrong() -> None:
    assert {outcome: count for outcome, count in TABLE["counts"].items() if count} == OUTCOMES
    assert OUTCOMES["wrong"] == 0


@pytest.mark.skipif(
    TABLE["transformers"] != transformers.__version__, reason=f"the table is of transformers {TABLE['transformers']}"
)
def test_the_table_holds_every_type() -> None:
    assert [entry["type"] for entry in TABLE["types"]] == model_types()
