"""`benchmarks.architectures` on a few types, one per outcome, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.architectures import check as architectures_check
from benchmarks.architectures import run as architectures
from benchmarks.architectures.models import model_types

TABLE = Path("benchmarks/results/architectures.json")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "outcome"), [("roberta", "trees"), ("moshi", "plain"), ("gpt_neo", "chains"), ("falcon_mamba", "plain")]
)
def test_types_that_were_wrong(name: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures, "WINDOWS", (8,))
    monkeypatch.setattr(architectures_check, "RUNS", ((3, 0.2),))
    finding = architectures.examine(name)
    assert (finding.outcome, finding.type) == (outcome, name), finding.reason
    assert finding.outputs and not finding.ties


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_output_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = architectures_check._decoded
    monkeypatch.setattr(
        architectures_check,
        "_decoded",
        lambda *given: [[*out[:5], (out[5] + 1) % 90, *out[6:]] for out in right(*given)],
    )
    monkeypatch.setattr(architectures_check, "RUNS", ((3, 0.2),))
    finding = architectures.examine("gpt2")
    assert finding.outcome == "wrong" and "token 5 after" in finding.reason


def test_the_table_holds_every_type_and_nothing_wrong() -> None:
    table = json.loads(TABLE.read_text())
    assert table["counts"]["wrong"] == 0
    assert sum(table["counts"].values()) == len(table["types"])
    if table["transformers"] == __import__("transformers").__version__:
        assert [each["type"] for each in table["types"]] == model_types()
