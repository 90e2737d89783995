"""Types of the compiled module `_linear` (`native/linear.c`)."""

from typing import Any

from numpy.typing import NDArray

VERSION: int
MOST_ROWS: int

def linear(
    y: NDArray[Any], x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None, threads: int, apart: int
) -> None: ...
def instructions(format: str) -> str: ...
