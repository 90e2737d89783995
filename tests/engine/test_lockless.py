"""What threads share without locks: sets that are listed while they change, and values that a forked child may make."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import copyspec
from copyspec.common.lockless import LiveSet, cached_property
from copyspec.engine.running import scheduler
from copyspec.retrievers.speculative import worker
from copyspec.targets.static import pools
from tests.helpers.tiny import tiny_model, tiny_tokenizer
from tests.test_structure import FILES


class Item:
    pass


@pytest.fixture(autouse=True)
def busy() -> Iterator[None]:
    """Switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(*works: Callable[[], object], seconds: float) -> None:
    """Repeat the works in threads of their own; raises the first error."""
    errors: list[BaseException] = []
    end = time.monotonic() + seconds

    def repeat(work: Callable[[], object]) -> None:
        try:
            while time.monotonic() < end and not errors:
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_a_set_holds_what_is_in_use() -> None:
    draw, items, shared = random.Random(0), [], LiveSet[Item]()
    for _ in range(600):
        if draw.random() < 0.6:
            items.append(Item())
            shared.add(items[-1])
            shared.add(items[-1])
        elif items:
            del items[draw.randrange(len(items))]
        if draw.random() < 0.05:
            assert sorted(map(id, shared)) == sorted(map(id, items))


def adding(add: Callable[[], object]) -> Callable[[], None]:
    results: list[object] = []

    def work() -> None:
        results.append(add())
        if len(results) > 50:
            results.clear()

    return work


def item(shared: LiveSet[Item]) -> Item:
    made = Item()
    shared.add(made)
    return made


def test_a_set_is_listed_while_threads_add_and_drop() -> None:
    shared = LiveSet[Item]()
    at_once(*[adding(lambda: item(shared))] * 2, lambda: list(shared), lambda: list(shared), seconds=1)


@pytest.mark.parametrize(
    ("make", "listed"),
    [
        (pools.FreePools, lambda: list(pools._ALL)),
        (worker.Worker, lambda: list(worker._WORKERS)),
        (lambda: worker.Worker().submit(int).result(), lambda: list(worker._RUNNING.items())),
    ],
    ids=["pools", "workers", "threads"],
)
def test_sets_of_the_package_are_listed_while_threads_add(
    make: Callable[[], object], listed: Callable[[], object]
) -> None:
    at_once(adding(make), adding(make), listed, seconds=1)


def test_calls_decode_while_engines_are_made() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    engine = copyspec.Engine(model, tokenizer)
    assert engine.scheduler in list(scheduler._ALL)
    at_once(
        adding(lambda: copyspec.Engine(model, tokenizer)),
        lambda: engine.generate(["he go", "she have"], max_new_tokens=2),
        lambda: engine.submit("he go", max_new_tokens=2).results(),
        seconds=3,
    )


def test_threads_of_ended_workers_are_forgotten() -> None:
    made = worker.Worker()
    assert made.submit(lambda: 1).result() == 1
    thread = made._thread
    assert thread in worker._RUNNING
    made.close()
    assert thread not in worker._RUNNING


class Slow:
    """Values that take time to make."""

    begun, going_on = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> object:
        """A value."""
        self.begun.set()
        self.going_on.wait(20)
        return object()


def test_a_value_is_made_once_and_is_the_same_for_all() -> None:
    slow, values = Slow(), list[object]()
    Slow.begun.clear(), Slow.going_on.clear()
    threads = [threading.Thread(target=lambda: values.append(slow.value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    Slow.going_on.set()
    for thread in threads:
        thread.join()
    assert len(values) == 8 and len(set(map(id, values))) == 1 and slow.value is values[0]
    assert Slow.value.__doc__ == "A value."
    slow.__dict__.clear()
    assert slow.value is not values[0]


def test_an_error_is_not_kept() -> None:
    class Failing:
        left = 1

        @cached_property
        def value(self) -> int:
            self.left -= 1
            return 1 // (self.left + 1) if self.left < 0 else 1 // self.left

    failing = Failing()
    with pytest.raises(ZeroDivisionError):
        _ = failing.value
    failing.left = 2
    assert failing.value == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("same", [False, True])
def test_a_child_goes_on_that_is_forked_while_a_value_is_made(same: bool) -> None:
    Slow.begun.clear(), Slow.going_on.clear()
    one = Slow()
    thread = threading.Thread(target=lambda: one.value)
    thread.start()
    Slow.begun.wait(20)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(10)
            Slow.begun, Slow.going_on = threading.Event(), threading.Event()  # the thread may have held their locks
            Slow.going_on.set()
            status = 0 if (one if same else Slow()).value else 1
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    Slow.going_on.set()
    thread.join()
    assert status == 0


def test_no_module_uses_what_other_threads_disturb() -> None:
    wrong = [
        f"{name}: {line.strip()}"
        for name, path in FILES.items()
        for line in path.read_text().splitlines()
        if re.search(r"from functools import .*\bcached_property\b|functools\.cached_property\(", line)
        or re.search(r"\bin (list\()?[\w.]*(WeakSet|WeakKeyDictionary|WeakValueDictionary)\b", line)
        or (re.search(r"\bWeakSet\[", line) and "held_at_fork" not in line)
    ]
    assert wrong == []
