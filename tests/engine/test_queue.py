"""The engine's queue: callers share batches, and each gets its own output, its own errors and its rows back."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria

from copyspec import Engine
from copyspec.engine import queue
from copyspec.engine.call_options import check_options
from copyspec.engine.engine import finish
from copyspec.engine.queue import EngineQueue
from tests.helpers.texts import byte_level, counted, llama

pytestmark = pytest.mark.usefixtures("steady_drafts")

ROOT = Path(__file__).parent.parent.parent
PROMPTS = [f"The {word} sat on the mat" for word in ("cat", "dog", "star", "sea", "sky", "school", "day", "grammar")]


@pytest.fixture
def engine() -> Engine:
    return Engine(llama(len(byte_level())), byte_level(), name="tiny")


@pytest.fixture
def shared() -> Iterator[EngineQueue]:
    made = EngineQueue()
    yield made
    made.close()


class Callers:
    """Calls of one engine through one queue, all with the same options."""

    def __init__(self, engine: Engine, shared: EngineQueue, **options: object) -> None:
        self.engine, self.queue = engine, shared
        self.options = {"max_new_tokens": 24, "ignore_eos": True, **options}

    def stream(self, *prompts: str, timeout: float | None = None, **more: object) -> Iterator[object]:
        checked = check_options({**self.options, **more})
        jobs, _ = self.engine.jobs(list(prompts), None, checked)
        self.jobs = jobs
        return self.queue.steps(self.engine, [job.request for job in jobs], checked, timeout=timeout)

    def texts(self, *prompts: str, **more: object) -> list[str]:
        checked = check_options({**self.options, **more})
        jobs, _ = self.engine.jobs(list(prompts), None, checked)
        steps = self.queue.steps(self.engine, [job.request for job in jobs], checked)
        return [result.text for result in finish(jobs, steps, checked.n)]

    def plain(self, *prompts: str) -> list[str]:
        return [self.engine.generate(prompt, drafter="none", **self.options).text for prompt in prompts]  # type: ignore[call-overload]

    @property
    def running(self) -> int:
        return sum(len(lane.running) for lane in self.queue._lanes.values())

    @property
    def waiting(self) -> int:
        return sum(len(lane.waiting) for lane in self.queue._lanes.values())


@pytest.fixture
def callers(engine: Engine, shared: EngineQueue) -> Callers:
    return Callers(engine, shared)


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
        with callers.engine._lock:  # nobody starts before all have come
            futures = [pool.submit(callers.texts, prompt) for prompt in PROMPTS]
            until(lambda: callers.waiting + callers.running >= len(PROMPTS) - 1)
        assert [future.result()[0] for future in futures] == wanted
        assert together() < alone / 2


def test_callers_with_other_draft_options_or_sizes_get_their_own_batch(callers: Callers) -> None:
    wanted = callers.plain(*PROMPTS[:3])
    with ThreadPoolExecutor(3) as pool:
        some = pool.submit(callers.texts, PROMPTS[0], batch_size=2)
        none = pool.submit(callers.texts, PROMPTS[1], drafter="none")
        assert [*some.result(), *none.result(), *callers.texts(PROMPTS[2])] == wanted


def test_a_caller_of_many_does_not_keep_one_waiting(callers: Callers) -> None:
    ended: list[str] = []

    def ask(name: str, *prompts: str) -> None:
        for outputs in callers.stream(*prompts, batch_size=1, max_new_tokens=4):
            ended.extend(name for output in outputs if output.finish is not None)  # type: ignore[attr-defined]

    with callers.engine._lock:
        threads = [threading.Thread(target=ask, args=("many", *PROMPTS, *PROMPTS))]
        threads[0].start()
        until(lambda: callers.waiting == 1 or callers.running == 1)
        threads.append(threading.Thread(target=ask, args=("one", PROMPTS[0])))
        threads[1].start()
        until(lambda: callers.waiting == 2)
    for thread in threads:
        thread.join()
    assert ended.index("one") <= 2 and len(ended) == 17


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
    with callers.engine._lock, pytest.raises(TimeoutError, match=r"within timeout=0.01 seconds; give it more"):
        next(callers.stream(PROMPTS[0], timeout=0.01))
    until(lambda: callers.waiting == 0 and callers.running == 0)


def test_cancelling_a_task_frees_its_row_within_a_step(callers: Callers) -> None:
    async def main() -> None:
        checked = check_options({**callers.options, "max_new_tokens": 200})
        jobs, _ = callers.engine.jobs(PROMPTS[0], None, checked)
        begun = asyncio.Event()

        async def read() -> None:
            async for _ in callers.queue.asteps(callers.engine, [job.request for job in jobs], checked):
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


def test_tasks_share_a_batch_and_a_late_one_is_told(callers: Callers) -> None:
    async def ask(prompt: str, timeout: float | None = None) -> str:
        checked = check_options(callers.options)
        jobs, _ = callers.engine.jobs(prompt, None, checked)
        requests = [job.request for job in jobs]
        async for outputs in callers.queue.asteps(callers.engine, requests, checked, timeout=timeout):
            for output in outputs:
                jobs[output.row].add(output)
        return finish(jobs, iter(()), 1)[0].text

    async def main() -> None:
        assert await asyncio.gather(*map(ask, PROMPTS)) == callers.plain(*PROMPTS)
        with callers.engine._lock, pytest.raises(TimeoutError, match="no complete answer"):
            await ask(PROMPTS[0], timeout=0.01)

    asyncio.run(main())


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


def test_an_engine_that_was_unloaded_meanwhile_says_so(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0])
    callers.engine.unload()
    with pytest.raises(RuntimeError, match="was unloaded"):
        next(stream)


def test_an_idle_worker_ends_and_another_one_starts(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "IDLE_SECONDS", 0.01)
    wanted = callers.texts(PROMPTS[0])
    lanes = list(callers.queue._lanes.values())
    until(lambda: not callers.queue._lanes and not any(lane.worker.is_alive() for lane in lanes))
    assert callers.texts(PROMPTS[0]) == wanted


def test_an_idle_worker_leaves_the_model_to_others(callers: Callers) -> None:
    callers.texts(PROMPTS[0])
    until(lambda: callers.running == 0)
    assert callers.engine._lock.acquire(timeout=30)
    callers.engine._lock.release()
    assert callers.engine.generate(PROMPTS[0], **callers.options).text == callers.plain(PROMPTS[0])[0]  # type: ignore[call-overload]


def test_closing_the_queue_tells_who_waits(callers: Callers) -> None:
    stream = callers.stream(PROMPTS[0], max_new_tokens=200)
    next(stream)
    callers.queue.close()
    with pytest.raises(RuntimeError, match="the program is ending"):
        list(stream)
    with pytest.raises(RuntimeError, match="the queue is closed"):
        callers.texts(PROMPTS[0])


def test_a_program_may_end_while_a_stream_is_open() -> None:
    code = (
        "from copyspec.engine.call_options import check_options\n"
        "from copyspec.engine.queue import queue_of\n"
        "from tests.helpers.texts import engine\n"
        "options = check_options({'max_new_tokens': 200, 'ignore_eos': True})\n"
        "jobs, _ = engine().jobs('The cat', None, options)\n"
        "stream = queue_of(engine()).steps(engine(), [jobs[0].request], options)\n"
        "print(len(next(stream)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_an_engine_has_one_queue_and_keeps_nothing_alive() -> None:
    engine = Engine(llama(len(byte_level())), byte_level(), name="tiny")
    assert queue.queue_of(engine) is queue.queue_of(engine)
    before = len(queue._QUEUES)
    del engine
    gc.collect()
    assert len(queue._QUEUES) < before
