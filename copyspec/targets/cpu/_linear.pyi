"""The compiled module `_linear` (`native/linear.c`): types and documentation. Numbers are float32."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

LayerParts = tuple[Sequence[object], Sequence[object], tuple[int, int, int, float], tuple[int, int, int]]
"""Products: (weight, bias) of queries, keys, values, output, gate, up and down; norms: weights of the two RMSNorms, and
those of queries and keys or None; sizes: heads, key heads, head size, epsilon; rotary positions: address of cosines, of
sines, rotary_dim."""

VERSION: int

def linear(y: int, x: int, rows: int, weight: NDArray[Any], bias: NDArray[Any] | None, threads: int) -> None:
    """Write x W^T + b, [rows, n], to the address y; x: the address of [rows, k]. `weight` may be packed."""

def layer(y: int, x: int, tokens: int, parts: LayerParts, scaling: float, rows: NDArray[Any], threads: int) -> None:
    """Write the output of a Llama-style decoder layer, [tokens, hidden], to the address y; x: the address of its input.
    `rows`: int64 [B, 7]: first token, address of keys, of values, capacity, slots before the pass, slots after it,
    address of a mask [tokens of the row, slots] or 0."""

def pack(packed: NDArray[Any], weight: NDArray[Any]) -> bool:
    """Write weights, [n, k], into packed, [n, k / 2] of uint32; False if one of them is no bfloat16."""

def holds(packed: NDArray[Any], weight: NDArray[Any]) -> bool:
    """Whether packed still holds weight, judged by some of its numbers."""

def lacks_palettes() -> bool:
    """Whether this processor announces AMX tiles without a palette, so that their use is fatal."""

def instructions() -> str:
    """Those of this processor that are used; "" where it has none."""
