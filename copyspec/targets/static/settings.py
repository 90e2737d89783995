"""What may be chosen about static passes, and the sizes that they come in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

Runner = Literal["eager", "static", "graph", "compiled", "compiled graph"]
"""How passes are made: by today's operators and shapes, by the static program operator by operator, by replaying a
captured program, and the last two with the program compiled."""

NODE_BUCKETS = (1, 9, 17, 33, 65, 129)
"""Columns of a pass, root included. A pass reads all weights whatever its columns, up to about 180 columns on a GPU."""

MIN_SLOTS = 512
"""Key slots that the smallest program attends to; larger ones see this times a power of two."""

MAX_GRAPHS = 12
"""Captured programs that are alive at once; the one that was not used for longest makes room."""

WARM_PASSES = 2
"""Passes of one shape before it is captured: many shapes are seen once."""

EXACT_NODES = 33
"""Columns of every pass in exact mode, plain ones too."""


class CapturedGraph(Protocol):
    """Records what is run inside its context; `replay` repeats it on the same memory."""

    def capture(self) -> AbstractContextManager[object]: ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """When and how a model's passes have static shapes. None of it changes what is decoded but `exact`, which takes
    away the rounding that depends on the shape of a pass."""

    use: Literal["auto", "always", "never"] = "auto"  # auto: on CUDA devices
    graphs: bool | None = None  # capture and replay; None: on CUDA devices
    compile: bool = False  # the whole program by torch.compile: minutes for the first passes, then fewer kernels
    exact: bool = False  # always one shape: outputs in half precision equal those of plain decoding in exact mode
    new_graph: Callable[[], CapturedGraph] | None = None  # tests capture on a CPU
    compiler: str = "inductor"  # torch.compile's backend

    def verify(self) -> None:
        """Raises ValueError that names the option, its value and what it may be."""
        if self.use not in ("auto", "always", "never"):
            raise ValueError(f'use must be "auto", "always" or "never", got {self.use!r}')


def row_bucket(rows: int) -> int:
    """The next power of two."""
    return 1 << (rows - 1).bit_length()


def node_bucket(columns: int) -> int:
    """The smallest number of columns that holds so many."""
    most = NODE_BUCKETS[-1]
    beyond = -(-(columns - 1) // (most - 1)) * (most - 1) + 1
    return next((bucket for bucket in NODE_BUCKETS if columns <= bucket), beyond)


def slot_bucket(slots: int) -> int:
    """MIN_SLOTS times a power of two, at least `slots`."""
    bucket = MIN_SLOTS
    while bucket < slots:
        bucket *= 2
    return bucket
