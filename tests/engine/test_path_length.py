"""Counts the functions that a reader follows from `copyspec.generate` to the first forward pass, and between two
passes.

The bar is 90 functions in 20 files before the first forward pass and 60 functions between two passes. The numbers below
are the present ones and may only decrease. Time is simulated, because decisions depend on measured times. Counted are
named functions of copyspec (no lambdas or comprehensions), each once, in a second call, since the first call also sets
up the model: the one in the package, on one of torch's threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import copyspec
from copyspec import api
from copyspec.drafters.copying import native_module
from copyspec.engine.running import threads
from copyspec.tree import COMPILED

ROOT = Path(copyspec.__file__).parent
TEXT = "Next year we wants to sail to the the islands. The childrens have already drawn a map of the place."
OTHER = "He have went to the store yesterday and buyed some apples."

Function = tuple[str, str]  # file, name


class Clock:
    """Simulated seconds: a forward pass takes a hundred times as long as the time between two readings."""

    FORWARD, READING = 0.01, 0.0001

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.READING
        return self.now


class Passes:
    """The functions entered before each forward pass of the model, and after the last one."""

    def __init__(self, clock: Clock) -> None:
        self.segments: list[set[Function]] = [set()]
        self._clock = clock
        self._is_inside = False

    @contextmanager
    def counted(self, model: object) -> Iterator[None]:
        forward = model.forward  # type: ignore[attr-defined]

        def passed(*arguments: object, **options: object) -> object:
            self._is_inside = True
            try:
                return forward(*arguments, **options)
            finally:
                self._is_inside = False
                self._clock.now += Clock.FORWARD
                self.segments.append(set())

        model.forward = passed  # type: ignore[attr-defined]
        before = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(before[0])
            threading.setprofile(before[1])
            del model.forward  # type: ignore[attr-defined]

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not self._is_inside and not code.co_name.startswith("<"):
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT):
                # The first line distinguishes methods of the same name.
                self.segments[-1].add((str(path.relative_to(ROOT)), f"{code.co_name}:{code.co_firstlineno}"))


def files(functions: set[Function]) -> set[str]:
    return {file for file, _ in functions}


def drafter(functions: set[Function]) -> set[Function]:
    return {function for function in functions if function[0].startswith("drafters")}


@pytest.mark.skipif(native_module.COMPILED is None or COMPILED is None, reason="counts the compiled path")
@pytest.mark.parametrize(
    ("edits", "first", "between", "outside"),
    [(True, (83, 20), 58, 43), (False, (60, 17), 26, 26)],
    ids=["edits", "no drafts"],
)
def test_functions_on_the_way(
    edits: bool, first: tuple[int, int], between: int, outside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`first`: functions and files before the first forward pass. `between`: functions between two passes; `outside`:
    those of them outside the drafter."""

    def generate(text: str) -> None:
        source = text if edits else None
        copyspec.generate(
            f"Correct the grammar: {text}",
            edit_source=source,
            drafter="auto" if edits else "none",
            max_new_tokens=24,
        )

    # A new engine, because the functions called depend on what an engine has measured and cached.
    monkeypatch.setattr(api._STATE, "registry", api.Registry())
    engine, clock = copyspec.load(), Clock()
    engine._costs.clock = clock
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(threads, name, clock)
    passes = Passes(clock)
    with passes.counted(engine.model):
        generate(OTHER)
        passes.segments = [set()]
        generate(TEXT)
    before, *rest, _ = passes.segments
    assert rest
    counts = (
        (len(before), len(files(before))),
        max(map(len, rest)),
        max(len(functions - drafter(functions)) for functions in rest),
    )
    assert counts[0] <= first and counts[0][1] <= first[1], sorted(before)
    assert counts[1] <= between and counts[2] <= outside, max(map(sorted, rest), key=len)
