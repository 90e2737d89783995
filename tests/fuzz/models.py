"""Tests whether a model folder can run code, prompt the user, hang, exhaust memory, or fail without a clear error.

    python -m tests.fuzz.models --count 100000 --json benchmarks/results/hostile_models.json

Each case combines a hostile or damaged folder (`kinds`, `numbers`, `texts`) with a function, command or class that
loads a model (`entrances`). Folders that could run something (code, pickles, files, templates, tokenizers) are tried
with all of these; folders with wrong numbers and bytes alternate between them. A case runs in its own process, forked
after all modules are loaded, with memory and time limits, "y" on stdin, and a hook that sees which files are opened.
Allowed outcomes: `worked`, or `refused` with one of copyspec's own errors, a one-line ValueError or OSError. Everything
else is a failure: `executed` (code of the folder ran), `asked` (stdin was read, or a question shown), `outside` (a file
outside the folder, named by the folder, was opened), `raw` (another error), `hang`, `memory`, `crash`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path

from tests.fuzz.entrances import ENTRANCES, READS_STDIN, Place, Refused
from tests.fuzz.kinds import Change, code, files, some_of_each, weights
from tests.fuzz.models_report import FAILURES, Ending, keep, table
from tests.fuzz.numbers import flips, numbers
from tests.fuzz.texts import templates, tokenizers
from tests.helpers.tiny import tiny_model, tiny_tokenizer

SECONDS, MEMORY = 30.0, 3 << 30  # limits of a case; memory beyond that of the parent
FEW = 10  # for fewer folders, finding out which modules to import takes longer than importing them
ASKED = b"y\ny\nHe go home.\n"
OWN = tuple(str(Path(__file__).parent.parent.parent / name) for name in ("copyspec", "retrievers", "pipelines"))
FAMILIES = ("code", "weights", "files", "templates", "tokenizers", "numbers", "flips")


def honest(folder: Path) -> None:
    """Write a folder with a tiny model, a byte tokenizer and a chat template."""
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of folder, its family, and the entrances to test it with."""

    family: str
    kind: str
    change: Change
    entrances: Sequence[str]


def cases(options: argparse.Namespace) -> list[Case]:
    """Return the cases to run.

    Wrong numbers and bytes fail in the same way while a model is built, so these folders alternate between
    entrances.
    Folders of the other families, which could run something, are tested with every entrance."""
    families: dict[str, Callable[[], Iterator[tuple[str, Change]]]] = {
        "code": code,
        "weights": weights,
        "files": files,
        "templates": templates,
        "tokenizers": tokenizers,
        "numbers": numbers,
        "flips": partial(flips, options.flips),
    }
    listed = [(name, *row) for name in options.families for row in families[name]() if options.only in row[0]]
    chosen = [row[1:] for row in listed]
    if options.count < len(listed):
        chosen = some_of_each(chosen, options.count, options.seed)
    family = {kind: name for name, kind, _ in listed}
    ways, turns = list(options.entrances), cycle(options.entrances)
    listed_cases = []
    for kind, change in chosen:
        in_turn = family[kind] in ("numbers", "flips") and options.turns < len(ways)
        listed_cases.append(Case(family[kind], kind, change, list(islice(turns, options.turns)) if in_turn else ways))
    return listed_cases


class Bench:
    """Runs cases in a temporary folder with its own hub cache."""

    def __init__(self, root: Path, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.root, self.seconds, self.memory = root, seconds, memory
        self.good, self.number = root / "good", 0
        honest(self.good)
        (root / "outside").mkdir()

    def run(self, case: Case, entrance: str) -> Ending:
        """Run one case in its own process."""
        self.number += 1
        place = self._place(case.change)
        canary, said = self._canary, place.scratch / "said"
        read, write = os.pipe()
        os.write(write, ASKED)
        os.close(write)
        started = time.monotonic()
        child = os.fork()
        if not child:
            _child(place, entrance, read, said, self.memory)
        status = self._wait(child)
        left = b"".join(iter(lambda: os.read(read, 1 << 16), b""))
        os.close(read)
        text = said.read_text() if said.exists() else ""
        shown = (place.scratch / "shown").read_bytes() if (place.scratch / "shown").exists() else b""
        outcome, _, why = text.partition("\n")
        if canary.exists():
            outcome = "executed"
        elif b"[y/N]" in shown or (left != ASKED and entrance not in READS_STDIN):
            outcome = "asked"
        elif status is None:
            outcome, why = "hang", f"more than {self.seconds:g} s"
        elif not outcome:
            outcome, why = ("memory" if status == signal.SIGKILL else "crash"), f"status {status}"
        shutil.rmtree(place.scratch)
        return Ending(case.family, case.kind, entrance, outcome, why.strip(), round(time.monotonic() - started, 2))

    def modules(self, entrance: str) -> list[str]:
        """Names of the modules that an entrance imports for an honest model."""
        self.number += 1
        place = self._place(lambda *_: None)
        child = os.fork()
        if not child:
            try:
                with (place.scratch / "shown").open("w") as shown:
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                    os.dup2(shown.fileno(), 1)
                    os.dup2(shown.fileno(), 2)
                    ENTRANCES[entrance](place)
            finally:
                (place.scratch / "modules").write_text("\n".join(sys.modules))
                os._exit(0)
        os.waitpid(child, 0)
        names = (place.scratch / "modules").read_text().splitlines()
        shutil.rmtree(place.scratch)
        return [name for name in names if name not in sys.modules]

    def _place(self, change: Change) -> Place:
        scratch = self.root / f"case{self.number}"
        name = f"evil/model{self.number}"
        snapshots = Path(os.environ["HF_HUB_CACHE"], f"models--{name.replace('/', '--')}")
        folder = scratch / "model"
        scratch.mkdir()
        shutil.copytree(self.good, folder)
        self._canary = scratch / "canary"
        change(folder, self._canary)
        (snapshots / "refs").mkdir(parents=True)
        (snapshots / "snapshots").mkdir()
        (snapshots / "refs" / "main").write_text("0" * 40)
        (snapshots / "snapshots" / ("0" * 40)).symlink_to(folder)
        return Place(folder, self.good, name, scratch)

    def _wait(self, child: int) -> int | None:
        """Return the child's exit status or signal; None if it had to be killed."""
        until = time.monotonic() + self.seconds
        pid_fd = os.pidfd_open(child)
        try:
            ended, _, _ = select.select([pid_fd], [], [], until - time.monotonic())
            if not ended:
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            return None if not ended else os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        finally:
            os.close(pid_fd)


def _child(place: Place, entrance: str, stdin: int, said: Path, memory: int) -> None:
    """Run an entrance and write how it ended. Never returns."""
    opened: list[str] = []

    def watch(event: str, details: tuple[object, ...]) -> None:
        if event == "open" and str(details[0]) in ("/etc/passwd", str(place.scratch / "outside.safetensors")):
            opened.append(str(details[0]))
        if event in ("socket.connect", "subprocess.Popen", "os.system", "os.exec"):
            opened.append(event)

    try:
        os.dup2(stdin, 0)
        sys.stdin = os.fdopen(0, closefd=False)
        shown = os.open(place.scratch / "shown", os.O_CREAT | os.O_WRONLY)
        os.dup2(shown, 1)
        os.dup2(shown, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (pages + memory, pages + memory))
        sys.addaudithook(watch)
        outcome, why = _ending(lambda: ENTRANCES[entrance](place))
        if opened:
            outcome, why = "outside", opened[0]
        sys.stdout.flush()
        sys.stderr.flush()
        said.write_text(f"{outcome}\n{why}")
    finally:
        os._exit(0)


def _ending(run: Callable[[], object]) -> tuple[str, str]:
    try:
        run()
    except Refused:
        sys.stderr.flush()
        said = str(Path("/proc/self/fd/2").read_text(errors="replace")).strip().splitlines()
        return "refused", said[-1] if said else ""
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        own = isinstance(error, (OSError, ValueError)) and where.filename.startswith(OWN)
        if own and len(str(error).splitlines()) == 1:
            return "refused", f"{type(error).__name__}: {error}"
        name = "memory" if isinstance(error, MemoryError) else "raw"
        return name, f"{type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})"
    return "worked", ""


def prepare(root: Path) -> None:
    """Set up the environment of the cases; call before transformers is imported."""
    os.environ.update(HF_HOME=str(root / "hf"), HF_HUB_CACHE=str(root / "hf" / "hub"), HF_HUB_OFFLINE="1")
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")


def load_libraries(bench: Bench, entrances: Sequence[str]) -> None:
    """Import all modules that an honest model needs, once for all cases, which are forked from this process.

    The names come from a child process that tried every entrance, so that nothing has run in this process."""
    import torch

    import copyspec.api  # noqa: F401

    torch.set_num_threads(1)
    for entrance in entrances:
        for name in bench.modules(entrance):
            with contextlib.suppress(Exception):  # some can only be imported by other modules, or not at all
                import_module(name)
    gc.collect()
    gc.freeze()  # memory pages that the collector does not touch remain shared with the cases


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    endings: list[Ending] = []
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        bench = Bench(Path(name), options.seconds)
        chosen = cases(options)
        load_libraries(bench, options.entrances if len(chosen) > FEW else ())
        for case in chosen:
            for entrance in case.entrances:
                ending = bench.run(case, entrance)
                endings.append(ending)
                if ending.outcome in FAILURES or options.verbose:
                    print(f"{ending.outcome:<9}{ending.entrance:<14}{ending.kind}: {ending.said[:300]}", flush=True)
            if options.json:
                keep(options.json, endings, left=len(chosen) - len({ending.kind for ending in endings}))
    print(table(endings))
    return int(any(ending.outcome in FAILURES for ending in endings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--count", type=int, default=40, help="number of kinds of folders, drawn from all (default: %(default)s)")
    add("--flips", type=int, default=100, help="number of folders with random bytes among them (default: %(default)s)")
    add(
        "--families",
        type=lambda value: value.split(","),
        default=list(FAMILIES),
        help="families to test (default: all)",
    )
    add("--only", default="", help="test only kinds whose name contains this")
    add(
        "--entrances",
        type=lambda value: value.split(","),
        default=list(ENTRANCES),
        help="entrances to test (default: all)",
    )
    add(
        "--turns",
        type=int,
        default=2,
        help="number of entrances for a kind with wrong numbers or bytes (default: %(default)s)",
    )
    add("--seconds", type=float, default=SECONDS, help="time limit of a case (default: %(default)s)")
    add("--seed", type=int, default=0)
    add("--verbose", action="store_true", help="print every case")
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
