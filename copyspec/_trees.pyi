"""Types of the compiled module `_trees` (`native/trees.c`)."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from copyspec.tree import Origin

VERSION: int

def is_sound(
    tokens: Sequence[int],
    parents: Sequence[int],
    scores: Sequence[float],
    origins: Sequence[object],
    drafters: Sequence[object] | None,
    vocab_size: int,
) -> bool: ...
def accepted(tokens: Sequence[int], parents: Sequence[int], picked: Sequence[int]) -> tuple[list[int], list[int]]: ...
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
def lay_out_static(
    host: NDArray[Any],
    tokens: int,
    most_moves: int,
    scored: int,
    most_units: int,
    ordered: bool,
    starts: Sequence[int],
    numbers: Sequence[int],
    pages: Sequence[Sequence[int]],
    uncached: Sequence[Sequence[int]],
    nodes: Sequence[Sequence[int]],
    parents: Sequence[Sequence[int]],
    counts: Sequence[int],
    moved_pages: Sequence[Sequence[int]],
    paths: Sequence[Sequence[int]],
    first_slots: Sequence[int],
    scratch: int,
    page: int,
    tile: int,
    split: int,
    first_split: int,
) -> None: ...
def fit_shared(
    drafts: Sequence[tuple[Sequence[int], Sequence[float], float, int] | None],
    costs: Sequence[float],
    allowed: float,
) -> tuple[int, list[list[int]]]: ...
def in_order(
    tokens: Sequence[int],
    parents: Sequence[int],
    scores: Sequence[float],
    origins: Sequence[Origin | None],
    order: Sequence[int],
) -> tuple[list[int], list[int], list[float], list[Origin | None]]: ...
def record(
    parents: Sequence[int], scores: Sequence[float], path: Sequence[int], decay: float, said: float, right: float
) -> tuple[float, float]: ...
