"""Types of the compiled module `_linear` (`native/linear.c`)."""

from typing import Any

from numpy.typing import NDArray

VERSION: int

def linear(
    y: int,
    x: int,
    rows: int,
    format: str,
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    threads: int,
    apart: int,
) -> None: ...
def pack(packed: NDArray[Any], weight: NDArray[Any]) -> bool: ...
def holds(packed: NDArray[Any], weight: NDArray[Any]) -> bool: ...
def packs(format: str) -> bool: ...
def lacks_palettes() -> bool: ...
def instructions(format: str) -> str: ...
