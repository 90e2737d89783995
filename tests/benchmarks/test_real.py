"""Benchmarks of a real model: their counting, without the model."""

from __future__ import annotations

import pytest

from benchmarks.quality.squad import contains, f1
from benchmarks.real import exactness
from benchmarks.real.cases import Case
from benchmarks.speed import gec_files


@pytest.mark.parametrize(
    ("answer", "accepted", "score", "contained"),
    [
        ("The Denver Broncos.", ["Denver Broncos"], 1.0, True),
        ("It was the Denver Broncos", ["Denver Broncos", "Broncos"], 2 / 3, True),
        ("Denver", ["Denver Broncos"], 2 / 3, False),
        ("a Denverite", ["Denver"], 0.0, False),
        ("", ["Denver"], 0.0, False),
    ],
)
def test_answers_are_scored_as_squad_does(answer: str, accepted: list[str], score: float, contained: bool) -> None:
    assert f1(answer, accepted) == pytest.approx(score)
    assert contains(answer, accepted) is contained


def test_equal_outputs_do_not_part_and_an_end_is_a_difference() -> None:
    case = Case("gec:1", "gec", [{"role": "user", "content": "x"}], [], None)
    parted = exactness.parted
    assert parted(None, "copied", case, [1, 2, 3], [1, 2, 3]) is None  # type: ignore[arg-type]
    found = parted(None, "copied", case, [1, 2, 3], [1, 2])  # type: ignore[arg-type]
    assert found == exactness.Parting("copied", "gec:1", 2, 3, None, None)


def test_tables_of_exactness_and_files() -> None:
    block = {"ids": ["a", "b"], "tokens": {"copied": 256}, "parted": []}
    apart = {"ids": ["c"], "tokens": {"copied": 100}, "parted": [{"method": "copied", "gap": -0.125}]}
    table = exactness.table({"model": "m", "dtype": "bfloat16", "blocks": [block, apart]})
    assert "m, bfloat16: 3 prompts" in table
    assert "356 tokens, 1 outputs part: gaps 0.1250" in table
    found = {
        "texts": 4,
        "tokens": 90,
        "copied": {"seconds": 2.0, "cpu_seconds": 1.0, "differing": 0},
        "plain": {"seconds": 5.0, "cpu_seconds": 3.0, "differing": 0},
    }
    assert "over plain 2.50x (3.00x)" in gec_files.line("essay", found)
