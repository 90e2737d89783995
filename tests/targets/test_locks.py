"""Several threads on one model: changes made for a pass are invisible to other threads and are undone."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable

import pytest
import torch

from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.engine.engine import Engine
from copyspec.targets import wrap
from copyspec.targets.hooks.attention import configs, masked_attention
from copyspec.targets.hooks.detours import detour
from copyspec.targets.model.locks import lock_of
from copyspec.targets.selftest import checking as selftest
from tests.decoding.test_greedy_equality import generated
from tests.fuzz import threads
from tests.helpers import models
from tests.helpers.trees import Rows, fingerprint

torch.set_num_threads(1)


def in_thread(work: Callable[[], object]) -> None:
    """Run `work` in a new thread, wait for it, and raise its exceptions."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_detours_of_two_threads_may_cross() -> None:
    module = torch.nn.Linear(2, 2)
    before = dict(vars(module))
    forward = module.forward
    mine = detour(module, "forward", lambda *_: "mine")
    theirs = detour(module, "forward", lambda *_: "theirs")
    inner = detour(module, "forward", lambda *_: "inner")
    ids = torch.zeros(1, 2)
    mine.__enter__()

    def other() -> None:
        assert torch.equal(module(ids), forward(ids))
        theirs.__enter__()
        assert module(ids) == "theirs"
        in_thread(lambda: mine_is_seen_by_nobody())
        assert module(ids) == "theirs"

    def mine_is_seen_by_nobody() -> None:
        assert torch.equal(module(ids), forward(ids))

    # The replacement survives the end of its thread; here it is left after the first one.
    holder = threading.Event()
    entered = threading.Event()

    def hold() -> None:
        other()
        entered.set()
        holder.wait()
        theirs.__exit__(None, None, None)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    with inner:
        assert module(ids) == "inner"
    assert module(ids) == "mine"
    mine.__exit__(None, None, None)
    assert torch.equal(module(ids), forward(ids)) and "forward" in vars(module)
    holder.set()
    thread.join()
    assert vars(module) == before


def test_a_flag_is_another_one_in_one_thread() -> None:
    module = torch.nn.Linear(2, 2)
    module.tuned = True
    with detour(module, "tuned", False):
        assert not module.tuned
        in_thread(lambda: pytest.fail("seen") if not module.tuned else None)
    assert module.tuned is True


def test_attention_that_is_swapped_twice_comes_back() -> None:
    model = models.tiny("llama")
    model.config._attn_implementation_internal = "flash_attention_2"
    parts = tuple(configs(model.config))
    first, second = masked_attention(model, parts), masked_attention(model, parts)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert model.config._attn_implementation == "sdpa"
    second.__exit__(None, None, None)
    assert model.config._attn_implementation == "flash_attention_2"


def test_an_early_exit_takes_turns_with_its_model() -> None:
    model = models.tiny("llama")
    shallow = early_exit(model, 1)
    assert lock_of(shallow) is lock_of(model)
    model.config._attn_implementation_internal = "flash_attention_2"
    with masked_attention(shallow, wrap(shallow).facts.configs):  # type: ignore[attr-defined]
        assert model.config._attn_implementation == "sdpa", "its layers read the model's own configuration"


@pytest.mark.parametrize("name", ["bart", "t5", "bloom", "llama4_text"])
def test_wrapped_again_while_another_thread_decodes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brief self-test, the model's own `generate` and a session run on the model at once, five times."""
    monkeypatch.setattr(selftest, "KNOWN", frozenset())
    model = models.tiny(name)
    before, prompt = fingerprint(model), models.random_ids(9, seed=1)
    target, truth = wrap(model), generated(model, prompt, 6, [])
    wrong: list[object] = []
    stop = threading.Event()

    def decode() -> None:
        rows = Rows(model, target, (11, 4)) if name != "mpt" else None
        while not stop.is_set() and rows is not None and rows.cached[0] < 80:
            with lock_of(model):
                error = rows.step((5,))
            if error > 1e-5:
                wrong.append(error)

    def own() -> None:
        while not stop.is_set():
            if (output := generated(model, prompt, 6, [])) != truth:
                wrong.append(output)

    workers = [threading.Thread(target=work) for work in (decode, own)]
    for worker in workers:
        worker.start()
    for _ in range(5):
        assert wrap(model).supports_trees
    stop.set()
    for worker in workers:
        worker.join()
    assert not wrong
    assert fingerprint(model) == before


def test_draft_models_are_loaded_before_the_first_turn() -> None:
    """A stream's inputs are taken while its thread holds the model, so that loading must not wait for that model."""
    engine = Engine(models.tiny("llama"), threads.tokenizer(), name="tiny")
    results = engine.generate_each([], draft_model="layers:1")
    assert engine._drafting.locks
    assert list(results) == []


def test_mixed_calls_of_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty calls of `tests.fuzz.threads`."""
    asked = itertools.count(step=2)
    monkeypatch.setattr(selftest, "KNOWN", selftest.KNOWN)  # restored afterwards, since the benchmark changes it
    monkeypatch.setattr(threads, "TYPES", ("gemma3_text", "gpt_neo", "umt5", "blenderbot", "mamba"))
    monkeypatch.setattr(threads, "monotonic", lambda: next(asked))  # two seconds per call, however long calls take
    logging.getLogger("copyspec").setLevel(logging.ERROR)
    try:
        assert threads.run(minutes=1, threads=6) == 0
    finally:
        logging.getLogger("copyspec").setLevel(logging.NOTSET)
