"""The structure: imports go from higher to lower layers and never form a cycle. Type-checking imports count too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the lowest layer to the highest; a module may import from lower layers. "" is the package's `__init__`.
FLOORS = (
    {"common"},
    {"budget", "options", "sources", "tree"},
    {"targets", "text"},
    {"models"},
    {"verification", "views"},
    {"drafters"},
    {"decoding"},
    {"engine"},
    {"retrievers"},
    {"api"},
    {"server"},
    {"client"},
    {""},
    {"literature", "pipelines"},
    {"integrations"},
    {"cli"},
    {"__main__"},
)


def module_name(path: Path) -> str:
    """Return the module's import name: retrievers/ and pipelines/ are beside copyspec/ but belong to it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "copyspec" else ("copyspec", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(path): path
    for folder in ("copyspec", "retrievers", "pipelines")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def imports(name: str, source: str) -> Iterator[str]:
    """Yield the package's modules that `source` imports at any level, including those for type checkers only."""
    package = name if FILES[name].stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                # `from .formats import text` means the module, unless the package itself defines that name.
                yield from [module for module in (f"{base}.{alias.name}", base) if module in FILES][:1]


@cache
def graph() -> dict[str, set[str]]:
    return {name: set(imports(name, path.read_text())) - {name} for name, path in FILES.items()}


def test_imports_make_no_circle() -> None:
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_imports_point_down() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

    def room(name: str) -> str:
        return name.partition(".")[2].partition(".")[0]

    up = [
        f"{name} -> {other}"
        for name, others in graph().items()
        for other in sorted(others)
        if room(name) and room(name) != room(other) and floor[room(name)] <= floor[room(other)]
    ]
    assert up == []


# Imports that bypass a layer which hides another.
FORBIDDEN = {
    "copyspec.pipelines": "copyspec.decoding",
    "copyspec.decoding": "copyspec.text",
    "copyspec.drafters": "copyspec.text",
}


def test_no_layer_is_bypassed() -> None:
    across = [
        f"{name} -> {other}"
        for name, others in graph().items()
        for above, below in FORBIDDEN.items()
        for other in sorted(others)
        if name.startswith(above) and other.startswith(below)
    ]
    assert across == []


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("copyspec.text.codec", "if TYPE_CHECKING:\n    from .chat import Message", "copyspec.text.chat"),
        ("copyspec.pipelines.editing", "from . import files", "copyspec.pipelines.editing.files"),
        ("copyspec.pipelines.formats.m2", "def f():\n    from ..edits import diff", "copyspec.pipelines.edits.diff"),
        ("copyspec.api", "from copyspec.engine import aio", "copyspec.engine.aio"),
        ("copyspec.cli.edit", "import copyspec", "copyspec"),
    ],
)
def test_every_way_to_import_counts(name: str, source: str, found: str) -> None:
    assert list(imports(name, source)) == [found]


OWN_NAMES = {
    "BM25Retriever",
    "DraftModel",
}  # LangChain's and llama.cpp's versions of classes that the package has as well


def test_no_class_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in OWN_NAMES:
                places.setdefault(node.name, []).append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_private_names_of_transformers_stand_in_hooks_alone() -> None:
    """Names that begin with an underscore may change in any version. Names of copyspec's own classes come from its
    modules."""
    modules = {
        name: ast.parse(path.read_text()) for name, path in FILES.items() if name.startswith("copyspec.targets.")
    }
    ours: set[str] = set()
    for tree in modules.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                ours.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                ours.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                ours.add(node.target.id)
    theirs = [
        f"{name}: {node.attr}"
        for name, tree in modules.items()
        if not name.startswith("copyspec.targets.hooks")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in ours and not _is_self(node.value)
    ]
    assert theirs == []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


ROW_VALUES = {"Chunk", "Input", "Job", "Output", "Result"}  # these store the resulting value of an option for one row


def test_an_option_is_written_once() -> None:
    """Besides the dataclass, only sampling options, generator options and the command line may repeat an option."""
    known = {"call_options", "keywords", "options"}
    options = next(
        node
        for node in ast.parse(FILES["copyspec.engine.asking.call_options"].read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "CallOptions"
    )
    names = {
        node.target.id for node in options.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    again = [
        f"{module}: {node.target.id}"
        for module, path in FILES.items()
        if module.startswith(("copyspec.engine", "copyspec.api", "copyspec.options"))
        and module.rpartition(".")[2] not in known
        for definition in ast.walk(ast.parse(path.read_text()))
        if isinstance(definition, ast.ClassDef) and definition.name not in ROW_VALUES
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in names
    ]
    assert again == []


IN_PROCESS = {"copyspec.pipelines.models"}
"""The one module that knows engines: other pipelines ask a `LanguageModel`."""

TOKEN_BY_TOKEN = ("fluency", "iterative", "knn_datastore", "knn_lm", "langchain", "shown_documents", "strides")
"""What reads weights, decodes token by token or is a face of the engine itself: it works in this process only."""

OF_ENGINES = ("copyspec.api", "copyspec.engine.engine", "copyspec.engine.running.feed", "copyspec.engine.running.call.")
OF_ENGINES += ("copyspec.models", "copyspec.targets", "copyspec.text.codec")
ENGINE_NAMES = {"Engine", "load", "generate", "agenerate", "compare"}


def test_pipelines_know_engines_in_one_module() -> None:
    knows = set()
    for name, path in FILES.items():
        if not name.startswith("copyspec.pipelines.") or any(word in name for word in TOKEN_BY_TOKEN):
            continue
        source = path.read_text()
        named = {
            alias.name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and node.module == "copyspec"
            for alias in node.names
        }
        if named & ENGINE_NAMES or any(f"{other}.".startswith(OF_ENGINES) for other in imports(name, source)):
            knows.add(name)
    assert knows == IN_PROCESS


def test_tests_and_benchmarks_share_only_the_kit() -> None:
    """Only tests of benchmarks import benchmarks, and nothing imports tests but tests."""
    forbidden = {"tests": "benchmarks", **dict.fromkeys(("benchmarks", "docs", "examples", "kit", "training"), "tests")}
    across = [
        f"{path.relative_to(ROOT)} -> {module}"
        for folder, other in forbidden.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != ROOT / "tests" / "benchmarks"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for module in _named_modules(node)
        if module.partition(".")[0] == other
    ]
    assert across == []


def _named_modules(node: ast.AST) -> list[str]:
    """What an import imports, and the strings that may name a module to `import_module`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
        return [str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)]
    return []


ENGINE = ("results", "drafting", "asking", "logits", "running", "engine", "comparison", "aio")
"""The rooms and faces of the engine, from the lowest floor to the highest."""


def test_the_engine_stands_in_rooms() -> None:
    def room(name: str) -> str:
        return name.split(".")[2]

    inside = {name: others for name, others in graph().items() if name.startswith("copyspec.engine.")}
    assert {room(name) for name in inside} == {*ENGINE}
    up = [
        f"{name} -> {other}"
        for name, others in inside.items()
        for other in sorted(others)
        if other in inside and ENGINE.index(room(other)) > ENGINE.index(room(name))
    ]
    assert up == []


TARGETS: dict[str, set[str]] = {
    "base": set(),
    "hooks": {"base"},
    "model": {"hooks"},
    "rows": {"hooks", "model"},
    "selftest": {"base", "hooks", "model"},
    "cpu": {"hooks", "rows"},
    "recurrent": {"cpu", "hooks", "rows"},
    "eager": {"base", "cpu", "hooks", "model", "recurrent", "rows"},
    "static": {"base", "hooks", "model", "recurrent", "rows", "selftest"},
    "dispatch": {"base", "eager", "hooks", "model", "selftest", "static"},
}
"""What the units of `targets/` import of each other, from the lowest floor to the highest. The runners, `eager` and
`static`, do not know each other."""


def test_the_units_of_targets_import_each_other_in_one_direction() -> None:
    def unit(name: str) -> str:
        return name.split(".")[2]

    inside = {name: others for name, others in graph().items() if name.startswith("copyspec.targets.")}
    arrows: dict[str, set[str]] = {unit(name): set() for name in inside}
    for name, others in inside.items():
        arrows[unit(name)] |= {unit(other) for other in others if other in inside} - {unit(name)}
    assert arrows == TARGETS
    floors: dict[str, int] = {}
    for name, below in TARGETS.items():  # a KeyError: it imports one that stands above it
        floors[name] = 1 + max((floors[other] for other in below), default=0)
    assert len(TARGETS) <= 12 and max(floors.values()) <= 8


def test_no_file_lies_loose() -> None:
    """Beside what all rooms speak of, `copyspec/` holds rooms only."""
    loose = {path.stem for path in (ROOT / "copyspec").glob("*.py")}
    assert loose == {"__init__", "__main__", "api", "budget", "options", "sources", "tree"}


def test_no_page_or_message_installs_copyspec_from_an_index() -> None:
    """It is on none; `common.extras` says how an extra is installed."""
    pages = []
    for folder in ("copyspec", "retrievers", "pipelines", "benchmarks", "training", "docs", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".ipynb") and "__pycache__" not in path.parts:
                pages += [str(path)] * bool(re.search(r"pip install [\"']?copyspec\b", path.read_text("utf-8")))
    assert not pages and not re.search(r"pip install [\"']?copyspec\b", (ROOT / "README.md").read_text("utf-8"))
