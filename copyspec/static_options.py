"""When and how a model's passes have static shapes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

Runner = Literal["eager", "static", "graph", "compiled", "compiled graph"]
"""How passes are made: by today's operators and shapes, by the static program operator by operator, by replaying a
captured program, and the last two with the program compiled."""


class CapturedGraph(Protocol):
    """Records what is run inside its context; `replay` repeats it on the same memory."""

    def capture(self) -> AbstractContextManager[object]: ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """When and how a model's passes have static shapes. None of it changes what is decoded but `exact`, which takes
    away the rounding that depends on the shape of a pass."""

    use: Literal["auto", "always", "never"] = "never"
    """`"auto"`: on CUDA devices. Not the default as long as no GPU has run it (docs/gpu.md)."""

    attention: Literal["masks", "tree"] = "masks"
    """`"tree"`: an attention of this project's own, without a mask as long as the context; a Triton kernel on CUDA."""

    graphs: bool | None = None  # capture and replay; None: on CUDA devices
    compile: bool = False  # the whole program by torch.compile: minutes for the first passes, then fewer kernels
    exact: bool = False  # always one shape: outputs in half precision equal those of plain decoding in exact mode
    new_graph: Callable[[], CapturedGraph] | None = None  # tests capture on a CPU
    compiler: str = "inductor"  # torch.compile's backend

    def verify(self) -> None:
        """Raises ValueError that names the option, its value and what it may be."""
        if self.use not in ("auto", "always", "never"):
            raise ValueError(f'use must be "auto", "always" or "never", got {self.use!r}')
        if self.attention not in ("masks", "tree"):
            raise ValueError(f'attention must be "masks" or "tree", got {self.attention!r}')
        given = {name: "True" for name in ("graphs", "compile", "exact") if getattr(self, name)}
        given |= {"attention": '"tree"'} if self.attention == "tree" else {}
        for name, value in given.items():
            if self.use == "never":
                raise ValueError(f'{name}={value} is a way of static passes: give use="auto" or use="always" too')
