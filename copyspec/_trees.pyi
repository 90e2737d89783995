"""Types of the compiled module `_trees` (`native/trees.c`)."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

VERSION: int

def is_sound(tokens: Sequence[int], parents: Sequence[int], vocab_size: int) -> bool: ...
def accepted(tokens: Sequence[int], parents: Sequence[int], picked: Sequence[int]) -> list[int]: ...
def lay_out(
    starts: Sequence[int],
    uncached: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    packed: NDArray[Any],
    visible: NDArray[Any],
    mask: NDArray[Any] | None,
    lowest: int,
) -> None: ...
def pack(
    host: NDArray[Any],
    starts: Sequence[int],
    uncached: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    moves: Sequence[Sequence[tuple[int, int]]],
    scratch: int,
) -> None: ...
def fit(
    drafts: Sequence[tuple[Sequence[int], Sequence[float], float, int] | None],
    costs: Sequence[float],
    widest: int,
    limit: int,
    allowed: float,
) -> tuple[int, int, list[list[int]]]: ...
def fit_shared(
    drafts: Sequence[tuple[Sequence[int], Sequence[float], float, int] | None],
    costs: Sequence[float],
    allowed: float,
) -> tuple[int, list[list[int]]]: ...
def record(
    parents: Sequence[int], scores: Sequence[float], path: Sequence[int], decay: float, said: float, right: float
) -> tuple[float, float]: ...
