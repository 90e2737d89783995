"""Options for forward passes with static shapes (docs/gpu.md)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

Runner = Literal["eager", "static", "graph", "compiled", "compiled graph"]
"""How passes run: "eager", with dynamic shapes; "static", the static program operator by operator; "graph", replaying a
captured CUDA graph; and the last two with the program compiled."""


class CapturedGraph(Protocol):
    """Records the operations run in its context; `replay` repeats them on the same memory."""

    def capture(self) -> AbstractContextManager[object]: ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """When and how forward passes have static shapes. Only `exact` affects the output: it removes the rounding that
    depends on the shape of a pass."""

    use: Literal["auto", "always", "never"] = "never"
    """`"auto"`: on CUDA devices. Not the default as long as no GPU has run it (docs/gpu.md)."""

    attention: Literal["masks", "tree"] = "masks"
    """`"tree"`: this project's own tree attention, which needs no mask over the whole context; a Triton kernel on
    CUDA."""

    graphs: bool | None = None  # capture and replay CUDA graphs; None: on CUDA devices
    compile: bool = False  # use torch.compile: minutes for the first passes, then fewer kernels
    exact: bool = False  # one shape for all passes: half-precision outputs equal those of plain decoding in exact mode
    new_graph: Callable[[], CapturedGraph] | None = None  # for tests, which capture on a CPU
    compiler: str = "inductor"  # torch.compile's backend

    def verify(self) -> None:
        """Raise ValueError naming the option, its value and what is allowed."""
        if self.use not in ("auto", "always", "never"):
            raise ValueError(f'use must be "auto", "always" or "never", got {self.use!r}')
        if self.attention not in ("masks", "tree"):
            raise ValueError(f'attention must be "masks" or "tree", got {self.attention!r}')
        given = {name: "True" for name in ("graphs", "compile", "exact") if getattr(self, name)}
        given |= {"attention": '"tree"'} if self.attention == "tree" else {}
        for name, value in given.items():
            if self.use == "never":
                raise ValueError(f'{name}={value} is a way of static passes: give use="auto" or use="always" too')
