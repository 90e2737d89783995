"""Options of passes with static shapes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

Runner = Literal["eager", "static", "graph", "compiled", "compiled graph"]
"""How a pass is run: by the model with dynamic shapes ("eager"), by the static program operator by operator, by
replaying a captured program, and the last two with the program compiled."""


class CapturedGraph(Protocol):
    """Records the operations run inside its `capture` context; `replay` repeats them on the same memory."""

    def capture(self) -> AbstractContextManager[object]: ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """When and how a model's forward passes use static shapes. Outputs differ by rounding at most; `exact` removes the
    rounding differences between passes of different shapes."""

    use: Literal["auto", "always", "never"] = "auto"
    """`"auto"`: static passes on CUDA devices only, where they take a half or less of the time (docs/gpu.md)."""

    attention: Literal["auto", "masks", "tree"] = "auto"
    """`"tree"`: this project's own attention, without a mask over the whole context; a Triton kernel on CUDA. `"auto"`:
    that on CUDA devices where Triton runs, except with `exact` or `compile`."""

    fuse: bool = True  # run what is between the products of Llama-like layers in few kernels (not with `compile`)
    graphs: bool | None = None  # capture programs and replay them; None: on CUDA devices
    compile: bool = False  # compile the program with torch.compile: minutes for the first passes, then fewer kernels
    exact: bool = False  # one shape for all passes: half-precision outputs equal those of plain decoding in exact mode
    new_graph: Callable[[], CapturedGraph] | None = None  # creates graphs; lets tests capture on a CPU
    compiler: str = "inductor"  # torch.compile's backend

    def verify(self) -> None:
        """Raise ValueError with the option, its value and the valid values."""
        if self.use not in ("auto", "always", "never"):
            raise ValueError(f'use must be "auto", "always" or "never", got {self.use!r}')
        if self.attention not in ("auto", "masks", "tree"):
            raise ValueError(f'attention must be "auto", "masks" or "tree", got {self.attention!r}')
        given = {name: "True" for name in ("graphs", "compile", "exact") if getattr(self, name)}
        given |= {"attention": f'"{self.attention}"'} if self.attention != "auto" else {}
        for name, value in given.items():
            if self.use == "never":
                raise ValueError(f'{name}={value} needs static passes: give use="auto" or use="always" too')
