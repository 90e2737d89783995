"""Rounds of speculation: whatever is guessed and however long searches take, the text is that of waiting for each."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.pipelines.rag import rounds
from copyspec.pipelines.rag.rounds import Rounds, plainly
from copyspec.retrievers import Scheduler, Search
from copyspec.retrievers.speculative.scheduler import MOST, Costs, expected_steps, now_pays
from copyspec.retrievers.speculative.worker import Worker

STRIDE, LIMIT, END = 3, 30, 0
Query = tuple[int, ...]


def truth(query: Query) -> int:
    return hash(query) % 4


class Text:
    """A text in which each token follows from the answer and the tokens before it. Guesses are right with
    `accuracy`."""

    def __init__(self, seed: int, accuracy: float, fails: frozenset[int] = frozenset(), ending: int = 40) -> None:
        self.tokens: list[int] = []
        self.random, self.accuracy, self.ending = random.Random(seed), accuracy, ending
        self.fails = fails
        self.answer = -1
        self.positions: set[int] = {0}

    @property
    def position(self) -> int:
        return len(self.tokens)

    def query(self) -> Query:
        self.positions.add(self.position)
        return tuple(self.tokens[-5:])

    def guess(self, query: Query) -> int | None:
        if self.random.random() < self.accuracy:
            return truth(query)
        return self.random.choice([None, 0, 1, 2, 3])

    def same(self, guess: int, truth: int) -> bool:
        return guess == truth

    def reads(self, answer: int) -> bool:
        return answer != self.answer

    def take(self, answer: int) -> None:
        assert answer is not None
        self.answer = answer

    def advance(self, abandon: Callable[[], bool]) -> bool:
        for _ in range(STRIDE):
            if abandon():
                return False
            token = hash((self.answer, *self.tokens[-4:])) % self.ending
            if token in self.fails:
                raise OverflowError(f"token {token}")
            self.tokens.append(token)
            if token == END or len(self.tokens) == LIMIT:
                return True
        return False

    def back(self, position: int) -> None:
        assert position in self.positions and position <= self.position
        del self.tokens[position:]


class Searches:
    """Searches that complete after `patience` queries of their state, or when they are waited for."""

    def __init__(self, patience: Callable[[], int], failing: frozenset[int] = frozenset()) -> None:
        self.patience, self.failing, self.count = patience, failing, 0
        self.running: list[LateSearch] = []

    def submit(self, queries: Sequence[Query], then: Then | None = None) -> LateSearch:
        assert queries
        self.count += 1
        self.running.append(LateSearch(queries, self.patience(), self.count - 1 in self.failing, then))
        return self.running[-1]


Then = Callable[[Sequence[int]], None]


class LateSearch:
    def __init__(self, queries: Sequence[Query], patience: int, fails: bool, then: Then | None = None) -> None:
        self.queries, self.patience, self.fails, self.then = queries, patience, fails, then
        self.cancelled = self.seen = False
        self.seconds = 0.01

    def done(self) -> bool:
        self.patience -= 1
        if self.patience < 0:
            self.end()
        return self.patience < 0

    def end(self) -> None:
        then, self.then = self.then, None
        if then is not None and not self.fails:
            then([truth(query) for query in self.queries])

    def result(self) -> list[int]:
        self.end()
        self.patience, self.seen = 0, True
        if self.fails:
            raise ConnectionError("away")
        return [truth(query) for query in self.queries]

    def cancel(self) -> None:
        self.cancelled = True


def plain_text(fails: frozenset[int] = frozenset(), ending: int = 40) -> tuple[list[int], bool]:
    """Return the text, and whether it ends with an error."""
    text = Text(0, 1.0, fails, ending)
    try:
        list(plainly(text, Searches(lambda: 0).submit))
    except OverflowError:
        return text.tokens, True
    return text.tokens, False


@given(
    seed=st.integers(0, 1000),
    accuracy=st.floats(0.0, 1.0),
    overlaps=st.booleans(),
    stride=st.none() | st.integers(1, 8),
    fails=st.frozensets(st.integers(1, 39), max_size=2),
    ending=st.integers(5, 200),
)
def test_the_text_is_that_of_waiting_for_each_answer(
    seed: int, accuracy: float, overlaps: bool, stride: int | None, fails: frozenset[int], ending: int
) -> None:
    expected, raises = plain_text(fails, ending)
    text = Text(seed, accuracy, fails, ending)
    searches = Searches(lambda: text.random.randint(0, 9))
    run = Rounds(text, searches.submit, searches.submit, Scheduler(overlaps=overlaps, stride=stride))
    verified = 0
    try:
        for position in run.run():
            assert position >= verified
            verified = position
            assert text.tokens[:verified] == expected[:verified]
    except OverflowError:
        assert raises
    else:
        assert not raises and text.tokens == expected and verified == len(expected)
    stats = run.stats
    assert stats.right <= stats.guesses and stats.kept >= stats.rounds
    assert stats.queries >= stats.searches
    if accuracy == 1.0:
        assert stats.wasted == 0 and stats.hit_rate in (0.0, 1.0)


@pytest.mark.parametrize("stride", [None, 1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_searches_of_a_thread_follow_each_other_during_steps(seed: int, stride: int | None) -> None:
    """With the real worker, whose searches end at any moment of a step."""
    expected, _ = plain_text(ending=200)
    text, worker, rng = Text(seed, 0.9, ending=200), Worker(), random.Random(seed)

    def find(queries: Sequence[Query]) -> list[int]:
        sleep(rng.choice([0.0, 0.0005, 0.002]))
        return [truth(query) for query in queries]

    def advance(abandon: Callable[[], bool]) -> bool:
        sleep(0.001)
        return Text.advance(text, abandon)

    text.advance = advance  # type: ignore[method-assign]
    run = Rounds(
        text,
        lambda queries, then: worker.submit(lambda: find(queries), then),
        lambda queries: Search.here(lambda: find(queries)),
        Scheduler(stride=stride),
    )
    list(run.run())
    worker.close()
    assert text.tokens == expected
    assert run.stats.wasted >= 0 and run.stats.queries >= run.stats.searches


@given(
    seed=st.integers(0, 1000), failing=st.integers(0, 6), overlaps=st.booleans(), stride=st.none() | st.integers(1, 5)
)
def test_an_exception_of_a_search_arrives(seed: int, failing: int, overlaps: bool, stride: int | None) -> None:
    text = Text(seed, 0.5, ending=200)
    searches = Searches(lambda: text.random.randint(0, 9), frozenset([failing]))
    run = Rounds(text, searches.submit, searches.submit, Scheduler(overlaps=overlaps, stride=stride))
    try:
        list(run.run())
    except ConnectionError:
        assert searches.count == failing + 1
    else:
        assert searches.count <= failing


def test_nothing_is_searched_after_closing_and_interrupts_cancel() -> None:
    text = Text(0, 1.0, ending=10**9)
    searches = Searches(lambda: 10**9)
    run = Rounds(text, searches.submit, searches.submit, Scheduler(stride=2)).run()
    next(run)
    run.close()
    begun = searches.count
    assert searches.running[-1].cancelled
    searches.running[-1].end()  # it had begun before it was cancelled
    assert searches.count == begun

    def interrupted(abandon: Callable[[], bool]) -> bool:
        if searches.count > begun + 1:
            raise KeyboardInterrupt
        return Text.advance(text, abandon)

    text.advance = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        list(Rounds(text, searches.submit, searches.submit, Scheduler(stride=2)).run())
    assert searches.running[-1].cancelled and not searches.running[-1].seen


def test_steps_are_made_while_a_search_runs() -> None:
    text = Text(0, 1.0, ending=10**9)
    sent: list[int] = []
    waited: list[int] = []

    class Watched(LateSearch):
        def result(self) -> list[int]:
            waited.append(text.position)
            return super().result()

    def submit(queries: Sequence[Query], then: Then | None = None) -> LateSearch:
        sent.append(text.position)
        return Watched(queries, 10**9, False, then)

    assert list(Rounds(text, submit, submit, Scheduler(stride=2)).run())[-1] == LIMIT
    assert sent == [0, 6, 12, 18, 24, 30]
    assert sorted(set(waited)) == [0, 12, 18, 24, 30]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_wrong_guess_is_counted_and_taken_back(overlaps: bool) -> None:
    text = Text(0, 0.0, ending=10**9)
    text.guess = lambda query: (truth(query) + 1) % 4  # type: ignore[method-assign]
    submit = Searches(lambda: 0).submit
    run = Rounds(text, submit, submit, Scheduler(overlaps=overlaps, stride=4))
    list(run.run())
    assert text.tokens == plain_text(ending=10**9)[0]
    assert run.stats.right == 0 and run.stats.hit_rate == 0.0
    assert run.stats.kept_per_round == 1.0 and run.stats.wasted > 0


def test_a_search_in_the_callers_own_thread_hides_nothing() -> None:
    searches = Searches(lambda: 0)

    def search(queries: Sequence[Query]) -> LateSearch:
        sleep(LateSearch([], 0, False).seconds)
        return searches.submit(queries)

    run = Rounds(Text(0, 0.9), searches.submit, search, Scheduler(overlaps=False, stride=4))
    list(run.run())
    assert run.stats.rounds > 0 and run.stats.search_seconds > 0
    assert run.stats.hidden_seconds == pytest.approx(0.0, abs=1e-9)


class Clock:
    """A clock, in seconds, that advances only through the simulated work. At the end of a search, others follow it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[TimedSearch] = []

    def __call__(self) -> float:
        return self.now

    def go_to(self, time: float) -> None:
        while due := [search for search in self.alarms if search.end <= time]:
            search = min(due, key=lambda search: search.end)
            self.alarms.remove(search)
            self.now = max(self.now, search.end)
            if search.then is not None:
                search.then([search.text.truths[query // 4] for query in search.queries])
        self.now = max(self.now, time)


CALL, READING, STEPS = 0.003, 0.03, 12  # seconds per token and per new document; steps of a text


class TimedText:
    """A text whose tokens and documents take time. The document changes from step to step with probability
    `changes`."""

    def __init__(self, clock: Clock, seed: int, accuracy: float, changes: float, kept: int) -> None:
        self.clock, self.random, self.accuracy, self.kept = clock, random.Random(seed), accuracy, kept
        self.truths = [0]
        documents = random.Random(seed)
        for _ in range(STEPS):
            changed = documents.random() < changes
            self.truths.append(documents.randrange(12) if changed else self.truths[-1])
        self.position, self.document, self.open = 0, 0, [-1]

    def query(self) -> int:
        return self.position

    def guess(self, query: int) -> int:
        self.clock.go_to(self.clock.now + CALL / 10)
        right = self.random.random() < self.accuracy
        return self.truths[query // 4] if right else 100 + self.random.randrange(8)

    def same(self, guess: int, truth: int) -> bool:
        return guess == truth

    def reads(self, answer: int) -> bool:
        return answer not in self.open

    def take(self, answer: int) -> None:
        self.document = answer

    def advance(self, abandon: Callable[[], bool]) -> bool:
        if self.document in self.open:
            self.open.remove(self.document)
        else:
            self.clock.go_to(self.clock.now + READING)
        self.open = [*self.open, self.document][-self.kept :]
        for _ in range(4):
            if abandon():
                return False
            self.clock.go_to(self.clock.now + CALL)
            self.position += 1
        return self.position >= 4 * STEPS

    def back(self, position: int) -> None:
        self.position = position


class TimedSearch:
    def __init__(self, text: TimedText, queries: Sequence[int], seconds: float, then: Then | None = None) -> None:
        self.text, self.queries, self.seconds, self.then = text, queries, seconds, then
        self.end = text.clock.now + seconds
        text.clock.alarms.append(self)

    def done(self) -> bool:
        return self.text.clock.now >= self.end

    def result(self) -> list[int]:
        self.text.clock.go_to(self.end)
        return [self.text.truths[query // 4] for query in self.queries]

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("cost", [0.12, 0.25, 0.7, 1.1, 1.45, 4.0, 20.0])
@pytest.mark.parametrize(("accuracy", "changes"), [(1.0, 0.0), (0.9, 0.2), (0.5, 0.6), (0.0, 0.6)])
def test_speculation_costs_no_time_however_dear_searches_and_however_good_guesses_are(
    cost: float, accuracy: float, changes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without prefix caches of the model: both forms keep one document open."""
    search, clock = cost * 4 * CALL, Clock()
    monkeypatch.setattr(rounds, "perf_counter", clock)

    def seconds(scheduler: Scheduler | None) -> float:
        started = clock.now
        for seed in range(12):
            text = TimedText(clock, seed, accuracy, changes, kept=1)

            def submit(queries: Sequence[int], then: Then | None = None, text: TimedText = text) -> TimedSearch:
                return TimedSearch(text, queries, search * (1 + len(queries)) / 2, then)

            list(plainly(text, submit) if scheduler is None else Rounds(text, submit, submit, scheduler).run())
        return clock.now - started

    plain = seconds(None)
    assert plain > 0.97 * seconds(Scheduler())
    if accuracy == 1.0 and cost >= 0.7:
        assert plain > (1.6 if 1.0 < cost < 5.0 else 1.4) * seconds(Scheduler())


@given(gamma=st.floats(0.0, 1.0), costs=st.builds(Costs, *[st.floats(0.001, 10.0)] * 3), wait=st.floats(0.0, 10.0))
def test_guesses_wait_for_one_more_only_where_searches_are_the_bottleneck(
    gamma: float, costs: Costs, wait: float
) -> None:
    """And then for a bounded number: each further one saves less than it makes the others wait."""
    made = next(n for n in range(1, 20_000) if now_pays(gamma, costs, n, wait)) if wait > 0.001 else 1
    for fewer in range(1, min(made, 50)):
        assert costs.search(fewer) > fewer * costs.step
        later = expected_steps(gamma, fewer + 1) / (wait + costs.search(fewer + 1))
        assert later > expected_steps(gamma, fewer) / costs.search(fewer)


@pytest.mark.parametrize("patience", [6, 7, 8, 9, 11])  # ends within a step
def test_closing_waits_for_no_thread_that_sends(patience: int) -> None:
    """A stream that was dropped may be collected in any thread, and in the middle of sending."""
    text, scheduler = Text(0, 1.0, ending=10**9), Scheduler()
    searches = Searches(lambda: patience)
    for _ in range(64):
        scheduler.observe_step(1.0)
        scheduler.observe_round(1, 1)
    scheduler.observe_search(1, 1.0)

    def submit(queries: Sequence[Query], then: Then | None = None) -> LateSearch:
        if closes:
            steps.close()
        search = searches.submit(queries, then)
        search.seconds = 1.0
        return search

    closes, run = False, Rounds(text, submit, submit, scheduler)
    steps = run.run()
    next(position for position in steps if run._open and run._batches)
    closes, count = True, searches.count
    thread = threading.Thread(target=searches.running[-1].end, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert all(search.cancelled for search in searches.running[count - 1 :]) and searches.count == count + 1


@pytest.mark.parametrize("stride", [None, 1, 4])
def test_no_fork_waits_for_a_search(stride: int | None) -> None:
    text, searches, held = Text(0, 0.9), Searches(lambda: 0), list[bool]()

    def search(queries: Sequence[Query]) -> LateSearch:
        held.append(run._sending.locked())
        return searches.submit(queries)

    run = Rounds(text, searches.submit, search, Scheduler(overlaps=False, stride=stride))
    list(run.run())
    assert held and not any(held)


@settings(max_examples=30, deadline=None)
@given(seconds=st.floats(0.0, 100.0), step=st.floats(0.0, 0.01), patience=st.integers(0, 1000))
def test_no_more_guesses_are_open_than_the_scheduler_considers(seconds: float, step: float, patience: int) -> None:
    scheduler, searches = Scheduler(), Searches(lambda: patience)
    for _ in range(64):
        scheduler.observe_step(step)
        scheduler.observe_round(MOST, MOST)
    scheduler.observe_search(1, seconds)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LateSearch, "seconds", property(lambda _: seconds, lambda *_: None), raising=False)
        patched.setitem(globals(), "LIMIT", 400 * STRIDE)
        list(Rounds(Text(0, 1.0, ending=10**9), searches.submit, searches.submit, scheduler).run())
    assert max(len(search.queries) for search in searches.running) <= MOST


@pytest.mark.parametrize("steps", range(2, 5))
def test_the_scheduler_learns_from_texts_of_few_steps(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "LIMIT", steps * STRIDE)
    scheduler, searches = Scheduler(), Searches(lambda: 0)
    for seed in range(3):
        list(Rounds(Text(seed, 1.0, ending=10**9), searches.submit, searches.submit, scheduler).run())
    assert scheduler.costs is not None
