"""Calls that are cancelled, closed, late or waited for in the wrong place end, and disturb no other caller."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import copyspec
from copyspec import Engine
from copyspec.engine.aio import AsyncChunks
from copyspec.engine.running.call import CancelledCallError, Lane, Ticket
from copyspec.engine.running.jobs import JobMaker
from copyspec.text.codec import LONG
from tests.helpers.texts import new_engine

pytestmark = pytest.mark.usefixtures("steady_drafts")

PROMPTS = ["The cat sat on the mat", "The dog sat on the mat", "The sea sat on the mat"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine()


def ends(work: Callable[[], object]) -> object:
    """Run `work` in a thread, and return what it returned or raised. Fails if it does not end."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert outcome, "it waits for ever"
    return outcome[0]


def test_a_dropped_call_has_no_results(engine: Engine) -> None:
    for drop in (lambda call: call.drop(), lambda call: call.chunks().close()):
        call = engine.submit(PROMPTS, max_new_tokens=8, batch_size=1)
        drop(call)
        assert isinstance(ends(call.results), CancelledCallError)

    async def waits() -> None:
        call = engine.submit(PROMPTS, max_new_tokens=8, loop=asyncio.get_running_loop())
        call.drop()
        await call.aresults()

    assert isinstance(ends(lambda: asyncio.run(waits())), CancelledCallError)


def test_results_of_a_cancelled_call_are_refused_every_time(engine: Engine) -> None:
    call = engine.submit(PROMPTS[0], max_new_tokens=8)
    call.cancel()
    for _ in range(2):
        with pytest.raises(CancelledCallError):
            call.results()


def test_a_stream_may_be_closed_by_its_own_processor(engine: Engine) -> None:
    chunks = engine.submit(PROMPTS, max_new_tokens=8, batch_size=1, logits_processor=lambda ids, scores: close(scores))

    def close(scores: torch.Tensor) -> torch.Tensor:
        stream.close()
        return scores

    stream = chunks.chunks()
    assert isinstance(ends(lambda: list(stream)), list)
    assert engine.scheduler.running == engine.scheduler.waiting == 0


def test_a_call_cannot_wait_for_itself(engine: Engine) -> None:
    def waits(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        call.results()
        return scores

    call = engine.submit(PROMPTS[0], max_new_tokens=8, logits_processor=waits)
    error = ends(call.results)
    assert isinstance(error, RuntimeError) and "waits for the call that it runs in" in str(error)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
def test_whatever_a_processor_raises_reaches_its_caller_only(engine: Engine, error: type[BaseException]) -> None:
    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise error("mine")

    wanted = engine.generate(PROMPTS[0], max_new_tokens=8).token_ids
    good = engine.submit(PROMPTS[0], max_new_tokens=8)
    bad = engine.submit(PROMPTS[1], max_new_tokens=8, logits_processor=fails)
    assert good.results()[0].token_ids == wanted
    with pytest.raises(RuntimeError if error is StopIteration else error, match="mine"):
        bad.results()


def test_a_request_that_cannot_begin_ends_its_own_call_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = engine.generate(PROMPTS[0], max_new_tokens=8).token_ids
    good, bad = (engine.submit(prompt, max_new_tokens=8) for prompt in PROMPTS[:2])
    bad._ticket.waiting[0][1].prompt.clear()  # type: ignore[attr-defined]
    assert good.results()[0].token_ids == wanted
    with pytest.raises(ValueError, match="empty prompt"):
        bad.results()


def test_a_loop_that_is_gone_loses_no_other_callers_tokens(engine: Engine) -> None:
    wanted = engine.generate(PROMPTS[0], max_new_tokens=8).token_ids
    loop = asyncio.new_event_loop()
    lost = engine.submit(PROMPTS[1], max_new_tokens=8, loop=loop)
    loop.close()
    assert engine.generate(PROMPTS[0], max_new_tokens=8).token_ids == wanted
    lost.drop()
    with pytest.raises(TypeError, match="loop must be the running event loop"):
        engine.submit(PROMPTS[0], loop="x")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="without loop="):
        asyncio.run(engine.submit(PROMPTS[0], max_new_tokens=8).aresults())


async def test_a_closed_asynchronous_stream_yields_nothing_more(engine: Engine) -> None:
    def stream() -> AsyncChunks:
        return copyspec.agenerate(PROMPTS[0], model=engine, stream=True, max_new_tokens=30, ignore_eos=True)

    unread, waiting = stream(), stream()
    await unread.aclose()
    assert [chunk async for chunk in unread] == []
    await waiting.__anext__()
    with engine._lock:  # so that the reader waits
        received: list[object] = []
        reader = asyncio.ensure_future(_all(waiting, received))
        await asyncio.sleep(0.05)  # it takes what was decoded before the lock
        before = len(received)
        await waiting.aclose()
        await asyncio.wait_for(reader, 30)
        assert len(received) == before


async def _all(stream: AsyncChunks, received: list[object]) -> None:
    async for chunk in stream:
        received.append(chunk)


def test_a_timeout_counts_from_the_call(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    make, clock = JobMaker.make, [0.0]

    def slow(*arguments: Any) -> Any:
        clock[0] += 0.5
        return make(*arguments)

    for module in ("engine", "running.call"):
        monkeypatch.setattr(f"copyspec.engine.{module}.monotonic", lambda: clock[0])
    assert engine.generate(PROMPTS[0], max_new_tokens=1, timeout=0.5).token_ids
    monkeypatch.setattr(JobMaker, "make", slow)
    with pytest.raises(TimeoutError, match=r"timeout=0\.5"):
        engine.generate(PROMPTS[0], max_new_tokens=1, timeout=0.5)


def test_a_long_text_keeps_no_other_waiting(engine: Engine) -> None:
    codec = engine.codec
    text = "The cat sat on the mat. " * 20_000
    wanted = codec.encode(text[: LONG - 8]).ids
    assert codec.encode(text).ids[: len(wanted) - 9] == wanted[:-9]
    assert codec._for_long is not None and codec._for_long is not codec.tokenizer
    with codec._long_lock:
        assert isinstance(ends(lambda: codec.encode("short")), copyspec.text.codec.Encoded)  # type: ignore[attr-defined]


def test_an_error_in_the_middle_of_a_pass_reaches_its_caller_only(engine: Engine) -> None:
    class Zeros:
        def propose(self, budget: copyspec.Budget) -> copyspec.DraftTree:
            return copyspec.DraftTree.of_chain([0] * min(8, budget.max_nodes), 0.99)

        def accept(self, tokens: Sequence[int]) -> None:
            pass

    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] >= 6:
            raise ValueError("mine")
        return scores

    options: dict[str, Any] = {
        "max_new_tokens": 20,
        "ignore_eos": True,
        "logit_bias": {0: 1e4},
        "drafter": lambda _: Zeros(),
    }
    wanted = engine.generate(PROMPTS[0], max_new_tokens=8).token_ids
    good = engine.submit(PROMPTS[0], max_new_tokens=8)
    bad = engine.submit([5, 6, 7], logits_processor=fails, **options)
    assert good.results()[0].token_ids == wanted
    with pytest.raises(ValueError, match="mine"):
        bad.results()
    with pytest.raises(ValueError, match="mine"):
        engine.generate([5, 6, 7], logits_processor=fails, **options)


def test_a_stream_needs_no_await(engine: Engine) -> None:
    async def texts() -> tuple[str, str]:
        options = {"model": engine, "stream": True, "max_new_tokens": 8}
        plain = [chunk.text async for chunk in copyspec.agenerate("the cat", **options)]  # type: ignore[call-overload]
        awaited = [chunk.text async for chunk in await copyspec.agenerate("the cat", **options)]  # type: ignore[call-overload]
        return "".join(plain), "".join(awaited)

    plain, awaited = asyncio.run(texts())
    assert plain == awaited == engine.generate("the cat", max_new_tokens=8).text


def test_an_error_between_two_looks_is_raised(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may report an error at any moment, as it holds no lock in a pass."""
    call, take = engine.submit(PROMPTS[0], max_new_tokens=8), Ticket.take

    def taken(ticket: Ticket) -> Any:
        step = take(ticket)
        if ticket is call._ticket and not ticket.is_cancelled:
            ticket.fail(ValueError("mine"))
        return step

    monkeypatch.setattr(Ticket, "take", taken)
    with pytest.raises(ValueError, match="mine"):
        call.results()


def test_a_lane_whose_last_caller_leaves_between_two_looks_needs_no_worker() -> None:
    class Leaving:
        """Cancelled by another thread after the first look."""

        looks, arrived = 0, None

        @property
        def is_cancelled(self) -> bool:
            self.looks += 1
            return self.looks > 1

        @property
        def is_active(self) -> bool:
            return not self.is_cancelled

    lane = Lane(lambda _: iter(()), threading.Lock())  # type: ignore[arg-type, return-value]
    lane.tickets.append(Leaving())  # type: ignore[arg-type]
    assert not lane.needs_worker


def test_a_stream_of_samples_that_is_left_leaves_nothing_in_the_queue(engine: Engine) -> None:
    chunks = engine.stream(PROMPTS[0], n=3, temperature=1.0, seed=1)
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert engine.scheduler.waiting == engine.scheduler.running == 0
