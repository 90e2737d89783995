"""Types of the compiled module `_linear` (`native/linear.c`)."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

LayerParts = tuple[Sequence[object], Sequence[object], tuple[int, int, int, float], tuple[int, int, int, bool]]
"""Products, norms, sizes and rotary positions."""

AttentionCache = tuple[int, int, int, float, NDArray[Any], NDArray[Any], NDArray[Any], int]
"""Keys, values, slots, the factor of scores, places, starts, paths, and registers of sums."""

VERSION: int

def linear(
    y: int,
    x: int,
    rows: int,
    format: str,
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    threads: int,
    k_block: int,
) -> None: ...
def layer(
    y: int,
    x: int,
    batch: int,
    columns: int,
    parts: LayerParts,
    scaling: float,
    cache: tuple[int, int, int, int, int, NDArray[Any] | None],
    mask: tuple[int, bool] | None,
    threads: int,
) -> None: ...
def half_layer(
    y: int,
    x: int,
    attended: int,
    batch: int,
    columns: int,
    parts: LayerParts,
    k_block: int,
    silu: NDArray[Any],
    threads: int,
) -> None: ...
def bfloat16_layer(
    y: int,
    x: int,
    batch: int,
    columns: int,
    parts: LayerParts,
    k_block: int,
    silu: NDArray[Any],
    cache: AttentionCache,
    threads: int,
) -> None: ...
def attention(
    outputs: int, queries: int, heads: tuple[int, int, int, int], cache: AttentionCache, threads: int
) -> None: ...
def attends() -> bool: ...
def pack(packed: NDArray[Any], weight: NDArray[Any]) -> bool: ...
def holds(packed: NDArray[Any], weight: NDArray[Any]) -> bool: ...
def packs(format: str) -> bool: ...
def lacks_palettes() -> bool: ...
def instructions(format: str) -> str: ...
