"""Captures that fail, and what happens around them while they last; passes that are compiled for each size."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.static import running
from copyspec.targets.static.running import CudaGraph
from copyspec.targets.static.settings import RETRY_PASSES
from copyspec.targets.static.static_session import StaticSession
from copyspec.targets.static.static_target import StaticTarget
from copyspec.tree import EMPTY
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.static import expected, opened, scored, static_target

ENDING = "operation failed due to a previous error during capture"


class Stream:
    device, device_index = torch.device("cuda", 1), 1


class Cuda:
    """The state of a process that captures. The first capture cannot be ended, so that it leaves its stream, its pool
    and a random number generator that cannot draw behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, in_pool: bool) -> None:
        self.stream: object = "main"
        self.calls: list[str] = []
        self.can_draw, self._in_pool = True, in_pool
        monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
        monkeypatch.setattr(torch.cuda, "graph", self._capture)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.stream)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(self, "stream", stream))
        monkeypatch.setattr(torch, "zeros", lambda size, device: self.calls.append(f"zeros on {device}"))
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch._C, name, self._called(name), raising=False)

    @contextmanager
    def _capture(self, graph: object, *, stream: object, **options: object) -> Iterator[None]:
        """In place of `torch.cuda.graph`."""
        is_first, self.can_draw = self.can_draw, False
        torch.cuda.set_stream(stream)  # type: ignore[arg-type]
        try:
            yield
        finally:
            if is_first:
                raise RuntimeError(ENDING)
            self.can_draw = True

    def _called(self, name: str) -> Any:
        def call(device: int, pool: object) -> None:
            assert (device, pool) == (1, (0, 7))
            if not self._in_pool:
                raise RuntimeError("not currently recording to mempool_id")
            self.calls.append(name)

        return call


@pytest.mark.parametrize("in_pool", [True, False])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), KeyboardInterrupt(), RuntimeError("read"), None])
def test_a_capture_that_cannot_be_ended_leaves_nothing_behind(
    error: BaseException | None, in_pool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(monkeypatch, in_pool)
    with pytest.raises(BaseException) as raised, CudaGraph((0, 7), Stream()).capture():  # type: ignore[arg-type]
        assert isinstance(cuda.stream, Stream) and not gc.isenabled()
        if error is not None:
            raise error
    assert raised.value is error or (error is None and str(raised.value) == ENDING)
    assert cuda.stream == "main" and gc.isenabled() and not running.CAPTURING.locked()
    left = ["_cuda_endAllocateToPool", "_cuda_releasePool", "zeros on cuda:1"]
    assert cuda.calls == (left if in_pool else []) and cuda.can_draw is in_pool


def test_a_capture_without_garbage_collection_does_not_turn_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    Cuda(monkeypatch, True)
    gc.disable()
    try:
        with pytest.raises(RuntimeError, match=ENDING), CudaGraph((0, 7), Stream()).capture():  # type: ignore[arg-type]
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@torch.inference_mode()
def test_a_model_that_cannot_be_captured_is_tried_once_for_each_state(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    class Failing(CpuGraph):
        @contextmanager
        def capture(self) -> Iterator[None]:
            attempts.append(self)
            with super().capture():
                raise RuntimeError("reads a value")
                yield

    target = static_target(options=StaticOptions(use="always", new_graph=Failing))
    for count in (1, 2):
        with caplog.at_level(logging.WARNING, "copyspec"):
            sessions = [opened(target) for _ in range(3)]
        assert [session.runner for session in sessions] == ["static"] * 3 and sessions[0].is_settled
        assert len({id(session._pool) for session in sessions}) == 3
        assert torch.allclose(scored(sessions[2]), expected(target), atol=1e-5)
        assert len(attempts) == count == sum("cannot be captured" in record.message for record in caplog.records)
        for session in sessions:
            session.close()
        target.model.lm_head.weight.data = target.model.lm_head.weight.clone()  # type: ignore[union-attr, operator]


@torch.inference_mode()
def test_a_capture_that_finds_no_memory_is_tried_again_much_later() -> None:
    attempts = []

    class Full(CpuGraph):
        @contextmanager
        def capture(self) -> Iterator[None]:
            attempts.append(self)
            if len(attempts) == 1:
                raise torch.OutOfMemoryError("full")
            with super().capture():
                yield

    target = static_target(options=StaticOptions(use="always", exact=True, new_graph=Full))
    session = opened(target, passes=RETRY_PASSES)
    assert session.runner == "static" and session.is_settled and len(attempts) == 1
    for _ in range(4):
        scored(session)
    assert session.runner == "graph" and len(attempts) == 2
    assert torch.allclose(scored(session), expected(target), atol=1e-5)
    session.close()


class Abandoned:
    """A session in a cycle, which garbage collection closes."""

    def __init__(self, target: StaticTarget) -> None:
        self.session, self.itself = opened(target, passes=0), self

    def __del__(self) -> None:
        self.session.close()


@torch.inference_mode()
def test_a_session_that_garbage_collection_closes_during_a_capture_is_not_captured() -> None:
    class Collecting(CpuGraph):
        @contextmanager
        def capture(self) -> Iterator[None]:
            with super().capture():
                gc.collect()
                yield

    target = static_target(options=StaticOptions(use="always", new_graph=Collecting))
    gc.disable()
    try:
        abandoned = Abandoned(target)
        pool = abandoned.session._pool
        del abandoned
        first = opened(target, passes=3)
    finally:
        gc.enable()
    assert first.runner == "graph" and pool in target.pools._free
    second = opened(target, passes=0)
    assert second._pool is pool
    for session in (first, second):
        assert torch.allclose(scored(session), expected(target), atol=1e-5)
        session.close()


@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # raised by torch on Python 3.13.0 only
def test_each_size_is_compiled_however_many_there_are(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    options = StaticOptions(use="always", compile=True, compiler="eager")
    target = wrap(models.tiny("llama", num_hidden_layers=1), static=options)
    with torch._dynamo.config.patch(recompile_limit=1), caplog.at_level(logging.WARNING, "copyspec"):
        for rows in (1, 2):
            session = target.open([[5, 6, 7]] * rows)
            assert isinstance(session, StaticSession)
            for count in (3, 1):
                session.score([[8] * count] * rows, [EMPTY] * rows)
                session.keep([[]] * rows)
                assert session.runner == "compiled"
            session.close()
    # With torch 2.14, torch itself warns where Triton is missing.
    assert not [record for record in caplog.records if record.name.startswith("copyspec")]


class LeavingNothing(CpuGraph):
    """As on a device, what a capture has made is not computed before its first replay."""

    @contextmanager
    def capture(self) -> Iterator[None]:
        with super().capture():
            yield
        for _, _, _, made, fresh in self._tape:
            for tensor, is_fresh in zip(made, fresh, strict=True):
                if is_fresh and tensor.is_floating_point():
                    tensor.fill_(torch.nan)


def test_states_of_the_pass_that_is_captured_are_its_own() -> None:
    model, prompt = models.tiny("llama"), models.random_ids(6)
    session = wrap(model, static=StaticOptions(use="always", new_graph=LeavingNothing)).open([prompt])
    with torch.inference_mode():
        alone = model.base_model(torch.tensor([prompt])).last_hidden_state[0]
    for _ in range(4):
        _, states = session.score_with_states([prompt], [EMPTY])
        assert states is not None
        torch.testing.assert_close(states[0][-1], alone, atol=1e-4, rtol=1e-4)
    assert session.runner == "graph"
