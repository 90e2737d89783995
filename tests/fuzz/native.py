"""A million hostile calls of the compiled module: none may crash, read foreign memory, or differ from growth.py.

    python -m tests.fuzz.native [--calls N] [--seed S] [--module FILE] [--json OUT]

Of six calls one is valid, and some of those are compared with growth.py bit by bit; one meets a failing allocation; one
has tables of another shape; and three are invalid in every way that `tests.fuzz.native_wrong` knows, with
objects that modify the lists containing them while these are read. Calls may raise, but no error that indicates a
corrupted interpreter. With sanitizers, which end the process with a report at the first fault (Linux, gcc):

    gcc -shared -fPIC -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined \
        -ffp-contract=off -I"$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
        copyspec/drafters/copying/native/*.c -o /tmp/growth-sanitized.so
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
        python -m tests.fuzz.native --calls 1000000 --module /tmp/growth-sanitized.so
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from copyspec.drafters.copying import drafter
from kit.reporting import machine, write_json
from tests.fuzz.native_cases import copied, in_python, record, vary
from tests.fuzz.native_traps import TrapError
from tests.fuzz.native_wrong import make_tables, spoil

BASES = 400  # calls recorded from real drafts; all others are derived from them
COMPARED = 20  # one valid call in this many is compared, since Python takes twenty times as long
RAISED = (TypeError, ValueError, IndexError, OverflowError, MemoryError, BufferError, RuntimeError, TrapError)
"""Errors that an invalid call may raise. A valid one may raise only MemoryError, when an allocation fails.

SystemError is not allowed: it means that C code broke a rule of the interpreter."""


@dataclass(slots=True)
class Outcome:
    """Counts of the calls. `faults` describes the failures and must be empty."""

    calls: int = 0
    compared: int = 0
    starved: int = 0  # calls with a failing allocation
    seconds: float = 0.0
    results: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def load(path: Path) -> Any:
    """Load the compiled module from `path`, beside the installed one."""
    loader = ExtensionFileLoader("copyspec.drafters.copying._growth", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def fuzz(module: Any, calls: int, seed: int, start: int = 0) -> Outcome:
    """Make `calls` calls, beginning with number `start`."""
    outcome, started = Outcome(), perf_counter()
    bases = record(Random(seed), module, BASES)
    thresholds, callbacks, hook = gc.get_threshold(), [*gc.callbacks], sys.unraisablehook
    sys.unraisablehook = lambda _: None  # traps may also raise where no caller receives the error
    gc.collect()
    gc.freeze()  # traps trigger many collections; this restricts them to objects created by the calls
    try:
        for number in range(start, start + calls):
            _call(module, Random(f"{seed}:{number}"), bases, number, outcome)
            gc.set_threshold(*thresholds)
            gc.callbacks[:] = callbacks
    finally:
        gc.unfreeze()
        sys.unraisablehook = hook
    outcome.seconds = round(perf_counter() - started, 1)
    return outcome


def _call(module: Any, rng: Random, bases: Sequence[dict[str, Any]], number: int, outcome: Outcome) -> None:
    outcome.calls += 1
    case = copied(rng.choice(bases))
    vary(rng, case)
    kind = rng.choice(["right", "wrong", "wrong", "wrong", "tables", "starved"])
    if kind == "wrong":
        spoil(rng, case, module.grow)
    try:
        if kind == "tables":
            case["tables"] = make_tables(rng, case, module)
        if kind == "starved":
            outcome.starved += 1
            after = rng.choice([rng.randrange(12), rng.randrange(200)])
            _starved(module.make_tables, drafter.CONSTANTS, after)
            result = _starved(module.grow, (*case.values(),), after)
        else:
            result = module.grow(*case.values())
        outcome.results[f"{kind}: {'a tree' if isinstance(result, tuple) else type(result).__name__}"] += 1
    except Exception as error:
        outcome.results[f"{kind}: {type(error).__name__}"] += 1
        if kind in ("right", "starved") or not isinstance(error, RAISED):
            outcome.faults.append(f"call {number} ({kind}): {error!r}")
        return
    if kind == "right" and number % COMPARED == 0:
        outcome.compared += 1
        expected = in_python(case)
        if result != expected:
            outcome.faults.append(f"call {number}: {result} instead of {expected}")


def _starved(function: Callable[..., object], arguments: Sequence[object], after: int) -> object:
    """Call `function` with its allocation number `after` failing; return its result or MemoryError."""
    try:
        hooks = import_module("_testcapi")
    except ImportError:  # not every Python has this module
        return function(*arguments)
    hooks.set_nomemory(after, after + 1)
    try:
        return function(*arguments)
    except MemoryError as error:
        return error
    finally:
        hooks.remove_mem_hooks()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz.native", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first call")
    parser.add_argument("--module", type=Path, help="path of a compiled module (default: the installed one)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    try:
        module = load(options.module) if options.module else import_module("copyspec.drafters.copying._growth")
    except ImportError as error:
        print(f"tests.fuzz.native: {error}", file=sys.stderr)
        return 2
    outcome = fuzz(module, options.calls, options.seed, options.start)
    for result, times in sorted(outcome.results.items()):
        print(f"{result:<24}{times:>10,}")
    for fault in outcome.faults[:20]:
        print(fault[:2000])
    print(
        f"{outcome.calls:,} calls in {outcome.seconds:.0f} s, {outcome.compared:,} compared with Python, "
        f"{outcome.starved:,} short of memory: {len(outcome.faults)} faults"
    )
    if options.json:
        # Before Python 3.12, `asdict` of a Counter counts its pairs.
        report = {**asdict(replace(outcome, results=Counter())), "results": dict(outcome.results)}
        write_json(options.json, {"machine": machine(), "seed": options.seed, **report})
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
