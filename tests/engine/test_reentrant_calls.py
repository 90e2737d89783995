"""Calls that cross: code inside a pass uses other engines, while other threads load, unload and collect garbage."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

import copyspec
from copyspec import Engine
from copyspec.api import _STATE
from copyspec.engine.drafting.draft_models import DraftModels
from copyspec.engine.logits import language
from copyspec.engine.running.scheduler import CLOSE_SECONDS
from copyspec.targets.hooks.attention import masked_attention, restore_after_interrupt
from copyspec.targets.hooks.detours import detour
from copyspec.targets.hooks.states import hidden_states
from tests.helpers.texts import byte_level, llama


def model(seed: int = 0) -> Any:
    return copy.deepcopy(llama(len(byte_level()), seed))


def ids(engine: Engine, prompt: str = "the cat", **options: Any) -> list[int]:
    return list(engine.generate(prompt, max_new_tokens=5, **options).token_ids)


def in_a_pass(engine: Engine, work: Callable[[], object]) -> tuple[threading.Thread, threading.Event]:
    """Run `work` inside a pass of `engine`, in another thread; the event is set once the pass has begun."""
    began, once = threading.Event(), [work]

    def processor(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if once:
            began.set()
            once.pop()()
        return scores

    thread = threading.Thread(target=lambda: ids(engine, logits_processor=[processor]), daemon=True)
    thread.start()
    assert began.wait(30)
    return thread, began


def ends(thread: threading.Thread) -> bool:
    thread.join(30)
    return not thread.is_alive()


@pytest.fixture
def other(folder: Path) -> Callable[[], object]:
    """Calls a model by name as soon as another thread waits, which is after a moment."""

    def call() -> object:
        threading.Event().wait(0.3)
        return copyspec.generate("the dog", model=str(folder), max_new_tokens=3)

    return call


def test_unloading_waits_for_a_pass_that_uses_another_model(other: Callable[[], object]) -> None:
    engine = copyspec.load(model(), tokenizer=byte_level())
    thread, _ = in_a_pass(engine, other)
    unloading = threading.Thread(target=lambda: copyspec.unload(engine), daemon=True)
    unloading.start()
    assert ends(unloading) and ends(thread)


def test_loading_waits_for_a_pass_that_loads_another_model(other: Callable[[], object]) -> None:
    own = model()
    thread, _ = in_a_pass(copyspec.load(own, tokenizer=byte_level()), other)
    loading = threading.Thread(
        target=lambda: copyspec.load(own, tokenizer=byte_level(), on_unsupported="plain"), daemon=True
    )
    loading.start()
    assert ends(loading) and ends(thread)
    copyspec.unload(own)


def test_a_pass_may_call_another_engine_of_its_model() -> None:
    own = model()
    first, second = Engine(own, byte_level()), Engine(own, byte_level())
    expected, stop = ids(second), threading.Event()
    outputs: list[list[int]] = []

    def busy() -> None:
        while not stop.is_set():
            ids(second)

    calling = threading.Thread(target=busy, daemon=True)
    calling.start()
    for _ in range(10):
        thread, _ = in_a_pass(first, lambda: outputs.append(ids(second)))
        assert ends(thread)
    stop.set()
    seconds: list[float] = []

    def timed() -> None:
        began = time.perf_counter()
        ids(second)
        seconds.append(time.perf_counter() - began)

    for _ in range(5):
        thread, _ = in_a_pass(first, timed)
        assert ends(thread)
    assert min(seconds) < CLOSE_SECONDS, "it does not wait for itself"
    assert ends(calling) and outputs == [expected] * 10


def test_the_garbage_collector_waits_for_no_pass() -> None:
    """It closes a stream while its thread holds a lock for which the thread waits that runs the pass."""
    engine, lock = Engine(model(), byte_level()), threading.Lock()
    streams: list[Any] = [engine.stream("the cat", max_new_tokens=20)]
    next(streams[0])

    def wait_for_lock() -> None:
        with lock:
            pass

    with lock:
        thread, _ = in_a_pass(Engine(engine.model, byte_level()), wait_for_lock)
        closing = threading.Thread(target=streams.clear, daemon=True)
        closing.start()
        assert ends(closing)
    assert ends(thread) and ids(engine)


def test_a_model_that_was_moved_starts_a_new_batch() -> None:
    engine = Engine(model(), byte_level())
    stream = engine.stream("the cat", max_new_tokens=20)
    next(stream)
    engine.model.to(torch.float64)
    assert ids(engine) == ids(Engine(engine.model, byte_level()))
    stream.close()  # type: ignore[attr-defined]


def test_a_model_object_may_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_STATE, "configured", None)
    own = model()
    copyspec.configure(model=own, tokenizer=byte_level())
    assert copyspec.load().model is own
    assert copyspec.generate("the cat", max_new_tokens=3).token_ids
    copyspec.unload(own)


def test_unloading_in_the_middle_of_a_preparation_is_told() -> None:
    engine = Engine(model(), byte_level())
    drafting: DraftModels = engine._drafting
    engine.unload()
    for chosen in ("layers:1", "heads:a"):
        with pytest.raises(RuntimeError, match="unloaded while a call was being prepared"):
            drafting.predictors([chosen])


def test_unloading_all_releases_the_ngrams() -> None:
    assert ids(Engine(model(), byte_level())) and language._kept
    copyspec.unload()
    assert not language._kept


def test_what_an_interrupt_leaves_is_given_back() -> None:
    own = model()
    own.config._attn_implementation_internal = "flash_attention_2"
    entered = masked_attention(own, [own.config])
    entered.__enter__()
    assert own.config._attn_implementation == "sdpa"
    restore_after_interrupt(own)
    assert own.config._attn_implementation == "flash_attention_2"
    left = detour(own.lm_head, "forward", lambda states: states)
    left.__enter__()
    restore_after_interrupt(own)
    assert "forward" not in vars(own.lm_head)
    with detour(own.lm_head, "forward", lambda states: -states):
        left.__exit__(None, None, None)  # as when the interrupted frame is freed
        assert own.lm_head(torch.ones(1)) == -1
    own.config._attn_implementation_internal = "sdpa"


def test_a_hook_that_an_interrupt_leaves_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = model()
    with monkeypatch.context() as patch:
        patch.setattr(RemovableHandle, "remove", lambda handle: None)
        with hidden_states(own, [0]) as states:
            own(torch.tensor([[5, 6]]))
            assert states.head is not None and states.last is not None and states.inner.keys() == {0}
    assert own.lm_head._forward_pre_hooks
    left = weakref.ref(states)
    del states
    gc.collect()
    assert left() is None
    own(torch.tensor([[5, 6]]))
