"""Columns and masks of a pass, against a slow reference that follows every path."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.targets.facts import ModelFacts, read_facts
from copyspec.targets.static import packing
from copyspec.targets.static.packing import FIELDS, words
from copyspec.targets.tree_cache import PAD_SLOT, Columns, _fill, ancestors, lay_out
from copyspec.tree import COMPILED, ROOT, DraftTree
from tests.helpers.tiny import tiny_model


@cache
def facts_by_dtype() -> list[ModelFacts]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    return [read_facts(tiny_model().to(dtype)) for dtype in dtypes]


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, 12)))]
    size = len(parents)
    return DraftTree(list(range(100, 100 + size)), parents, [0.5] * size, [None] * size)


Rows = list[tuple[int, list[int], DraftTree]]
rows = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(1, 50), min_size=1, max_size=6), trees()), min_size=1, max_size=4
)


def reference(start: int, ids: list[int], tree: DraftTree) -> list[tuple[int, int, set[int]]]:
    """Return (token, position, visible slots) of each column of a row, without padding."""
    columns = []
    for index, token in enumerate(ids):
        columns.append((token, start + index, set(range(start + index + 1))))
    behind = start + len(ids)
    for node, token in enumerate(tree.tokens):
        path, ancestor = [], node
        while ancestor != ROOT:
            path.append(behind + ancestor)
            ancestor = tree.parents[ancestor]
        columns.append((token, behind - 1 + len(path), set(range(behind)) | set(path)))
    return columns


@settings(deadline=None)
@given(rows)
def test_against_reference(batch: Rows) -> None:
    columns = lay_out([row[0] for row in batch], [row[1] for row in batch], [row[2] for row in batch])
    assert columns.kept == 1 + max(len(tree) for _, _, tree in batch)
    for row, (start, ids, tree) in enumerate(batch):
        real = [column for column in range(columns.tokens.shape[1]) if columns.slots[row, column] != PAD_SLOT]
        assert real[len(ids) - 1] == columns.tokens.shape[1] - columns.kept
        assert columns.slots[row, real].tolist() == list(range(start, start + len(ids) + len(tree)))
        found = [
            (
                columns.tokens[row, column],
                columns.positions[row, column],
                set(np.nonzero(columns.visible[row, column])[0]),
            )
            for column in real
        ]
        assert found == reference(start, ids, tree)
        assert columns.visible[row].any(axis=-1).all()


@settings(deadline=None)
@given(rows, st.integers(1, 8))
def test_windows_and_chunks_count_positions(batch: Rows, size: int) -> None:
    columns = lay_out([row[0] for row in batch], [row[1] for row in batch], [row[2] for row in batch])
    keys, window, chunk = columns.key_positions(), columns.within_window(size), columns.within_chunk(size)
    for row, column, slot in np.argwhere(columns.visible):
        query, key = columns.positions[row, column], keys[row, slot]
        assert window[row, column, slot] == (query - key < size)
        assert chunk[row, column, slot] == (query // size == key // size)
    assert not (window & ~columns.visible).any() and not (chunk & ~columns.visible).any()


@settings(deadline=None)
@given(trees())
def test_ancestors_include_the_node_itself(tree: DraftTree) -> None:
    on_path, depths = ancestors(tree.parents)
    assert depths == tree.depths()
    assert on_path.shape == (len(tree), len(tree))
    assert [int(row.sum()) for row in on_path] == tree.depths()
    assert on_path.diagonal().all()


@settings(deadline=None)
@given(rows, st.integers(0, 4), st.integers(0, 70), st.data())
@pytest.mark.skipif(COMPILED is None, reason="not compiled")
def test_compiled_equals_python(batch: Rows, more_rows: int, more: int, data: st.DataObject) -> None:
    starts, uncached, trees = [row[0] for row in batch], [row[1] for row in batch], [row[2] for row in batch]
    compiled = lay_out(starts, uncached, trees, width=more, used=more)
    filled = Columns(
        compiled.packed.copy(), compiled.slots.copy(), compiled.visible.copy(), compiled.write, compiled.kept
    )
    _fill(filled, starts, uncached, trees)
    for name in ("packed", "slots", "visible"):
        np.testing.assert_array_equal(getattr(compiled, name), getattr(filled, name))
    for facts in facts_by_dtype():
        mask = lay_out(starts, uncached, trees, width=more, used=more, facts=facts).mask
        expected = facts.additive(torch.from_numpy(compiled.visible[:, None]))
        assert mask is not None and mask.dtype == expected.dtype and torch.equal(mask, expected)
    width = max(len(ids) + len(tree) for ids, tree in zip(uncached, trees, strict=True)) + more
    move = st.tuples(st.integers(0, 99), st.integers(0, 99))
    moves = [data.draw(st.lists(move, max_size=width)) for _ in batch]
    found = np.full((2, FIELDS + words(width), len(batch) + more_rows, width), -7)
    packing.pack(found[0], starts, uncached, trees, moves, 500)
    packing._pack(found[1], starts, uncached, trees, moves, 500)
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.skipif(COMPILED is None, reason="not compiled")
@pytest.mark.parametrize(
    "change",
    [
        {"starts": [-1]},
        {"starts": [2**63 - 1]},
        {"starts": [2]},
        {"starts": []},
        {"uncached": [[]]},
        {"uncached": [[1, 2]]},
        {"uncached": [["a"]]},
        {"uncached": [None]},
        {"tokens": [[1]]},
        {"tokens": [[1, 2, 3]], "parents": [[-1, 0, 0]]},
        {"parents": [[-1, 1]]},
        {"parents": [[-2, 0]]},
        {"uncached_width": 0},
        {"uncached_width": 9},
        {"slots": np.zeros((1, 2), np.int64)},
        {"visible": np.zeros((1, 3, 4), np.float32)},
        {"packed": np.zeros((3, 1, 3), np.int64)},
        {"mask": np.zeros((1, 1, 3, 3), np.float32)},
        {"mask": np.zeros((1, 1, 3, 4), np.int8)},
        {"mask": np.zeros((1, 1, 3, 8), np.float32)[..., ::2]},
    ],
    ids=str,
)
def test_compiled_refuses_what_does_not_fit(change: dict[str, object]) -> None:
    given: dict[str, object] = {
        "starts": [1],
        "uncached": [[7]],
        "tokens": [[8, 9]],
        "parents": [[-1, 0]],
        "uncached_width": 1,
        "packed": np.zeros((2, 1, 3), np.int64),
        "slots": np.zeros((1, 3), np.int64),
        "visible": np.zeros((1, 3, 4), np.bool_),
        "mask": np.zeros((1, 1, 3, 4), np.float32),
    }
    assert COMPILED is not None
    COMPILED.lay_out(*given.values())
    with pytest.raises((ValueError, TypeError, OverflowError)):
        COMPILED.lay_out(*{**given, **change}.values())
    rows = {**given, **change}
    if change.keys() & {"uncached", "tokens", "parents"} and "uncached_width" not in change:
        width = 3 if change.get("uncached") != [[1, 2]] else 2
        with pytest.raises((ValueError, TypeError)):
            host = np.zeros((FIELDS + 1, 1, width), np.int64)
            COMPILED.pack(host, rows["starts"], rows["uncached"], rows["tokens"], rows["parents"], [[]], 0)
    for moves in ([[(1,)]], [[(1, 2)] * 4], [[(1, 2, 3)]], []):
        with pytest.raises(ValueError):
            COMPILED.pack(np.zeros((FIELDS + 1, 1, 3), np.int64), [1], [[7]], [[]], [[]], moves, 0)
