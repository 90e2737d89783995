"""The memory of static passes: pools are freed when nobody uses them, and when there is too little."""

from __future__ import annotations

import gc
import random
from weakref import ref

import pytest
import torch

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.static import running
from copyspec.targets.static.buffers import KeyValues
from copyspec.targets.static.pools import PagePool
from copyspec.targets.static.static_session import StaticSession
from copyspec.targets.static.static_target import StaticTarget
from copyspec.tree import EMPTY
from tests.helpers import models
from tests.helpers.static import GRAPHS, expected, opened, scored, static_target
from tests.helpers.tiny import tiny_engine
from tests.helpers.trees import Rows


@pytest.mark.parametrize("is_unloaded", [True, False], ids=["unloaded", "dropped"])
def test_an_engine_frees_its_model_without_garbage_collection(is_unloaded: bool) -> None:
    engine = tiny_engine(static=GRAPHS)
    engine.generate("abc", max_new_tokens=12)
    target = engine._target
    assert isinstance(target, StaticTarget)
    pools = [ref(pool) for pool in target.pools._free]
    references = [*pools, ref(target), ref(engine.model), ref(engine.model.lm_head.weight)]
    assert pools
    del target
    gc.collect()
    gc.disable()
    try:
        if is_unloaded:
            engine.unload()
        else:
            del engine
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


def test_the_parts_of_a_smaller_vocabulary_are_freed_without_garbage_collection() -> None:
    engine = tiny_engine(static=GRAPHS)
    engine.generate("abc", max_new_tokens=12)
    assert isinstance(engine._target, StaticTarget)
    references = [ref(engine._target), *[ref(pool) for pool in engine._target.pools._free]]
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            engine.model.resize_token_embeddings(300)
        engine.generate("abc", max_new_tokens=4)
        assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


def test_a_pool_in_use_is_freed_after_its_pool_was_closed() -> None:
    target = static_target()
    session = opened(target)
    target.pools.close()
    assert torch.allclose(scored(session), expected(target), atol=1e-5)
    session.close()
    assert not target.pools._free


def test_memory_is_freed_without_garbage_collection() -> None:
    target = static_target()
    session = opened(target)
    assert session._pool is not None
    buffers = [ref(buffer) for buffer in session._pool.key_values.buffers.values()]
    gc.collect()
    gc.disable()
    try:
        session.close()
        target.pools.clear()
        assert [buffer() for buffer in buffers] == [None] * len(buffers)
    finally:
        gc.enable()


def test_free_pools_are_dropped_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target()
    opened(target).close()
    assert target.pools._free
    failures, emptied = iter([torch.OutOfMemoryError("full")]), list[bool]()
    make = PagePool.__init__

    def failing(*arguments: object) -> None:
        for failure in failures:
            raise failure
        make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PagePool, "__init__", failing)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(running.CAPTURING.locked()))
    session = target.open([[5] * 900], 100)
    session.score([[5] * 900], [EMPTY])
    assert not target.pools._free and emptied == [True], "which torch refuses while another thread captures"
    session.close()


def test_a_session_that_cannot_grow_keeps_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target()
    session = opened(target, passes=0)
    pool, copy = session._pool, KeyValues.copy

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patched:
        patched.setattr(KeyValues, "copy", full)
        with pytest.raises(torch.OutOfMemoryError):
            session.score([[9] * 1200], [EMPTY])
    assert session._pool is pool and KeyValues.copy is copy
    session.trim([3])
    assert torch.allclose(scored(session), expected(target), atol=1e-5)
    session.close()


@torch.inference_mode()
def test_a_larger_pool_replaces_the_free_one() -> None:
    target = static_target()
    for rows in (2, 1, 8, 4):
        session = target.open([[5, 6, 7]] * rows)
        session.score([[5, 6, 7]] * rows, [EMPTY] * rows)
        session.close()
    assert [pool.size.rows for pool in target.pools._free] == [8]


@torch.inference_mode()
def test_a_pool_that_grows_keeps_what_its_rows_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target()
    session = opened(target, passes=0)
    before = session.pool
    text = [5, 6, 7]
    while session.pool is before:
        more = models.random_ids(200, seed=len(text))
        scores = session.score([more], [EMPTY])
        session.keep([()])
        text += more
    assert torch.allclose(scores[0][0], target.model(torch.tensor([text])).logits[0, -1], atol=1e-4)
    session.close()


@torch.inference_mode()
def test_pages_are_given_back_and_no_keys_move_when_rows_join_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target()
    session = target.open([[5] * 100, [6] * 40, [7] * 70])
    session.score([[5] * 100, [6] * 40, [7] * 70], [EMPTY] * 3)
    session.keep([()] * 3)
    assert isinstance(session, StaticSession)
    pool, pages = session.pool, [list(row.pages) for row in session._rows]
    assert [len(page) for page in pages] == [2, 1, 2] and pool.used == 6
    monkeypatch.setattr(KeyValues, "copy", lambda *arguments: pytest.fail("copied"))
    monkeypatch.setattr(KeyValues, "fill", lambda *arguments: pytest.fail("copied"))
    session.select([2, 1])
    assert [row.pages for row in session._rows] == [pages[2], pages[1]] and pool.used == 4
    session.add([[8] * 30])
    session.score([[1], [1], [8] * 30], [EMPTY] * 3)
    assert [row.pages for row in session._rows[:2]] == [pages[2], pages[1]] and pool.used == 5
    session.close()
    assert target.pools._free == [pool]


@pytest.mark.parametrize("attention", ["masks", "tree"])
@torch.inference_mode()
def test_rows_that_begin_with_the_same_tokens_hold_the_same_pages(attention: str) -> None:
    """In one pass, one after the other, and after the first of them has left or was cut."""
    target = static_target(options=StaticOptions(use="always", attention=attention))  # type: ignore[arg-type]
    system = models.random_ids(150, seed=1)
    texts = [[*system, *models.random_ids(count, seed=count)] for count in (5, 70, 1)]

    def check(session: StaticSession, uncached: list[list[int]], texts: list[list[int]]) -> None:
        scores = session.score(uncached, [EMPTY] * len(uncached))
        session.keep([()] * len(uncached))
        for row, text in enumerate(texts):
            alone = target.model(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(scores[row][0], alone, atol=2e-5, rtol=1e-4)

    session = target.open([[5, 6]])
    assert isinstance(session, StaticSession)
    check(session, [[5, 6]], [[5, 6]])
    session.add(texts)
    check(session, [[7], *texts], [[5, 6, 7], *texts])
    pages = [row.pages for row in session._rows]
    assert pages[1][:2] == pages[2][:2] == pages[3][:2] and session.pool.used == 1 + 1 + 2 + 1 + 2 + 1
    session.select([2, 3])
    late = [*system, 9]
    session.add([late])
    check(session, [[8], [8], late], [[*texts[1], 8], [*texts[2], 8], late])
    assert session._rows[2].pages[:2] == pages[1][:2]
    session.trim([70, len(texts[2]) + 1, len(late)])
    check(session, [[3], [3], [3]], [[*texts[1][:70], 3], [*texts[2], 8, 3], [*late, 3]])
    assert session._rows[0].pages[0] == pages[1][0] and session._rows[0].pages[1] != pages[1][1], "a page of its own"
    session.select([1])
    assert session.pool.used == 1 + 3
    session.close()


@torch.inference_mode()
def test_pages_are_not_shared_before_they_are_read() -> None:
    target = static_target()
    prompt = models.random_ids(900, seed=3)
    session = target.open([[1, 2], prompt, [*prompt[:700], 5]])
    uncached = [[1, 2], prompt, [*prompt[:700], 5]]
    scores = session.score(uncached, [EMPTY] * 3)
    session.keep([()] * 3)
    for row, text in enumerate(uncached):
        alone = target.model(torch.tensor([text])).logits[0, -1]
        torch.testing.assert_close(scores[row][0], alone, atol=5e-5, rtol=1e-4)
    session.add([[*prompt[:800], 6]])
    scores = session.score([[3], [3], [3], [*prompt[:800], 6]], [EMPTY] * 4)
    alone = target.model(torch.tensor([[*prompt[:800], 6]])).logits[0, -1]
    torch.testing.assert_close(scores[3][0], alone, atol=5e-5, rtol=1e-4)
    assert session._rows[3].pages[:12] == session._rows[1].pages[:12]  # type: ignore[attr-defined]
    session.close()


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "bloom", "t5"])
def test_pages_and_rows_that_others_have_had_are_like_new(name: str) -> None:
    """In any order, in one session after the other: where pages were, in a table or in masks, is forgotten."""
    model, draw = models.tiny(name), random.Random(2)
    target = wrap(model, static=StaticOptions(use="always"))
    for seed in range(4):
        rows = Rows(model, target, [draw.randint(1, 200) for _ in range(draw.randint(1, 4))], seed=seed)
        for _ in range(4):
            assert rows.step((0, 5)) < 2e-5
            count = len(rows.sequences)
            rows.select(draw.sample(range(count), draw.randint(1, count)))
            rows.add([draw.randint(1, 150) for _ in range(draw.randint(1, 3))], seed=10 * seed)
        assert rows.step((3,)) < 2e-5
        rows.session.close()
