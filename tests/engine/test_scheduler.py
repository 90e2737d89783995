"""The scheduler: callers share batches, and each receives its own output, its own errors, and its rows back."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from itertools import zip_longest
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

import copyspec
from copyspec import Engine, Input
from copyspec.decoding.requests import StepOutput
from copyspec.engine.running import scheduler
from copyspec.engine.running.call import Call, CancelledCallError, Wakeups
from copyspec.engine.running.scheduler import QueueFullError
from tests.helpers.texts import byte_level, counted, llama, new_engine

pytestmark = pytest.mark.usefixtures("steady_drafts")

ROOT = Path(__file__).parent.parent.parent
PROMPTS = [f"The {word} sat on the mat" for word in ("cat", "dog", "star", "sea", "sky", "school", "day", "grammar")]


@pytest.fixture
def engine() -> Engine:
    return new_engine()


class Callers:
    """Concurrent calls of one engine, all with the same options."""

    def __init__(self, engine: Engine, **options: object) -> None:
        self.engine = engine
        self.options = {"max_new_tokens": 24, "ignore_eos": True, **options}

    def stream(self, prompt: str, **more: object) -> Iterator[object]:
        return self.engine.stream(prompt, **{**self.options, **more})  # type: ignore[arg-type]

    def texts(self, *prompts: str, **more: object) -> list[str]:
        results = self.engine.generate(list(prompts), **{**self.options, **more})  # type: ignore[call-overload]
        return [result.text for result in results]

    async def text(self, prompt: str, **more: object) -> str:
        options = {**self.options, **more}
        return (await copyspec.agenerate(prompt, model=self.engine, **options)).text  # type: ignore[call-overload,no-any-return]

    def plain(self, *prompts: str) -> list[str]:
        return [self.engine.generate(prompt, drafter="none", **self.options).text for prompt in prompts]  # type: ignore[call-overload]

    @property
    def running(self) -> int:
        return self.engine.scheduler.running

    @property
    def waiting(self) -> int:
        """Number of callers with requests waiting for a row."""
        return sum(bool(ticket.waiting) for lane in self.engine.scheduler._lanes.values() for ticket in lane.tickets)


@pytest.fixture
def callers(engine: Engine) -> Callers:
    return Callers(engine)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.001)


def test_many_threads_share_passes_and_get_what_plain_decoding_gives(callers: Callers) -> None:
    with counted(callers.engine) as serial:
        wanted = callers.plain(*PROMPTS)
        alone = serial()
    with counted(callers.engine) as together, ThreadPoolExecutor(len(PROMPTS)) as pool:
        with callers.engine._lock:  # so that decoding starts when all have been submitted
            futures = [pool.submit(callers.texts, prompt) for prompt in PROMPTS]
            until(lambda: callers.waiting + callers.running >= len(PROMPTS) - 1)
        assert [future.result()[0] for future in futures] == wanted
        assert together() < alone / 2


def test_one_row_at_a_time_has_the_bits_of_single_calls() -> None:
    model = deepcopy(llama(len(byte_level()))).bfloat16()  # the tests share the original
    callers = Callers(Engine(model, byte_level()), batch_size=1)
    single = [callers.texts(prompt)[0] for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert [texts[0] for texts in pool.map(callers.texts, PROMPTS)] == single


def test_callers_with_other_draft_options_or_sizes_get_their_own_batch(callers: Callers) -> None:
    wanted = callers.plain(*PROMPTS[:3])
    with ThreadPoolExecutor(3) as pool:
        some = pool.submit(callers.texts, PROMPTS[0], batch_size=2)
        none = pool.submit(callers.texts, PROMPTS[1], drafter="none")
        assert [*some.result(), *none.result(), *callers.texts(PROMPTS[2])] == wanted


class Note(StoppingCriteria):
    """Notes whose row is decoded, token by token, in the thread that decodes."""

    def __init__(self, name: str, decoded: list[str]) -> None:
        self.name, self.decoded = name, decoded

    def __call__(self, input_ids: object, scores: object, **_: object) -> bool:  # type: ignore[override]
        self.decoded.append(self.name)
        return False


def test_a_caller_of_many_does_not_keep_one_waiting(callers: Callers) -> None:
    decoded: list[str] = []

    def ask(name: str, *prompts: str) -> None:
        options = {**callers.options, "batch_size": 1, "max_new_tokens": 4, "ignore_eos": True}
        list(callers.engine.stream(list(prompts), stopping_criteria=[Note(name, decoded)], **options))  # type: ignore[arg-type]

    with callers.engine._lock:
        threads = [threading.Thread(target=ask, args=("many", *PROMPTS, *PROMPTS))]
        threads[0].start()
        until(lambda: callers.waiting + callers.running >= 1)
        threads.append(threading.Thread(target=ask, args=("one", PROMPTS[0])))
        threads[1].start()
        until(lambda: callers.waiting == 2)
    for thread in threads:
        thread.join()
    assert decoded.index("one") <= 2 * 4 and len(decoded) == 17 * 4


def test_closing_a_stream_frees_its_row_within_a_step(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0], max_new_tokens=200)
    next(stream)
    with counted(callers.engine) as passes:
        with callers.engine._lock:
            before = passes()
            stream.close()  # type: ignore[attr-defined]
        until(lambda: callers.running == 0)
        assert passes() - before <= 1
    assert callers.texts(PROMPTS[1]) == callers.plain(PROMPTS[1])


def test_a_stream_that_is_forgotten_is_freed_too(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0], max_new_tokens=200)
    next(stream)
    del stream
    gc.collect()
    until(lambda: callers.running == 0)


def test_a_stream_that_nobody_reads_blocks_nobody(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0])
    next(stream)
    assert callers.texts(PROMPTS[1]) == callers.plain(PROMPTS[1])
    rest = list(stream)
    assert rest and callers.running == 0


def test_a_request_that_waits_is_never_started_after_it_was_given_up(callers: Callers) -> None:
    with ThreadPoolExecutor(1) as pool:
        with callers.engine._lock:
            running = pool.submit(callers.texts, PROMPTS[1])
            until(lambda: callers.waiting + callers.running == 1)
            with pytest.raises(TimeoutError, match=r"within timeout=0.05 seconds; give it more"):
                callers.texts(PROMPTS[0], timeout=0.05)
        assert running.result() == callers.plain(PROMPTS[1])
    assert callers.waiting == callers.running == 0


def test_an_interrupt_before_a_step_waits_for_the_model_without_the_queue(callers: Callers) -> None:
    """The dropped batch is closed under the model's lock, whose holder may need the scheduler's lock."""
    stream, failing, paused = callers.stream(PROMPTS[0]), threading.Event(), threading.Event()
    next(stream)

    class Interrupted:
        """The steps of a batch, the next of which is interrupted."""

        def __init__(self, steps: Generator[list[StepOutput], None, None]) -> None:
            self.close = steps.close

        def __next__(self) -> list[StepOutput]:
            failing.set()
            raise KeyboardInterrupt

    def hold() -> None:
        with callers.engine._lock:
            paused.set()
            failing.wait()
            time.sleep(0.05)
            with callers.engine.scheduler._lock:
                pass

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    paused.wait()
    (lane,) = callers.engine.scheduler._lanes.values()
    assert lane.steps is not None
    lane.steps = Interrupted(lane.steps)  # type: ignore[assignment]

    def call() -> None:
        with suppress(KeyboardInterrupt):
            next(stream)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(10)
    assert not caller.is_alive(), "each waits for the other's lock"
    holder.join(10)
    assert callers.texts(PROMPTS[0]) == callers.plain(PROMPTS[0])


def test_cancelling_a_task_frees_its_row_within_a_step(callers: Callers) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def read() -> None:
            options = {**callers.options, "max_new_tokens": 200}
            stream = await copyspec.agenerate(PROMPTS[0], model=callers.engine, stream=True, **options)  # type: ignore[call-overload]
            async for _ in stream:
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        with counted(callers.engine) as passes:
            with callers.engine._lock:
                before = passes()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            until(lambda: callers.running == 0)
            assert passes() - before <= 1

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_its_prompt_is_read_leaves_nothing(callers: Callers) -> None:
    async def main() -> None:
        task = asyncio.create_task(callers.text(PROMPTS[0], max_new_tokens=200))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gc.collect()
    until(lambda: callers.running == callers.waiting == 0)


def test_tasks_share_a_batch_and_a_late_one_is_told(callers: Callers) -> None:
    async def main() -> None:
        assert await asyncio.gather(*map(callers.text, PROMPTS)) == callers.plain(*PROMPTS)
        with callers.engine._lock, pytest.raises(TimeoutError, match="no complete answer"):
            await callers.text(PROMPTS[0], timeout=0.01)

    asyncio.run(main())


def six_tasks(callers: Callers) -> list[str]:
    async def main() -> list[str]:
        return await asyncio.gather(*map(callers.text, PROMPTS[:6]))

    return asyncio.run(main())


def six_threads(callers: Callers) -> list[str]:
    with ThreadPoolExecutor(6) as pool:
        with (
            callers.engine._lock
        ):  # until all have been submitted, since on a busy machine threads start long after each other
            asked = [pool.submit(callers.texts, prompt) for prompt in PROMPTS[:6]]
            until(lambda: callers.waiting + callers.running == 6)
        return [call.result()[0] for call in asked]


def six_streams(callers: Callers) -> list[str]:
    streams = [callers.engine.stream(prompt, **callers.options) for prompt in PROMPTS[:6]]  # type: ignore[arg-type]
    texts = [""] * 6
    for pieces in zip_longest(*streams):
        for index, piece in enumerate(pieces):
            texts[index] += piece.text if piece is not None else ""
    return texts


@pytest.mark.parametrize("ask", [six_tasks, six_threads, six_streams])
def test_six_callers_need_hardly_more_passes_than_a_list_of_six(
    callers: Callers, ask: Callable[[Callers], list[str]]
) -> None:
    with counted(callers.engine) as passes:
        wanted = callers.texts(*PROMPTS[:6])
        as_list = passes()
    with counted(callers.engine) as passes:
        assert ask(callers) == wanted
        assert passes() <= 1.25 * as_list


def test_forty_callers_of_one_engine_leave_nothing_behind(callers: Callers) -> None:
    prompts = PROMPTS * 5
    wanted = callers.plain(*PROMPTS) * 5
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert [texts[0] for texts in pool.map(callers.texts, prompts)] == wanted
    assert callers.running == callers.waiting == 0


def test_files_and_calls_share_passes(callers: Callers) -> None:
    inputs = [Input(prompt) for prompt in PROMPTS]
    feed = callers.engine.generate_each(inputs, **callers.options)  # type: ignore[arg-type]
    results = [next(feed)]
    assert callers.texts(PROMPTS[1]) == callers.plain(PROMPTS[1])
    results += feed
    assert [result.text for _, result in results if result is not None] == callers.plain(*PROMPTS)


def test_a_criterion_may_ask_the_same_engine(callers: Callers) -> None:
    inner: list[str] = []

    class Asks(StoppingCriteria):
        def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
            if not inner:
                inner.extend(callers.texts(PROMPTS[1]))
            return torch.zeros(1, dtype=torch.bool)  # type: ignore[return-value]

    assert callers.texts(PROMPTS[0], stopping_criteria=Asks()) == callers.plain(PROMPTS[0])
    assert inner == callers.plain(PROMPTS[1])


def test_an_interrupt_ends_its_own_call_only(callers: Callers) -> None:
    class Interrupts(StoppingCriteria):
        def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
            raise KeyboardInterrupt

    waiting: list[list[str]] = []
    other = threading.Thread(target=lambda: waiting.append(callers.texts(PROMPTS[1])))
    stream = callers.stream(PROMPTS[0], stopping_criteria=Interrupts())
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    other.start()
    other.join()
    assert waiting == [callers.plain(PROMPTS[1])]
    assert callers.running == callers.waiting == 0


def test_a_call_can_be_cancelled_by_another_thread(callers: Callers) -> None:
    call = callers.engine.submit(PROMPTS[0], **{**callers.options, "max_new_tokens": 400})  # type: ignore[arg-type]
    chunks = call.chunks()
    next(chunks)
    thread = threading.Thread(target=call.cancel)
    thread.start()
    thread.join()
    with pytest.raises(CancelledCallError):
        list(chunks)
    assert callers.running == 0


def test_a_full_queue_says_so(callers: Callers) -> None:
    callers.engine.scheduler.max_waiting = 3
    call = callers.engine.submit(PROMPTS[:2], **callers.options)  # type: ignore[arg-type]
    with pytest.raises(QueueFullError, match=r"2 requests wait for 'tiny' already, and max_waiting=3"):
        callers.texts(*PROMPTS[2:4])
    assert [result.text for result in call.results()] == callers.plain(*PROMPTS[:2])


def test_who_has_given_up_waits_no_more(callers: Callers) -> None:
    callers.engine.scheduler.max_waiting = 2
    running = callers.stream(PROMPTS[0], batch_size=1)
    next(running)
    calls = [callers.engine.submit(prompt, **callers.options, batch_size=1) for prompt in PROMPTS[1:3]]  # type: ignore[arg-type]
    assert callers.engine.scheduler.waiting == 2
    for call in calls:
        callers.engine.scheduler.cancel(call._ticket)  # as the end of its stream or task does
    assert callers.engine.scheduler.waiting == 0
    late = callers.engine.submit(PROMPTS[3], **callers.options, batch_size=1)  # type: ignore[arg-type]
    running.close()  # type: ignore[attr-defined]
    assert [result.text for result in late.results()] == callers.plain(PROMPTS[3])


def test_a_stream_that_is_closed_while_the_queue_is_looked_at_leaves_nothing(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0])
    next(stream)
    with callers.engine.scheduler._lock:  # by another thread, or by this one in the garbage collector
        stream.close()  # type: ignore[attr-defined]
    until(lambda: not callers.engine.scheduler._lanes)
    assert callers.running == 0


class BrokenProcessor(LogitsProcessor):
    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        raise ArithmeticError("broken processor")


class BrokenCriterion(StoppingCriteria):
    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: object) -> torch.BoolTensor:
        raise ArithmeticError("broken criterion")


@pytest.mark.parametrize(
    "broken",
    [{"logits_processor": BrokenProcessor()}, {"stopping_criteria": BrokenCriterion()}],
    ids=lambda b: next(iter(b)),
)
def test_an_error_reaches_its_caller_and_nobody_else(callers: Callers, broken: dict[str, object]) -> None:
    with ThreadPoolExecutor(2) as pool:
        with callers.engine._lock:
            good = pool.submit(callers.texts, *PROMPTS[:2])
            bad = pool.submit(callers.texts, PROMPTS[2], **broken)
            until(lambda: callers.waiting + callers.running >= 1)
        with pytest.raises(ArithmeticError, match="broken"):
            bad.result()
        assert good.result() == callers.plain(*PROMPTS[:2])
    until(lambda: callers.running == 0)


def test_where_the_model_fails_all_are_told_and_the_next_call_works(callers: Callers) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("out of memory")

    handle = callers.engine.model.register_forward_pre_hook(fail)
    with pytest.raises(MemoryError, match="out of memory"):
        callers.texts(*PROMPTS[:2])
    handle.remove()
    assert callers.texts(PROMPTS[0]) == callers.plain(PROMPTS[0])


def test_a_worker_outlives_whatever_a_call_raises(callers: Callers) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(3)

    handle = callers.engine.model.register_forward_pre_hook(leave)
    with pytest.raises(SystemExit):
        asyncio.run(callers.text(PROMPTS[0]))
    handle.remove()
    assert asyncio.run(callers.text(PROMPTS[0], timeout=30)) == callers.plain(PROMPTS[0])[0]


def test_an_engine_that_was_unloaded_meanwhile_says_so(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0])
    callers.engine.unload()
    with pytest.raises(RuntimeError, match="was unloaded"):
        next(stream)


def together(callers: Callers) -> None:
    """Run two callers at once, which needs a worker thread."""
    with ThreadPoolExecutor(2) as pool:
        assert [texts[0] for texts in pool.map(callers.texts, PROMPTS[:2])] == callers.plain(*PROMPTS[:2])


def test_an_idle_worker_exits_and_another_one_starts(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "IDLE_SECONDS", 0.01)
    for _ in range(2):
        together(callers)
        until(lambda: not callers.engine.scheduler._lanes)


def test_an_idle_worker_leaves_the_model_to_others(callers: Callers) -> None:
    together(callers)
    until(lambda: callers.running == 0)
    assert callers.engine._lock.acquire(timeout=30)
    callers.engine._lock.release()
    assert callers.texts(PROMPTS[0]) == callers.plain(PROMPTS[0])


@pytest.fixture
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting caller does not look again by itself after RECHECK_SECONDS, which would hide that nobody woke it."""
    monkeypatch.setattr("copyspec.engine.running.call.RECHECK_SECONDS", 60.0)


class Joined(StoppingCriteria):
    """In the first pass, another caller joins the batch and waits."""

    def __init__(self, callers: Callers, **more: object) -> None:
        self.callers = callers
        self.thread = threading.Thread(target=callers.texts, args=PROMPTS[1:2], kwargs=more, daemon=True)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: object) -> bool:
        self.start()
        return False

    def start(self) -> None:
        if self.thread.ident is None:
            self.thread.start()
            until(lambda: self.callers.waiting > 0)

    @property
    def is_done(self) -> bool:
        self.thread.join(20)
        return not self.thread.is_alive()


@pytest.mark.usefixtures("no_second_look")
def test_who_joins_a_stream_that_is_not_read_on_gets_a_worker(callers: Callers) -> None:
    other = Joined(callers)
    stream = callers.stream(PROMPTS[0], stopping_criteria=[other])
    next(stream)
    assert other.is_done


@pytest.mark.usefixtures("no_second_look")
def test_the_last_caller_of_a_batch_drives_it_to_the_end(callers: Callers) -> None:
    other = Joined(callers, max_new_tokens=60)
    callers.texts(PROMPTS[0], stopping_criteria=[other], max_new_tokens=8)
    assert other.is_done


@pytest.mark.usefixtures("no_second_look")
def test_an_interrupt_before_a_step_lets_the_next_one_drive(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    other, scheduler = Joined(callers), callers.engine.scheduler

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setattr("copyspec.engine.running.call.RECHECK_SECONDS", 60.0)
        other.start()
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler, "_drive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        callers.texts(PROMPTS[0])
    assert other.is_done


@pytest.mark.usefixtures("no_second_look")
def test_a_stream_that_is_closed_just_before_its_reader_waits(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(StoppingCriteria):
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: object) -> bool:
            time.sleep(0.03)
            return False

    options = {"batch_size": 2, "stopping_criteria": [Slow()]}
    others = [threading.Thread(target=callers.texts, args=[prompt], kwargs=options) for prompt in PROMPTS[:2]]
    for other in others:
        other.start()
    until(lambda: callers.running == 2)
    stream, waiter = callers.stream(PROMPTS[2], batch_size=2), Wakeups.waiter

    def closed_before(self: Wakeups) -> threading.Lock:
        if threading.current_thread() is threading.main_thread():
            closing = threading.Thread(target=stream.close)  # type: ignore[attr-defined]
            closing.start()
            closing.join()
        return waiter(self)

    monkeypatch.setattr(Wakeups, "waiter", closed_before)
    assert not list(stream) and all(other.is_alive() for other in others)
    for other in others:
        other.join()


def test_a_task_that_nobody_woke_looks_again(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = callers.texts(PROMPTS[0])
    monkeypatch.setattr("copyspec.engine.running.call.RECHECK_SECONDS", 0.01)
    monkeypatch.setattr("copyspec.engine.running.call.Ticket.wake", lambda _: None)  # as after an interrupt before it
    assert [asyncio.run(asyncio.wait_for(callers.text(PROMPTS[0]), 20))] == expected


def test_where_no_thread_can_be_started_the_next_call_tries_again(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = callers.texts(PROMPTS[0])

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start"):
        patch.setattr(threading.Thread, "start", start)
        asyncio.run(callers.text(PROMPTS[0]))
    assert [asyncio.run(asyncio.wait_for(callers.text(PROMPTS[0]), 20))] == expected


@pytest.mark.usefixtures("no_second_look")
def test_no_waiting_caller_is_forgotten(callers: Callers) -> None:
    expected, engine = dict(zip(PROMPTS, callers.texts(*PROMPTS), strict=True)), callers.engine

    class Fails(StoppingCriteria):
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **_: object) -> bool:
            raise ValueError("mine")

    def whole(prompt: str) -> None:
        assert callers.texts(prompt) == [expected[prompt]]

    def left(prompt: str) -> None:
        next(callers.stream(prompt))

    def slow(prompt: str) -> None:
        for _ in callers.stream(prompt):
            time.sleep(0.002)

    def late(prompt: str) -> None:
        with suppress(TimeoutError):
            callers.texts(prompt, timeout=0.01)

    def cancelled(prompt: str) -> None:
        call = engine.submit(prompt, **callers.options)  # type: ignore[arg-type]
        other = threading.Thread(target=call.cancel)
        other.start()
        with suppress(CancelledCallError):
            assert call.results()[0].text == expected[prompt]
        other.join()

    def failing(prompt: str) -> None:
        with pytest.raises(ValueError, match="mine"):
            callers.texts(prompt, stopping_criteria=[Fails()])

    def task(prompt: str) -> None:
        async def both() -> None:
            one, other = asyncio.create_task(callers.text(prompt)), asyncio.create_task(callers.text(prompt))
            await asyncio.sleep(0.005)
            other.cancel()
            assert await one == expected[prompt]

        asyncio.run(both())

    def many(seed: int) -> None:
        draw = Random(seed)
        for _ in range(12):
            draw.choice((whole, left, slow, late, cancelled, failing, task))(draw.choice(PROMPTS))

    started = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(many, range(6)))
    assert time.monotonic() - started < 30
    assert callers.running == callers.waiting == 0


def test_closing_the_queue_tells_who_waits(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0], max_new_tokens=200)
    next(stream)
    callers.engine.scheduler.close()
    with pytest.raises(RuntimeError, match="the program is exiting"):
        list(stream)
    with pytest.raises(RuntimeError, match="accepts no more requests"):
        callers.texts(PROMPTS[0])


def test_a_program_may_end_while_streams_are_open() -> None:
    code = (
        "from tests.helpers.texts import engine\n"
        "streams = [engine().stream('The cat', max_new_tokens=200, ignore_eos=True) for _ in range(2)]\n"
        "print(len([next(stream) for stream in streams]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_an_engine_that_nobody_has_any_more_is_freed() -> None:
    callers = Callers(new_engine())
    together(callers)
    alive = weakref.ref(callers.engine)
    del callers
    until(lambda: gc.collect() is None or alive() is None)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs products in bfloat16")
def test_passes_run_under_the_autocast_of_their_caller_in_any_thread(engine: Engine) -> None:
    seen: list[tuple[bool, bool]] = []  # in autocast, in the main thread

    def looks(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        main = threading.current_thread() is threading.main_thread()
        seen.append((torch.is_autocast_enabled("cpu"), main))
        return scores

    def call(*, autocast: bool) -> Call:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return engine.submit([5, 6, 7], max_new_tokens=4, ignore_eos=True, logits_processor=looks)

    for calls in ([True], [False], [True, True], [False, False], [True, False]):
        del seen[:]
        with torch.autocast("cpu", torch.bfloat16, enabled=not calls[0]):  # of the thread that waits, not of the call
            for running in [call(autocast=autocast) for autocast in calls]:
                running.results()
        assert sorted(autocast for autocast, _ in seen) == sorted([autocast for autocast in calls for _ in range(4)])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs products in bfloat16")
def test_a_task_runs_under_the_autocast_of_its_thread(engine: Engine) -> None:
    seen: list[bool] = []

    def looks(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return scores

    async def call() -> None:
        await copyspec.agenerate([5, 6, 7], model=engine, max_new_tokens=2, ignore_eos=True, logits_processor=looks)  # type: ignore[arg-type]

    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            asyncio.run(call())
    assert seen == [True, True, False, False]
