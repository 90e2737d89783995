"""Runs the code blocks of the documentation, for the tests and for the site, which shows what they print.

Python blocks and `copyspec` commands run in this process, so that a model is loaded only once. Blocks fenced as
`python` run in order; those of one page share a namespace. Of `sh` blocks, the lines that are copyspec commands run.
Blocks fenced as `py` or `text` need a server, a GPU or the like, and do not run.
"""

from __future__ import annotations

import ast
import gc
import io
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

# The bundled model, no network and one thread, which is reproducible on any machine.
ENVIRONMENT = {"COPYSPEC_MODEL": "default", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:(?P<feed>.+) \| )?copyspec (?P<arguments>.*?)(?P<may_fail> \|\| true)?$")


class BlockError(RuntimeError):
    """A block of the documentation failed."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    code: str
    start: int  # in characters from the start of the page
    end: int


def blocks(text: str, language: str = "") -> list[Block]:
    """Return the fenced blocks of a page, of one language or of all."""
    fenced = [Block(match[1], match[2], match.start(), match.end()) for match in _FENCE.finditer(text)]
    return [block for block in fenced if language in ("", block.language)]


def commands(block: Block) -> list[str]:
    """Return the lines of a block that run: copyspec commands, and copies of files that they need. Comments are
    removed."""
    lines = [line.partition(" #")[0].strip() for line in block.code.splitlines()]
    own = [line for line in lines if _COMMAND.match(line)]
    return [line for line in lines if line in own or line.startswith("cp ")] if own else []


def run_python(text: str, name: str) -> Iterator[tuple[Block, str]]:
    """Run the Python blocks of `text` in order; yield each with its printed output. Raises the block's own
    exceptions."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text, "python"):
        line = text.count("\n", 0, block.start) + 1
        code = compile("\n" * line + block.code, name, "exec")
        with captured() as streams:
            exec(code, namespace)
        yield block, streams.out()
    with captured():  # otherwise the program would warn at exit about open files
        namespace.clear()
        gc.collect()


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a notebook: its text and, for code, its printed output and the HTML of its last value."""

    is_code: bool
    source: str
    printed: str = ""
    html: str = ""


def run_notebook(path: Path) -> Iterator[Cell]:
    """Run the cells of a notebook in order in one namespace, without Jupyter. Raises the exceptions of their code."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            yield Cell(False, source)
            continue
        tree = ast.parse(source, str(path))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        value: object = None
        with captured() as streams:
            exec(compile(tree, str(path), "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), str(path), "eval"), namespace)
            show = getattr(value, "_repr_html_", None)
            html = str(show()) if show is not None else ""
        printed = streams.out() + (f"{value!r}\n" if value is not None and not html else "")
        yield Cell(True, source, printed, html)


def run_commands(block: Block, scratch: Path) -> Iterator[tuple[str, str, str]]:
    """Run each command of a block; yield it with its stdout and stderr. `/tmp/` is replaced by `scratch`.

    Raises BlockError if a command fails that does not end in `|| true`.
    """
    from copyspec.cli import main

    for command in commands(block):
        moved = command.replace("/tmp/", f"{scratch}/")
        match = _COMMAND.match(moved)
        if match is None:
            subprocess.run(moved, shell=True, cwd=ROOT, check=True, timeout=60)
            continue
        feed = b""
        if match["feed"]:
            feed = subprocess.run(match["feed"], shell=True, capture_output=True, check=True, timeout=60).stdout
        with captured(feed) as streams:
            status = main(shlex.split(match["arguments"]))
        if status and not match["may_fail"]:
            raise BlockError(f"{command}: exit status {status}\n{streams.err()}")
        yield command, streams.out(), streams.err()


class _Streams:
    """Stands in for the standard streams of a program without a terminal."""

    def __init__(self, feed: bytes) -> None:
        self.input = io.TextIOWrapper(io.BytesIO(feed), encoding="utf-8")
        self.output, self.errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))

    def out(self) -> str:
        return _written(self.output)

    def err(self) -> str:
        return _written(self.errors)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode("utf-8", "replace")


@contextmanager
def captured(feed: bytes = b"") -> Iterator[_Streams]:
    """Isolate standard streams, warnings, working directory and environment while the context is active."""
    streams, before = _Streams(feed), (sys.stdin, sys.stdout, sys.stderr)
    folder = Path.cwd()
    sys.stdin, sys.stdout, sys.stderr = streams.input, streams.output, streams.errors
    os.chdir(ROOT)
    try:
        with warnings.catch_warnings(), _environment({**ENVIRONMENT, "COLUMNS": "80"}):
            warnings.simplefilter("default")
            for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                warnings.simplefilter("ignore", hidden)
            yield streams
    finally:
        os.chdir(folder)
        sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
