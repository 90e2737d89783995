"""Examples: each runs as its docstring says and stays short, and the demo's outputs are equal."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import copyspec
from copyspec.models.loading import BUNDLED

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUNNABLE = [path for path in EXAMPLES if "def main(" in path.read_text(encoding="utf-8")]
MAX_LINES = 40
NEEDS = {"langgraph_node": "langgraph", "langchain_agent": "langchain"}  # in addition to the package's own requirements

needs_default_model = pytest.mark.skipif(
    not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout"
)


Run = Callable[[str], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example in this process, where imports and the model are shared. Returns what it shows."""

    def shown(name: str) -> str:
        monkeypatch.setenv("COPYSPEC_MODEL", "default")
        monkeypatch.setattr(sys, "argv", [f"examples/{name}.py"])
        monkeypatch.chdir(ROOT)
        assert not importlib.import_module(f"examples.{name}").main()
        out, err = capsys.readouterr()
        assert out.strip() and "Traceback" not in err
        return out

    return shown


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_say_what_they_show(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring
    if path in RUNNABLE:
        assert f"python -m examples.{path.stem}" in docstring


@needs_default_model
@pytest.mark.parametrize("name", [path.stem for path in RUNNABLE if path.stem not in ("own_model", "demo")])
def test_examples_run(name: str, run: Run) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    run(name)


def test_own_model_runs(run: Run) -> None:
    assert "outputs equal (64 tokens)" in run("own_model")


@needs_default_model
def test_the_demo_fits_a_terminal_and_its_outputs_are_equal(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    lines = run("demo").splitlines()
    assert not caplog.records, "nothing goes to stderr"
    assert max(map(len, lines)) <= 80
    verdicts = [line for line in lines if "times as fast" in line]
    assert len(verdicts) == 2 and all(line.startswith("EQUAL, ") for line in verdicts)


def test_the_demo_says_when_other_programs_used_the_processor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = importlib.import_module("examples.demo")
    monkeypatch.setattr(demo, "tasks", lambda real: [])
    monkeypatch.setattr(demo, "Load", SimpleNamespace(read=object))
    monkeypatch.setattr(copyspec, "load", lambda *_, **__: SimpleNamespace(name="any"))
    for cores, is_told in ((0, False), (os.cpu_count(), True)):
        monkeypatch.setattr(demo, "held_by_others", lambda load, cores=cores: cores)
        assert demo.main() == 0 and ("do not quote" in capsys.readouterr().out) is is_told


@needs_default_model
def test_the_drafter_of_ones_own_pays_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    program = importlib.import_module("examples.custom_drafter")
    program.main()
    copied, own = (int(word) for word in capsys.readouterr().out.splitlines()[1].split() if word.isdigit())
    assert own < copied
    text = "We needs informations."
    result = copyspec.generate(
        f"Correct the grammar: {text}", edit_source=text, drafter=["auto", program.KnownCorrections], model="default"
    )
    assert result.stats.num_draft_tokens_per_source["KnownCorrections"]
