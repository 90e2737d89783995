"""Tokens and masks of a pass, against a slow reference that follows every path."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from copyspec.targets.model.facts import ModelFacts, read_facts
from copyspec.targets.rows.passes import Pass, _fill, ancestors, lay_out
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


def seen(work: Pass, row: int, kind: str = "", facts: ModelFacts | None = None) -> NDArray[np.bool_]:
    """What the tokens of a row see, [n, L]."""
    visible = work.visible[row] if facts is None else work.seen(row, kind, facts)
    return np.ones((1, work.ends()[row]), np.bool_) if visible is None else visible


@settings(deadline=None)
@given(rows)
def test_against_reference(batch: Rows) -> None:
    work = lay_out(*zip(*batch, strict=True))
    wanted = iter(work.wanted())
    for row, (start, ids, tree) in enumerate(batch):
        first, last = work.first[row], work.first[row + 1]
        assert work.ends()[row] == start + last - first == start + len(ids) + len(tree)
        assert [next(wanted) for _ in range(1 + len(tree))] == list(range(first + len(ids) - 1, last))
        rows_seen = [
            (work.tokens[first + token], work.positions[first + token], set(np.nonzero(visible)[0]))
            for token, visible in enumerate(seen(work, row))
        ]
        assert rows_seen == reference(start, ids, tree)
    assert next(wanted, None) is None


@settings(deadline=None)
@given(rows, st.integers(1, 8))
def test_windows_and_chunks_count_positions(batch: Rows, size: int) -> None:
    work, facts = lay_out(*zip(*batch, strict=True)), replace(facts_by_dtype()[0], window=size, chunk=size)
    for row in range(len(batch)):
        visible, own, keys = seen(work, row), work.positions[work.first[row] :], work.key_positions(row)
        window, chunk = (seen(work, row, kind, facts) for kind in ("sliding_attention", "chunked_attention"))
        for token, slot in np.argwhere(visible):
            assert window[token, slot] == (own[token] - keys[slot] < size)
            assert chunk[token, slot] == (own[token] // size == keys[slot] // size)
        assert not (window & ~visible).any() and not (chunk & ~visible).any()


@settings(deadline=None)
@given(rows)
def test_joint_masks_hide_other_rows(batch: Rows) -> None:
    work, facts = lay_out(*zip(*batch, strict=True)), facts_by_dtype()[0]
    ends = work.ends()
    expected = np.zeros((work.first[-1], sum(ends)), np.bool_)
    for row, end in enumerate(ends):
        before = sum(ends[:row])
        expected[work.first[row] : work.first[row + 1], before : before + end] = seen(work, row)
    assert torch.equal(work.joint_masks(facts) == 0, torch.from_numpy(expected[None, None]))


@settings(deadline=None)
@given(trees())
def test_ancestors_include_the_node_itself(tree: DraftTree) -> None:
    on_path, depths = ancestors(tree.parents)
    assert depths == tree.depths()
    assert on_path.shape == (len(tree), len(tree))
    assert [int(row.sum()) for row in on_path] == tree.depths()
    assert on_path.diagonal().all()


@settings(deadline=None)
@given(rows)
@pytest.mark.skipif(COMPILED is None, reason="not compiled")
def test_compiled_equals_python(batch: Rows) -> None:
    starts, uncached, trees = zip(*batch, strict=True)
    compiled = lay_out(starts, uncached, trees)
    visible = [None if mask is None else np.full_like(mask, 7) for mask in compiled.visible]
    filled = Pass(compiled.starts, compiled.first, compiled.scored, np.full_like(compiled.packed, 7), visible)
    _fill(filled, uncached, trees)
    np.testing.assert_array_equal(compiled.packed, filled.packed)
    for one, other in zip(compiled.visible, filled.visible, strict=True):
        np.testing.assert_array_equal(one, other)
    for facts in facts_by_dtype():
        masks = lay_out(starts, uncached, trees, facts).masks("full_attention", facts)
        for mask, of_row in zip(masks, filled.masks("full_attention", facts), strict=True):
            assert (mask is None) == (of_row is None)
            assert mask is None or (mask.dtype == of_row.dtype and torch.equal(mask, of_row))
        filled._masks.clear()


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
        {"visible": np.zeros(12, np.float32)},
        {"visible": np.zeros(11, np.bool_)},
        {"visible": np.zeros(13, np.bool_), "mask": None},
        {"packed": np.zeros((3, 3), np.int64)},
        {"packed": np.zeros((2, 4), np.int64)},
        {"mask": np.zeros(9, np.float32)},
        {"mask": np.zeros(12, np.int8)},
        {"mask": np.zeros(24, np.float32)[::2]},
    ],
    ids=str,
)
def test_compiled_refuses_what_does_not_fit(change: dict[str, object]) -> None:
    fields: dict[str, object] = {
        "starts": [1],
        "uncached": [[7]],
        "tokens": [[8, 9]],
        "parents": [[-1, 0]],
        "packed": np.zeros((2, 3), np.int64),
        "visible": np.zeros(12, np.bool_),
        "mask": np.zeros(12, np.float32),
        "lowest": 0,
    }
    assert COMPILED is not None
    COMPILED.lay_out(*fields.values())
    with pytest.raises((ValueError, TypeError, OverflowError)):
        COMPILED.lay_out(*{**fields, **change}.values())
