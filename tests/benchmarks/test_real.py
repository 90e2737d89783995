"""Benchmarks of a real model: their counting, without the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import copyspec
from benchmarks import spec_bench
from benchmarks.quality.squad import contains, f1
from benchmarks.real import exactness
from benchmarks.real import run as real
from benchmarks.real.cases import Case
from benchmarks.real.report import equal, table
from benchmarks.speed import gec_files, prompt_only
from benchmarks.transcripts import Transcript
from kit import reporting

CASES = [Case(name, "gec", [{"role": "user", "content": "x"}], [], None) for name in ("gec:1", "gec:2")]


class Outputs:
    """A bench whose methods give these outputs in turn, after the warm-up."""

    def __init__(self, outputs: dict[str, list[list[list[int]]]]) -> None:
        self._found = outputs

    def run(self, method: str, cases: Sequence[Case], max_new_tokens: int | None = None) -> real.Run:
        tokens = [] if max_new_tokens else self._found[method].pop(0)
        return real.Run(tokens, passes=1, parts={"passes": 1.0, "drafting": 0.0})


def measured(**outputs: list[list[list[int]]]) -> dict[str, Any]:
    bench: Any = Outputs(outputs)
    return real.measure(bench, CASES, list(outputs), 3)


def test_a_later_repeat_that_differs_is_not_equal() -> None:
    same, other = [[1, 2, 3], [4]], [[1, 9, 3], [4]]
    run = measured(lookup=[other] * 3, plain=[same] * 3, generate=[same] * 3, copyspec=[same, other, same])
    equality = {name: (method["equal"], method["parted"]) for name, method in run["methods"].items()}
    equals = (True, [None, None])
    assert equality == {
        "lookup": (False, [1, None]), "plain": equals, "generate": equals, "copyspec": (False, [1, None]),
    }  # fmt: skip
    assert equal([run]) == "1 of 2" and "| 1 of 2 |" in table({**HEAD, "runs": [run]})
    assert measured(copyspec=[other] * 3, plain=[same] * 3)["methods"]["copyspec"]["parted"] == [1, None]
    old = {"methods": {"copyspec": {"equal": False, "parted": [None]}}}  # of the first repeat only
    assert equal([run, old]) == "1 of 3"
    assert equal([{"methods": {"copyspec": {"equal": False, "parted": [0, None]}}}]) == "1 of 2"


HEAD = {"model": "smollm2", "dtype": "float32", "threads": 1, "batch": 1}


def test_a_run_of_outputs_that_differ_fails_and_no_other_run_goes_on_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    same, other = [[1, 2], [3]], [[1, 2], [4]]
    entry = measured(generate=[same] * 3, lookup=[same] * 3, plain=[same] * 3, copyspec=[same, same, other])
    file, engine = tmp_path / "real.json", SimpleNamespace(threads=None)
    monkeypatch.setattr(real.copyspec, "load", lambda *args, **options: engine)
    monkeypatch.setattr(real, "read_cases", lambda *args, **options: CASES[:1])
    monkeypatch.setattr(real, "measure", lambda *args: {**entry, "ids": ["gec:1"]})

    def status(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["real", "folder", "--json", str(file), *words])
        return real.main()

    assert status() == 1 and engine.threads == 1
    before = file.read_bytes()
    for words, said in (
        (["--dtype", "bfloat16"], "its dtype is 'float32', not 'bfloat16'"),
        (["--methods", "plain", "copyspec"], "its methods is"),
        (["--static", "never"], "its static is 'default', not 'never'"),
    ):
        with pytest.raises(SystemExit, match=f"real.json holds another run: {said}"):
            status(*words)
    monkeypatch.setattr(reporting, "machine", lambda: {"system": "Linux", "processor": "Another"})
    with pytest.raises(SystemExit, match=r"its processor is '.*', not 'Another'; remove it, or name another file"):
        status()
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        (real, ["--methods", "copied"], "invalid choice: 'copied'"),
        (spec_bench, ["--methods", "copied"], "no method 'copied', or no folder for it; there are plain"),
        (spec_bench, ["--methods", "plain", "heads"], "no method 'heads', or no folder for it"),
    ],
)
def test_a_method_that_is_none_is_not_measured_as_another(
    module: Any, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copyspec, "load", lambda *args, **options: pytest.fail("the run starts"))
    monkeypatch.setattr("sys.argv", ["benchmark", "folder", *words])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    assert said in capsys.readouterr().err


def test_a_file_whose_text_differs_in_one_repeat_is_counted() -> None:
    runs = [{"a": [1], "b": [2]}, {"a": [1], "b": [3]}, {"a": [1], "b": [2]}]
    report = gec_files.measure({"copied": lambda: runs.pop(0), "plain": lambda: {"a": [1], "b": [2]}}, 3)
    assert (report["copied"]["differing"], report["plain"]["differing"], report["tokens"]) == (1, 0, 2)


def test_threads_hold_for_the_methods_of_transformers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()

    def load(*_: object, **__: object) -> None:
        raise RuntimeError("the model is loaded here")

    monkeypatch.setattr(gec_files.copyspec, "load", load)
    monkeypatch.setattr("sys.argv", ["gec_files", "--threads", "3"])
    try:
        with pytest.raises(RuntimeError, match="loaded here"):
            gec_files.main()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_modes_of_a_prompt_take_turns_after_a_warm_up() -> None:
    asked: list[str] = []

    def generate(messages: object, *, max_new_tokens: int, drafter: str = "auto", edit_source: str = "") -> Any:
        asked.append("plain" if drafter == "none" else "given" if edit_source else "prompt_only")
        return SimpleNamespace(token_ids=[1, 2], stats=SimpleNamespace(num_passes=1))

    rows = [Transcript(str(number), "gec", "set", "model", "a", "Correct: x", ("x",), "y") for number in range(2)]
    engine: Any = SimpleNamespace(generate=generate)
    report = prompt_only.measure(engine, rows, 4)
    first, *others = prompt_only.MODES
    assert asked == [first, *others, first, *others, *others, first]
    assert (report["output_tokens"], report["equal_outputs"]) == (4, 2), "the warm-up is not counted"


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
    case = CASES[0]
    parted = exactness.parted
    assert parted(None, "copied", case, [1, 2, 3], [1, 2, 3]) is None  # type: ignore[arg-type]
    parting = parted(None, "copied", case, [1, 2, 3], [1, 2])  # type: ignore[arg-type]
    assert parting == exactness.Parting("copied", "gec:1", 2, 3, None, None)


def test_tables_of_exactness_and_files() -> None:
    block = {"ids": ["a", "b"], "tokens": {"copied": 256}, "parted": []}
    apart = {"ids": ["c"], "tokens": {"copied": 100}, "parted": [{"method": "copied", "gap": -0.125}]}
    shown = exactness.table({"model": "m", "dtype": "bfloat16", "blocks": [block, apart]})
    assert "m, bfloat16: 3 prompts" in shown
    assert "356 tokens, 1 outputs part: gaps 0.1250" in shown
    report = {
        "texts": 4,
        "tokens": 90,
        "copied": {"seconds": 2.0, "cpu_seconds": 1.0, "differing": 0},
        "plain": {"seconds": 5.0, "cpu_seconds": 3.0, "differing": 0},
    }
    assert "over plain 2.50x (3.00x)" in gec_files.line("essay", report)
