"""`python -m benchmarks.figures`: what the docs say of the sample is what its commands find."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.figures import FIGURES, RESULTS, Figure, compared, differing
from kit import places


def test_every_command_has_figures_that_the_docs_show() -> None:
    stored = json.loads(RESULTS.read_text("utf-8"))
    assert list(stored) == [figure.name for figure in FIGURES]
    assert all(compared(figure, stored[figure.name]) for figure in FIGURES)
    for figure in FIGURES:
        page, _, anchor = figure.page.partition("#")
        text = (places.ROOT / "docs" / page).read_text("utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        slugs = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, figure.page


def test_a_command_finds_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--only", "datastore"]) == 0
    assert "copies + texts: 3.91" in capsys.readouterr().out


def test_another_value_and_a_missing_one_are_reported() -> None:
    exact = Figure("a", "a.md", (), dict)
    assert differing(exact, {"x": 1.0, "y": "2 of 2"}, {"x": 1.01, "y": "2 of 2"}) == ["x"]
    assert differing(exact, {"x": 1.0}, {"x": 1.0, "z": 3.0}) == ["z"] == differing(exact, {"z": 3.0}, {})
    runs = Figure("b", "b.md", (), dict, runs_model=True)
    assert differing(runs, {"tokens": 1.0, "equal": "1 of 2"}, {"tokens": 2.0, "equal": "2 of 2"}) == ["equal"]


def test_a_command_that_fails_is_shown(tmp_path: Path) -> None:
    failing = Figure("a", "a.md", ("json.tool --magic",), dict)  # of any program: this one imports no torch
    with pytest.raises(RuntimeError, match=r"unrecognized arguments: --magic"):
        failing.run(tmp_path)
