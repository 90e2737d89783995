"""The array of a static pass: C against Python, and what C refuses."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.targets.static.layout import PagedRow, Shape, lay_out, split_parts
from copyspec.targets.static.settings import EXACT_SPLIT, PAGE, SPLIT, size_of
from copyspec.tree import COMPILED, DraftTree

rows = st.lists(
    st.tuples(
        st.integers(0, 3000),  # cached
        st.lists(st.integers(0, 99), min_size=1, max_size=70),
        st.lists(st.integers(-1, 200), max_size=70),  # parents, of which those beyond their nodes are the node before
        st.integers(0, 9),
    )
    | st.tuples(st.integers(0, 3000), st.just([]), st.just([]), st.just(0)),  # it takes no part in the pass
    min_size=1,
    max_size=9,
)


def tree_of(parents: list[int]) -> DraftTree:
    return DraftTree([7 + node for node in range(len(parents))], [min(p, n - 1) for n, p in enumerate(parents)])


@settings(deadline=None)
@given(rows, st.booleans(), st.integers(1, 32), st.lists(st.lists(st.integers(0, 99), max_size=8), max_size=3))
@pytest.mark.skipif(COMPILED is None, reason="not compiled")
def test_compiled_equals_python(
    batch: list[tuple[int, list[int], list[int], int]], ordered: bool, tile: int, paths: list[list[int]]
) -> None:
    trees = [tree_of(parents) for _, _, parents, _ in batch]
    total = sum(len(ids) + len(tree) for (_, ids, _, _), tree in zip(batch, trees, strict=True))
    most = max(start + len(ids) + len(tree) for (start, ids, _, _), tree in zip(batch, trees, strict=True))
    moves = sum(node != place for path in paths for place, node in enumerate(path))
    size = max(8, size_of(max(total, moves)))
    shape = Shape.of(size, size, most_slots=most * ordered, ordered=ordered)
    paged, first = [], 1
    for number, ((start, ids, _, spare), tree) in enumerate(zip(batch, trees, strict=True)):
        pages = -(-(start + len(ids) + len(tree)) // PAGE) + spare % 2
        paged.append(PagedRow(number, list(range(first, first + pages))))
        first += pages + 1
    moved = [PagedRow(0, [first, 7, first + 1, 9], path, 3 * place) for place, path in enumerate(paths)]
    starts, uncached = [start for start, *_ in batch], [ids for _, ids, _, _ in batch]
    scored = [min(spare, len(ids) + len(tree)) for (_, ids, _, spare), tree in zip(batch, trees, strict=True)]
    rest: Any = (starts, paged, uncached, trees, scored, moved, 77, 1 if ordered else tile, EXACT_SPLIT * ordered)
    arrays = [np.full(sum(shape.parts), 5), np.full(sum(shape.parts), 5)]
    lay_out(arrays[0], shape, *rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("copyspec.targets.static.layout.COMPILED", None)
        lay_out(arrays[1], shape, *rest)
    for one, other in zip(*[split_parts(array, shape) for array in arrays], strict=True):
        if one.ndim == 1 and len(one) > shape.scored:
            one, other = one[: 1 + 5 * one[0]], other[: 1 + 5 * other[0]]  # what is behind the units is not read
        np.testing.assert_array_equal(one, other)
    *_, units = split_parts(arrays[0], shape)
    work = units[1 : 1 + 5 * units[0]].reshape(-1, 5)
    assert sum(work[:, 1]) <= shape.units and [*accumulate(work[:, 1], initial=0)][:-1] == work[:, 4].tolist()
    assert (work[:, 3] > work[:, 2]).all() and (work[:, 3] - work[:, 2] >= 1).all()


@pytest.mark.skipif(COMPILED is None, reason="not compiled")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", np.zeros(9, np.int64)),
        ("tokens", 0),
        ("tokens", 4),
        ("tokens", 2**62),
        ("moves", -1),
        ("scored", 9),
        ("units", 2),
        ("starts", [-1]),
        ("starts", [2**63 - 1]),
        ("starts", [63, 64]),
        ("numbers", [None]),
        ("pages", [[]]),
        ("pages", [["a"]]),
        ("uncached", [[]]),  # and nodes
        ("uncached", [[1] * 9]),
        ("nodes", [[1, 2, 3]]),
        ("parents", [[-1, 1]]),
        ("parents", [[-2, 0]]),
        ("counts", [9]),
        ("counts", [-1]),
        ("moved_pages", [[]]),
        ("paths", [[1, 0] * 5]),
        ("paths", [[300]]),
        ("paths", [[-2]]),
        ("first_slots", [-1]),
        ("first_slots", [2**63 - 1]),
        ("page", 0),
        ("tile", 0),
        ("split", -1),
        ("split", 1),
        ("first_split", 0),
    ],
)
def test_compiled_refuses_what_does_not_fit(name: str, value: object) -> None:
    shape = Shape(8, 8, 30)
    sound: dict[str, Any] = {
        "host": np.zeros(sum(shape.parts), np.int64),
        "tokens": 8,
        "moves": 8,
        "scored": 8,
        "units": 30,
        "ordered": False,
        "starts": [63],
        "numbers": [0],
        "pages": [[3, 4]],
        "uncached": [[7]],
        "nodes": [[8, 9]],
        "parents": [[-1, 0]],
        "counts": [3],
        "moved_pages": [[1, 2]],
        "paths": [[1]],
        "first_slots": [62],
        "scratch": 1,
        "page": PAGE,
        "tile": 4,
        "split": 0,
        "first_split": SPLIT,
    }
    assert COMPILED is not None
    COMPILED.lay_out_static(*sound.values())
    with pytest.raises((ValueError, TypeError, OverflowError)):
        COMPILED.lay_out_static(*{**sound, name: value}.values())
