"""Whether a model's folder can run code, ask, hang, take the memory or fail without saying why.

    python -m benchmarks.hostile.models --count 100000 --json benchmarks/results/hostile_models.json

Each case is a folder that is hostile or damaged (`hostile_model_kinds`, `hostile_model_texts`) and a way in: the
functions, commands and classes that load a model. It runs in a process of its own with limits of memory and time,
with "y" on stdin, and with a hook that sees which files are opened. What a case may end in: `worked`, or `refused`
with an error that copyspec raises itself, a ValueError or an OSError of one line. Everything else is a failure:
`executed` (code of the folder ran), `asked` (stdin was read, or a question shown), `outside` (a file was opened that
the folder names and does not hold), `raw` (another error), `hang`, `memory`, `crash`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.hostile.entrances import ENTRANCES, READS_STDIN, Place, Refused
from benchmarks.hostile.kinds import Change, code, files, some_of_each, weights
from benchmarks.hostile.numbers import flips, numbers
from benchmarks.hostile.texts import templates, tokenizers

SECONDS, MEMORY = 30.0, 3 << 30  # of a case; memory beyond what the parent has
ASKED = b"y\ny\nHe go home.\n"
OWN = tuple(str(Path(__file__).parent.parent.parent / name) for name in ("copyspec", "retrievers", "pipelines"))
FAILURES = ("executed", "asked", "outside", "raw", "hang", "memory", "crash")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a case ended."""

    kind: str
    entrance: str
    outcome: str
    said: str
    seconds: float


def honest(folder: Path) -> None:
    """A tiny model with a tokenizer of bytes and a chat template, as a folder."""
    tiny: Any = import_module("tests.helpers.tiny")  # which is not type-checked
    tiny.tiny_model().save_pretrained(folder)
    tiny.tiny_tokenizer().save_pretrained(folder)


def kinds(flipped: int) -> list[tuple[str, Change]]:
    """All kinds of hostile folders."""
    return list(chain(code(), weights(), files(), templates(), tokenizers(), numbers(), flips(flipped)))


class Bench:
    """Runs cases in a temporary folder, with a hub's cache of its own."""

    def __init__(self, root: Path, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self.root, self.seconds, self.memory = root, seconds, memory
        self.good, self.number = root / "good", 0
        honest(self.good)
        (root / "outside").mkdir()

    def run(self, kind: str, change: Change, entrance: str) -> Ending:
        """One case, in a process of its own."""
        self.number += 1
        place = self._place(change)
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
        return Ending(kind, entrance, outcome, why.strip(), round(time.monotonic() - started, 2))

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
        """The child's status or signal; None where it had to be killed."""
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
    """Runs an entrance and writes how it ended; never returns."""
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
    """The surroundings of the cases; before transformers is imported."""
    os.environ.update(HF_HOME=str(root / "hf"), HF_HUB_CACHE=str(root / "hf" / "hub"), HF_HUB_OFFLINE="1")
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")


def load_libraries(entrances: Sequence[str]) -> None:
    """Once for all cases, which are forked from here."""
    import torch
    import transformers.models.auto.modeling_auto
    import transformers.models.llama.modeling_llama  # noqa: F401

    import copyspec.api
    import copyspec.retrievers

    if "langchain" in entrances:
        import copyspec.pipelines.langchain  # noqa: F401
    torch.set_num_threads(1)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    endings: list[Ending] = []
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        load_libraries(options.entrances)
        bench = Bench(Path(name), options.seconds)
        found = [each for each in kinds(options.flips) if options.only in each[0]]
        for kind, change in some_of_each(found, options.count, options.seed):
            for entrance in options.entrances:
                ending = bench.run(kind, change, entrance)
                endings.append(ending)
                if ending.outcome in FAILURES or options.verbose:
                    print(f"{ending.outcome:<9}{ending.entrance:<14}{ending.kind}: {ending.said[:300]}", flush=True)
    print(_table(endings))
    if options.json:
        failed = [asdict(each) for each in endings if each.outcome in FAILURES]
        report = {"cases": len(endings), "outcomes": Counter(each.outcome for each in endings), "failed": failed}
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return int(any(each.outcome in FAILURES for each in endings))


def _table(endings: Sequence[Ending]) -> str:
    columns = ("worked", "refused", *FAILURES)
    rows = ["".join([f"{'entrance':<16}", *(f"{column:>10}" for column in columns)])]
    for entrance in [*dict.fromkeys(each.entrance for each in endings), "all"]:
        counted = Counter(each.outcome for each in endings if entrance in (each.entrance, "all"))
        rows.append("".join([f"{entrance:<16}", *(f"{counted[column]:>10}" for column in columns)]))
    slowest = max(endings, key=lambda each: each.seconds, default=None)
    if slowest is not None:
        rows.append(f"slowest: {slowest.seconds:g} s, {slowest.entrance}, {slowest.kind}")
    return "\n".join(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hostile.models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--count", type=int, default=40, help="kinds of folders, drawn from all (default: %(default)s)")
    add("--flips", type=int, default=100, help="folders with random bytes among them (default: %(default)s)")
    add("--only", default="", help="kinds whose name holds this")
    add("--entrances", type=lambda value: value.split(","), default=list(ENTRANCES), help="default: all")
    add("--seconds", type=float, default=SECONDS, help="of a case (default: %(default)s)")
    add("--seed", type=int, default=0)
    add("--verbose", action="store_true", help="show every case")
    add("--json", help="file for the report")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
