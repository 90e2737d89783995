"""The memory of static passes: arenas are freed when nobody uses them, and when there is too little."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch

from copyspec.targets.causal import TreeSession
from copyspec.targets.static import running
from copyspec.targets.static.arenas import Arena
from copyspec.targets.static.buffers import KeyValues
from copyspec.targets.static.static_target import StaticTarget
from copyspec.tree import EMPTY
from tests.helpers import models
from tests.helpers.static import GRAPHS, expected, opened, scored, static_target
from tests.helpers.tiny import tiny_engine


@pytest.mark.parametrize("is_unloaded", [True, False], ids=["unloaded", "dropped"])
def test_an_engine_frees_its_model_without_garbage_collection(is_unloaded: bool) -> None:
    engine = tiny_engine(static=GRAPHS)
    engine.generate("abc", max_new_tokens=12)
    target = engine._target
    assert isinstance(target, StaticTarget)
    arenas = [ref(arena) for arena in target.arenas._free]
    held = [*arenas, ref(target), ref(engine.model), ref(engine.model.lm_head.weight)]
    assert arenas
    del target
    gc.collect()
    gc.disable()
    try:
        if is_unloaded:
            engine.unload()
        else:
            del engine
        assert [each() for each in held] == [None] * len(held)
    finally:
        gc.enable()


def test_the_parts_of_a_smaller_vocabulary_are_freed_without_garbage_collection() -> None:
    engine = tiny_engine(static=GRAPHS)
    engine.generate("abc", max_new_tokens=12)
    assert isinstance(engine._target, StaticTarget)
    held = [ref(engine._target), *[ref(arena) for arena in engine._target.arenas._free]]
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            engine.model.resize_token_embeddings(300)
        engine.generate("abc", max_new_tokens=4)
        assert [each() for each in held] == [None] * len(held)
    finally:
        gc.enable()


def test_an_arena_in_use_is_freed_after_its_pool_was_closed() -> None:
    target = static_target()
    session = opened(target)
    target.arenas.close()
    assert torch.allclose(scored(session), expected(target), atol=1e-5)
    session.close()
    assert not target.arenas._free


def test_memory_is_freed_without_garbage_collection() -> None:
    target = static_target()
    session = opened(target)
    assert session._arena is not None
    buffers = [ref(each) for each in session._arena.key_values.buffers.values()]
    gc.collect()
    gc.disable()
    try:
        session.close()
        target.arenas.clear()
        assert [each() for each in buffers] == [None] * len(buffers)
    finally:
        gc.enable()


def test_free_arenas_are_dropped_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target()
    opened(target).close()
    assert target.arenas._free
    failures, emptied = iter([torch.OutOfMemoryError("full")]), list[bool]()
    make = Arena.__init__

    def failing(*arguments: object) -> None:
        for failure in failures:
            raise failure
        make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Arena, "__init__", failing)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(running.CAPTURING.locked()))
    session = target.open([[5] * 900], 100)
    session.score([[5] * 900], [EMPTY])
    assert not target.arenas._free and emptied == [True], "which torch refuses while another thread captures"
    session.close()


def test_free_arenas_of_other_models_are_dropped_when_a_prompt_finds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    target, other, elsewhere = static_target(), static_target(), static_target()
    for each in (other, elsewhere):
        opened(each, passes=0).close()
    elsewhere.arenas._free[0].size.layout.device = torch.device("cuda", 1)
    failures, prefill = iter([torch.OutOfMemoryError("full")]), TreeSession.prefill

    def failing(session: TreeSession, prompts: list[list[int]]) -> None:
        for failure in failures:
            raise failure
        prefill(session, prompts)

    prompt = models.random_ids(300, seed=1)
    session = target.open([prompt])
    monkeypatch.setattr(TreeSession, "prefill", failing)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = session.score([prompt], [EMPTY])
    assert torch.allclose(found[0][0], target.model(torch.tensor([prompt])).logits[0, -1], atol=1e-5)
    assert not other.arenas._free and elsewhere.arenas._free
    session.close()


def test_a_session_that_cannot_grow_keeps_its_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    target = static_target()
    session = opened(target, passes=0)
    arena, copy = session._arena, KeyValues.copy_rows

    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("full")

    with monkeypatch.context() as patched:
        patched.setattr(KeyValues, "copy_rows", full)
        with pytest.raises(torch.OutOfMemoryError):
            session.score([[9] * 600], [EMPTY])
    assert session._arena is arena and KeyValues.copy_rows is copy
    session.trim([3])
    assert torch.allclose(scored(session), expected(target), atol=1e-5)
    session.close()
    assert len(target.arenas._free) == 2 and arena in target.arenas._free


@torch.inference_mode()
def test_a_larger_arena_replaces_the_free_ones_that_it_holds() -> None:
    target = static_target()
    for rows in (2, 1, 8, 4):
        session = target.open([[5, 6, 7]] * rows)
        session.score([[5, 6, 7]] * rows, [EMPTY] * rows)
        session.close()
    assert [arena.size.rows for arena in target.arenas._free] == [8]
