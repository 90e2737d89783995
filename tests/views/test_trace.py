"""The trace of passes: its totals equal the stats, its file is validated, and its size is bounded."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from copyspec.cli import main
from copyspec.engine.results import Result, recording
from copyspec.views.pass_trace import Trace, TraceError
from copyspec.views.trace_views import chains, summary, trace_page
from tests.helpers.texts import engine

pytestmark = pytest.mark.usefixtures("steady_drafts")

COUNTS = (
    "num_passes",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_output_tokens",
    "num_draft_tokens_per_source",
    "num_accepted_tokens_per_source",
)
SECONDS = ("prefill_seconds", "draft_seconds", "target_seconds", "verify_seconds", "other_seconds")


def traced(**options: Any) -> Result:
    tiny = engine()
    plain = tiny.generate("the cat", drafter="none", max_new_tokens=40)
    reference = f"{plain.text[:20]} other {plain.text[5:]}"
    return tiny.generate("the cat", [reference], max_new_tokens=40, trace=True, **options)


def check(result: Result) -> None:
    assert result.trace is not None
    totals = result.trace.totals()
    for name in COUNTS:
        assert getattr(totals, name) == getattr(result.stats, name), name
    for name in SECONDS:
        assert getattr(totals, name) == pytest.approx(getattr(result.stats, name), abs=1e-6), name
    decisions = [pass_.decision for pass_ in result.trace.passes if pass_.decision]
    if not result.trace.omitted.num_passes:
        assert tuple(token for pass_ in result.trace.passes for token in pass_.tokens) == result.token_ids
        assert {name: decisions.count(name) for name in decisions} == result.stats.decisions


def test_totals_are_the_stats() -> None:
    for result in (traced(), traced(max_draft_nodes=4), traced(temperature=0.7, seed=3)):
        check(result)
    tiny = engine()
    for result in tiny.generate(["the cat", "the dog sat", "he goes"], max_new_tokens=25, trace=True, batch_size=2):
        check(result)
    assert tiny.generate("the cat", max_new_tokens=4).trace is None


def test_accepted_nodes_are_what_was_written() -> None:
    trace = traced().trace
    assert trace is not None and trace.totals().num_accepted_tokens > 0
    for pass_ in trace.passes:
        assert tuple(pass_.nodes.tokens[node] for node in pass_.path) == pass_.tokens[: len(pass_.path)]
        listed = [node for _, chain, _ in chains(pass_.nodes, pass_.path) for node in chain]
        assert sorted(listed) == list(range(len(pass_.nodes)))
        assert {
            node for _, chain, is_accepted in chains(pass_.nodes, pass_.path) if is_accepted for node in chain
        } == set(pass_.path)


def test_what_is_too_much_is_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_PASSES", 3)
    result = traced()
    assert result.trace is not None and len(result.trace.passes) == 3 and result.trace.omitted.num_passes > 0
    check(result)
    assert "later passes were only counted" in "\n".join(summary(result.trace))


def test_a_saved_trace_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = traced()
    assert result.trace is not None
    path = tmp_path / "run.json"
    result.trace.save(path)
    loaded = Trace.load(path)
    assert [pass_.nodes.tokens for pass_ in loaded.passes] == [pass_.nodes.tokens for pass_ in result.trace.passes]
    assert {name: getattr(loaded.totals(), name) for name in COUNTS} == {
        name: getattr(result.stats, name) for name in COUNTS
    }
    assert pickle.loads(pickle.dumps(result)).trace == result.trace
    page = tmp_path / "page.html"
    assert main(["trace", str(path), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert f"in {result.stats.num_passes} passes" in out and "\x1b" not in out
    head, first = next((line, below) for line, below in pairwise(out.splitlines()) if line.startswith(" pass "))
    assert head.index("text") == first.index("/") + len("/999 ")
    assert page.read_text(encoding="utf-8").count("<details>") == result.stats.num_passes
    assert main(["trace", str(path), "--pass", "1"]) == 0
    assert main(["trace", str(path), "--pass", "999"]) == 2
    assert main(["trace", str(tmp_path / "none.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_text_of_a_trace_is_shown_as_text() -> None:
    result = traced()
    assert result.trace is not None
    bad = {token: "<script>x</script>\x1b[2J" for token in result.trace.texts}
    page = "".join(trace_page(Trace(result.trace.passes, bad)))
    assert "<script" not in page and "\x1b" not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda top: top.update(format="other"), "format 'other', version 2; not"),
        (lambda top: top.update(passes={}), "passes must be a list"),
        (lambda top: top["passes"][0].update(path=[10**6]), "is not a path"),
        (lambda top: top["passes"][0]["nodes"]["parents"].__setitem__(0, 5), "must come before its child"),
        (lambda top: top["passes"][0]["nodes"]["tokens"].append(1), "differ in length"),
        (lambda top: top["passes"][0]["times"].update(model=float("nan")), "must be a number"),
        (lambda top: top["passes"][0].update(tokens=["x"]), "must be an integer"),
        (lambda top: top.update(texts={"x": "y"}), "texts must map"),
        (lambda top: top["omitted"].update(num_passes=-1), "omitted.num_passes"),
        (lambda top: top["passes"][0].update(decision="\x1b[2J"), r"decision must be a string of printable .* '\\x1b"),
        (
            lambda top: (top.update(texts={"5": "x" * (8 << 20)}), top["passes"][0].update(tokens=[5] * 40)),
            "texts of all tokens have more than 268,435,456 characters",
        ),
        (lambda top: top["omitted"].update(num_draft_tokens_per_source={"\x1b]0;x\x07": 1}), "printable characters"),
    ],
)
def test_a_wrong_file_is_told(change: Any, message: str, tmp_path: Path) -> None:
    result = traced()
    assert result.trace is not None
    top = json.loads(json.dumps(result.trace.to_dict()))
    change(top)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(top), encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        Trace.load(path)
    assert main(["trace", str(path)]) == 2


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    for text in ("[" * 100_000, "{", "\x00", "[]"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(TraceError):
            Trace.load(path)


def test_omitted_is_part_of_the_file() -> None:
    result = traced()
    assert result.trace is not None
    top = json.loads(json.dumps(result.trace.to_dict()))
    assert asdict(Trace.from_dict(top).omitted)["num_passes"] == 0
    assert Trace.from_dict({**top, "model": "tiny"}) == Trace.from_dict(top), "earlier versions wrote this field"
