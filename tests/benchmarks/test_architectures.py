"""`benchmarks.architectures` on a few types, one per outcome, and its table."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import transformers

from benchmarks.architectures import check as architectures_check
from benchmarks.architectures import run as architectures

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "benchmarks" / "results" / "architectures.json").read_text())
OUTCOMES = Counter(entry["outcome"] for entry in TABLE["types"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("roberta", "trees"),
        ("moshi", "plain"),
        ("gpt_neo", "chains"),
        ("falcon_mamba", "trees"),
        ("glm_moe_dsa", "trees"),
        ("minimax", "chains"),
    ],
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
        lambda *args: [[*out[:5], (out[5] + 1) % 90, *out[6:]] for out in right(*args)],
    )
    monkeypatch.setattr(architectures_check, "RUNS", ((3, 0.2),))
    finding = architectures.examine("gpt2")
    assert finding.outcome == "wrong" and "token 5 after" in finding.reason


def test_the_pages_tell_the_counts_of_the_table() -> None:
    match = re.search(
        r"transformers' (\d+) model types\W+(\d+) were compared .+ (\d+) are accelerated, (\d+) decode without drafts",
        " ".join((ROOT / "README.md").read_text(encoding="utf-8").split()),
    )
    assert match is not None
    accelerated = OUTCOMES["trees"] + OUTCOMES["chains"]
    compared = accelerated + OUTCOMES["plain"]
    assert [*map(int, match.groups())] == [len(TABLE["types"]), compared, accelerated, OUTCOMES["plain"]]
    page = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    findings = [architectures.Finding(**fields) for fields in TABLE["types"]]
    assert architectures.markdown(findings).replace(transformers.__version__, TABLE["transformers"]) == page
