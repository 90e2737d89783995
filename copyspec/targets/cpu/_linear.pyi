"""Types of the compiled module `_linear` (`native/linear.c`)."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

LayerParts = tuple[Sequence[object], Sequence[object], tuple[int, int, int, float], tuple[int, int, int]]
"""Products, norms, sizes and rotary positions."""

VERSION: int

def linear(y: int, x: int, rows: int, weight: NDArray[Any], bias: NDArray[Any] | None, threads: int) -> None: ...
def layer(
    y: int,
    x: int,
    tokens: int,
    parts: LayerParts,
    scaling: float,
    rows: NDArray[Any],
    threads: int,
) -> None: ...
def pack(packed: NDArray[Any], weight: NDArray[Any]) -> bool: ...
def holds(packed: NDArray[Any], weight: NDArray[Any]) -> bool: ...
def lacks_palettes() -> bool: ...
def instructions() -> str: ...
