"""Importing copyspec is cheap: heavy packages are imported on first use."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import pytest

import copyspec
import copyspec.pipelines

HEAVY = ("torch", "transformers", "numpy", "langchain_core", "faiss", "rank_bm25")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["copyspec", "copyspec.pipelines"])
def test_import_loads_nothing_heavy(module: str) -> None:
    loaded = run(f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded == "[]"


def test_import_takes_less_than_a_third_of_a_second() -> None:
    code = "import time; t = time.perf_counter(); import copyspec; print(time.perf_counter() - t)"
    # The fastest of several runs, since another process may be busy on this core.
    assert min(float(run(code)) for _ in range(3)) < 0.3


OF_MODELS = {"torch", "transformers", "tokenizers", "huggingface_hub", "safetensors", "faiss"}
OF_MODELS |= {"langchain_core", "fastapi"}
LATE = {"numpy", "asyncio", "multiprocessing", "sqlite3"}  # imported late by the command line

UNCHANGED = "```\nthere is no prose here\n```\n"


@pytest.mark.parametrize(
    ("commands", "allowed"),
    [
        (
            {"--help": 0, "gec --help": 0, "edit --help": 0, "index --help": 0, "index add --help": 0}
            | {"gec --nonsense": 2},
            set(),
        ),
        (
            {"--version": 0, "gec {file} --format nonsense": 2, "gec {folder}/none.md": 3, "gec {file}": 0}
            | {"gec {file} --check": 0, "gec {file} -i": 0},
            LATE,
        ),
    ],
    ids=["help", "files"],
)
def test_the_command_line_loads_models_where_they_are_needed(
    commands: dict[str, int], allowed: set[str], tmp_path: Path
) -> None:
    """The number of imported modules decides how long help, errors and files without prose take."""
    file = tmp_path / "code.md"
    file.write_text(UNCHANGED)
    program = (
        "import json, sys\nfrom copyspec.cli import main\n"
        "codes = [main(arguments) for arguments in json.loads(sys.argv[1])]\n"
        "print(json.dumps([codes, [*sys.modules]]), file=sys.stderr)\n"
    )
    asked = json.dumps([command.format(file=file, folder=tmp_path).split() for command in commands])
    done = subprocess.run([sys.executable, "-c", program, asked], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    codes, modules = json.loads(done.stderr.splitlines()[-1])
    assert codes == [*commands.values()], done.stderr
    assert (OF_MODELS | LATE - allowed).intersection(modules) == set()
    assert file.read_text() == UNCHANGED


def test_answers_by_words_load_no_model(tmp_path: Path) -> None:
    (tmp_path / "town.md").write_text("# Harbour\n\nThe lighthouse was built in 1871.\n")
    add = ["index", "add", "town", str(tmp_path / "town.md"), "--dir", str(tmp_path)]
    ask = ["rag", "When was the lighthouse built?", "--index", "town", "--dir", str(tmp_path)]
    shown = run(
        f"import sys\nfrom copyspec.cli import main\ncodes = [main({add!r}), main({ask!r})]\n"
        f"print(codes, {OF_MODELS!r}.intersection(sys.modules))"
    )
    assert "built in 1871" in shown
    assert shown.endswith("[0, 0] set()")


@pytest.mark.parametrize("package", [copyspec, copyspec.pipelines])
def test_every_public_name_is_there(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'genrate'"):
        package.genrate  # noqa: B018
    assert package.__file__ is not None
    (for_checkers,) = (node for node in ast.parse(Path(package.__file__).read_text()).body if is_type_checking(node))
    named = [alias for node in for_checkers.body for alias in node.names]  # type: ignore[attr-defined]
    assert sorted(alias.asname or alias.name for alias in named) == sorted(package.__all__)


def is_type_checking(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("package", [copyspec, copyspec.pipelines])
def test_public_functions_are_not_hidden_by_modules_of_their_name(package: ModuleType) -> None:
    """Importing such a module would put it in the function's place."""
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules and modules.isdisjoint(package.__all__)


def test_dir_shows_what_is_public() -> None:
    assert {name for name in dir(copyspec) if not name.startswith("__")} == set(copyspec.__all__)
