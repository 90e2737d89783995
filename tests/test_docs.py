"""Documentation: its code runs, its commands exist, its generated parts are current, and its links work."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from copyspec.api import ModelKeywords
from copyspec.engine.asking.keywords import GenerateOptions
from copyspec.models.loading import BUNDLED
from docs import execution, update

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".ipynb"))

needs_default_model = pytest.mark.skipif(
    not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout"
)


def _commands(prefix: str) -> list[tuple[str, str]]:
    """Return the lines of shell blocks that contain `prefix`, with the page of each."""
    listed = [
        (page.name, line.partition(" #")[0].strip())
        for page in PAGES
        for block in execution.blocks(page.read_text(encoding="utf-8"), "sh")
        for line in block.code.splitlines()
    ]
    return [(name, line) for name, line in listed if prefix in line]


def _runs(page: Path) -> bool:
    text = page.read_text(encoding="utf-8")
    return bool(execution.blocks(text, "python") or any(map(execution.commands, execution.blocks(text, "sh"))))


@needs_default_model
@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=lambda page: page.stem)
def test_code_and_commands_run_as_they_stand(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    printed = [out for _, out in execution.run_python(text, str(page))]
    assert not printed or "".join(printed).strip()
    for block in execution.blocks(text, "sh"):
        for command, out, _ in execution.run_commands(block, tmp_path):
            assert out.strip(), command


FIRST = {"copyspec.load", "GECPipeline"}
"""Calls that take the model as their first argument, too."""

ANSWERING = {*FIRST, "copyspec.generate", "copyspec.agenerate", "copyspec.compare", "answer", "ChatCopySpec"}
ANSWERING |= {"IterativeRAG", "KNNLM"}
"""Calls whose answers depend on the model."""

ANY_MODEL = {"own_model", "demo"}
"""Pages and examples that set a model for the whole program, or are about the one that is installed."""


@pytest.mark.parametrize(
    "page",
    [page for page in [*PAGES, *EXAMPLES] if page.stem not in ANY_MODEL],
    ids=lambda page: page.stem,
)
def test_code_names_the_model_that_answers(page: Path) -> None:
    """Where none is named, answers depend on the models that a reader has installed."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        codes = [block.code for block in execution.blocks(text, "python")]
    elif page.suffix == ".ipynb":
        codes = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    else:
        codes = [text]
    calls = [node for code in codes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    for call in calls:
        called = ast.unparse(call.func)
        names = {keyword.arg for keyword in call.keywords} & {"model", None}  # None: a mapping of options
        assert called not in ANSWERING or names or (called in FIRST and call.args), ast.unparse(call)


@pytest.mark.parametrize("line", ["copyspec generate --no-such", "printf x | copyspec trace /no/such"])
def test_a_command_that_fails_is_found(line: str, tmp_path: Path) -> None:
    text = f"```sh\n{line}\n```\n"
    with pytest.raises(execution.BlockError, match="exit status 2"):
        list(execution.run_commands(execution.blocks(text, "sh")[0], tmp_path))
    allowed = execution.blocks(text.replace("\n```\n", " || true\n```\n"), "sh")[0]
    assert len(list(execution.run_commands(allowed, tmp_path))) == 1


def test_an_error_of_a_block_names_page_and_line() -> None:
    text = "# Title\n\n```python\na = 1\n```\n\n```python\nraise KeyError(a)\n```\n"
    with pytest.raises(KeyError) as error:
        list(execution.run_python(text, "page.md"))
    assert (str(error.traceback[-1].path), error.traceback[-1].lineno + 1) == ("page.md", 8)


@pytest.mark.parametrize(("page", "command"), _commands("make "))
def test_make_targets_exist(page: str, command: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(command.split()[1:]) <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_named_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m ((?:benchmarks|docs|examples|training)[\w.]*)", text):
        assert importlib.util.find_spec(module) is not None, module


def _modules() -> dict[str, list[str]]:
    """Group the commands by the module that they run."""
    commands: dict[str, list[str]] = {}
    for _, command in _commands("python -m "):
        commands.setdefault(command.split()[2], []).append(command)
    return commands


@pytest.mark.parametrize(("module", "commands"), _modules().items(), ids=list(_modules()))
def test_options_of_commands_exist(module: str, commands: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    is_package = importlib.util.find_spec(module).submodule_search_locations is not None  # type: ignore[union-attr]
    program = importlib.import_module(f"{module}.__main__" if is_package else module)
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with execution.captured() as streams, pytest.raises(SystemExit) as done:
        program.main()
    assert done.value.code == 0
    known = set(re.findall(r"--[a-z-]+", streams.out()))
    for command in commands:
        options = {word for word in command.split() if word.startswith("--")}
        assert options <= known, command


def test_generated_parts_are_current() -> None:
    pinned = re.search(r"^typer==([\d.]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    if version("typer") != pinned[1]:
        pytest.skip("another typer lays its help out in another way")
    command = [sys.executable, "-m", "docs.update", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
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
    methods = {
        name: {**method, "cpu_seconds": seconds, "equal": True, "parted": [None]} for name, seconds in names.items()
    }
    runs = [{"task": "code_edit", "methods": methods}]
    real = {"model": "smollm2", "dtype": "float32", "threads": 1, "repeats": 1, "runs": runs}
    real["machine"] = {"processor": "Some(R) Processor", "instructions": "AVX2"}
    (tmp_path / update.REAL).write_text(json.dumps(real))
    kinds = {"essay": {"texts": 4, "copied": {"cpu_seconds": 1.0, "differing": 0}, "plain": {"cpu_seconds": 2.5}}}
    (tmp_path / "gec-files-a.json").write_text(json.dumps({"model": "default", "dtype": "bfloat16", "inputs": kinds}))
    table = update.measured()
    assert "| bundled, file: essay | bfloat16 |  | 2.50x |  |  |  | yes |" in table
    assert "| smollm2, code edit | float32, AVX2 | 3.0 | 2.50x | 1.20x | 3.00x | 2.00x | 1 of 1 |" in table
    assert "float32: CPU time of one thread, Some, one repeat;\nfiles" in table
    assert "| bundled, sentences | float32 | 7.4 | 4.40x | 1.16x | 5.12x |  | yes |" in table
    assert "P, 2 cores; torch 1, transformers 2; 2026-01-01" in table
    (tmp_path / update.REAL).write_text(json.dumps({**real, "threads": 2}))
    table = update.measured()
    assert "| smollm2, code edit | float32, AVX2 | 3.0 | 1.00x | 1.00x | 1.00x | 1.00x | 1 of 1 |" in table
    assert "float32: 2 threads, Some, one repeat;\nfiles" in table
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
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_contributing_is_at_most_forty_lines_long() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 40


def test_the_readme_takes_three_minutes() -> None:
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = re.sub(
        r"^\|.*$", "", prose, flags=re.MULTILINE
    )  # tables are for looking things up and are not counted as prose
    prose = re.sub(r"\]\([^)]*\)", "]", prose)  # link targets are not prose either
    words = len(re.findall(r"\w+", prose))
    assert words <= 775, f"{words} words beside tables: more than three minutes"


def test_the_readme_states_the_committed_speed_of_the_real_model() -> None:
    """What drafts bring and what they bring together with faster layers, in the first paragraph."""
    rows = [line.split("|") for line in update.measured().splitlines() if line.startswith("| smollm2, ")]
    by_drafts, over_generate = (
        sorted(float(cells[column].strip(" x")) for cells in rows if "file:" not in cells[1]) for column in (4, 6)
    )
    first = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("![")[0].split())
    assert f"{over_generate[0]:.1f}x to {over_generate[-1]:.1f}x as fast as with `generate`" in first
    assert f"{by_drafts[0]:.1f}x to {by_drafts[-1]:.1f}x by drafts, the rest by faster layers" in first


def test_the_readme_states_what_drafts_bring_on_a_gpu() -> None:
    """The ratios of docs/gpu.md's first table are those of its columns, and their range stands in the README."""
    rows = [line.split("|")[1:-1] for line in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").splitlines()]
    head = "by drafts: over plain"
    start = next(n for n, row in enumerate(rows) if head in [cell.strip() for cell in row])
    ratios = []
    for row in rows[start + 2 : start + 6]:
        generate, lookup, plain, ours = (float(cell) for cell in row[1:5])
        stated = [float(cell.strip(" x")) for cell in row[5:9]]
        for value, top in zip(stated, (plain / ours, generate / plain, generate / ours, lookup / ours), strict=True):
            assert value == pytest.approx(top, rel=0.015, abs=0.06)
        ratios.append(stated[0])
    assert f"{min(ratios)}x to {max(ratios)}x" in (ROOT / "README.md").read_text(encoding="utf-8").split("![")[0]
