"""Columns and masks of a pass against a slow reference that follows every path by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.targets.columns import PAD_SLOT, ancestors, lay_out
from copyspec.tree import ROOT, DraftTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(draw(st.integers(0, 12)))]
    size = len(parents)
    return DraftTree(list(range(100, 100 + size)), parents, [0.5] * size, [None] * size)


Rows = list[tuple[int, list[int], DraftTree]]
rows = st.lists(
    st.tuples(st.integers(0, 9), st.lists(st.integers(1, 50), min_size=1, max_size=6), trees()), min_size=1, max_size=4
)


def reference(start: int, chain: list[int], tree: DraftTree) -> list[tuple[int, int, set[int]]]:
    """(token, position, visible slots) of each column of a row, pads left out."""
    columns = []
    for index, token in enumerate(chain):
        columns.append((token, start + index, set(range(start + index + 1))))
    behind = start + len(chain)
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
    for row, (start, chain, tree) in enumerate(batch):
        real = [column for column in range(columns.tokens.shape[1]) if columns.slots[row, column] != PAD_SLOT]
        assert real[len(chain) - 1] == columns.tokens.shape[1] - columns.kept
        assert columns.slots[row, real].tolist() == list(range(start, start + len(chain) + len(tree)))
        found = [
            (
                columns.tokens[row, column],
                columns.positions[row, column],
                set(np.nonzero(columns.visible[row, column])[0]),
            )
            for column in real
        ]
        assert found == reference(start, chain, tree)
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
