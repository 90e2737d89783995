"""What the documentation says: its code runs, its commands exist, its generated parts are current, its links lead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from copyspec.api import ModelKeywords
from copyspec.engine.keywords import GenerateOptions
from copyspec.models.loading import BUNDLED
from docs import update

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

needs_default_model = pytest.mark.skipif(
    not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout"
)


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def _commands(prefix: str) -> list[tuple[str, str]]:
    lines = [(page.name, line) for page in PAGES for block in _blocks(page, "sh") for line in block.splitlines()]
    return [(name, line.partition(" #")[0].strip()) for name, line in lines if prefix in line]


def _run(command: list[str] | str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COPYSPEC_MODEL": "default", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, shell=isinstance(command, str), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )


@needs_default_model
@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page, "python")], ids=lambda page: page.name)
def test_code_runs_as_it_stands(page: Path) -> None:
    done = _run([sys.executable, "-c", "\n".join(_blocks(page, "python"))])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def _scripts() -> list[tuple[str, list[str]]]:
    """The copyspec commands of each block: one may need what another one wrote."""
    found = []
    for page in PAGES:
        for block in _blocks(page, "sh"):
            commands = [line.partition(" #")[0].strip() for line in block.splitlines()]
            own = [line for line in commands if "copyspec " in line and "python -m" not in line and "pip" not in line]
            found += [(page.name, own)] if own else []
    return found


@needs_default_model
@pytest.mark.parametrize(("page", "commands"), _scripts())
def test_commands_run_as_they_stand(page: str, commands: list[str], tmp_path: Path) -> None:
    for command in commands:
        command = command.replace("/tmp/", f"{tmp_path}/")
        done = _run(re.sub(r"\bcopyspec ", f"{sys.executable} -m copyspec ", command, count=1))
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.parametrize(("page", "command"), _commands("make "))
def test_make_targets_exist(page: str, command: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(command.split()[1:]) <= set(targets)


@pytest.mark.parametrize(("page", "command"), _commands("python -m "))
def test_options_of_commands_exist(page: str, command: str) -> None:
    words = command.split()
    given = {word for word in words if word.startswith("--")}
    done = _run([sys.executable, "-m", words[2], "--help"])
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"--[a-z-]+", done.stdout))
    assert given <= known


def test_generated_parts_are_current() -> None:
    pinned = re.search(r"^typer==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    if version("typer") != pinned[1]:
        pytest.skip("another typer lays its help out in another way")
    done = _run([sys.executable, "-m", "docs.update", "--check"])
    assert done.returncode == 0, done.stdout + done.stderr + "run: python -m docs.update"


def test_the_measured_table_is_made_from_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "RESULTS", tmp_path)
    assert update.measured() == ""
    own = {"method": "copyspec", "tokens_per_second": 812.4, "mean_acceptance_length": 7.44, "equal": True}
    own["speedup"] = {"hf": 5.12, "plain": 4.4}
    report = {
        "command": "python -m benchmarks.speed --model default",
        "machine": {"processor": "P", "cpus": 2},
        "versions": {"torch": "1", "transformers": "2"},
        "date": "2026-01-01",
        "dtype": "float32",
        "sets": [{"name": "sentences", "replay": False, "methods": [{"method": "plain"}, own]}],
    }
    (tmp_path / "speed-a.json").write_text(json.dumps(report))
    method = {"tokens": 30, "passes": 10, "seconds": 2.0, "cpu_seconds": 1.0, "parts": {"passes": 1.0, "drafting": 0.0}}
    names = {"generate": 3.0, "lookup": 2.0, "plain": 2.5, "copyspec": 1.0}
    methods = {name: {**method, "cpu_seconds": seconds, "parted": [None]} for name, seconds in names.items()}
    real = {"model": "smollm2", "dtype": "float32", "runs": [{"task": "code_edit", "methods": methods}]}
    (tmp_path / update.REAL).write_text(json.dumps(real))
    kinds = {"essay": {"texts": 4, "copied": {"cpu_seconds": 1.0, "differing": 0}, "plain": {"cpu_seconds": 2.5}}}
    (tmp_path / "gec-files-a.json").write_text(json.dumps({"model": "default", "dtype": "bfloat16", "inputs": kinds}))
    table = update.measured()
    assert "| files: essay | bfloat16 | | |  | | 2.50x | yes |" in table
    assert "| smollm2, code edit | float32 | | 3.0 | 3.00x | 2.00x | 2.50x | 1 of 1 |" in table
    assert "| sentences | float32 | 812 | 7.4 | 5.12x |  | 4.40x | yes |" in table
    assert "P, 2 cores; torch 1, transformers 2; 2026-01-01" in table
    page = "a\n<!-- measured:begin -->\nold\n<!-- measured:end -->\nb\n"
    assert update.between(page, "measured", "") == "a\n<!-- measured:begin -->\n<!-- measured:end -->\nb\n"
    assert update.between(page, "measured", "x") == "a\n<!-- measured:begin -->\n\nx\n\n<!-- measured:end -->\nb\n"
    with pytest.raises(ValueError, match="no markers"):
        update.between("a", "measured", "x")


def test_every_option_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \|", text.partition("## Options")[2].partition("## Results")[0], re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == {*GenerateOptions.__annotations__, *ModelKeywords.__annotations__, "stream"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_takes_three_minutes() -> None:
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)  # tables are looked up, not read
    words = len(re.findall(r"\w+", prose))
    assert words <= 830, f"{words} words beside tables: more than three minutes"
