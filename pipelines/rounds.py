"""Rounds of speculative retrieval: steps are made under guessed answers while a batch of the guesses is verified.

One text grows step by step, and before each step a knowledge base is asked what it goes on with. `plainly` waits for
each answer. `Rounds` guesses several in turn, verifies them in one search, in a worker thread while it goes on, and
goes back to the first wrong one: the same steps under the same answers, in less time. Zhang et al. 2024 (RaLMSpec,
arXiv:2401.14021), algorithm 1 and section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from copyspec.retrievers import Plan, Scheduler, SpeculationStats

Query = TypeVar("Query")
Answer = TypeVar("Answer")
Found = TypeVar("Found", covariant=True)


class Task(Protocol[Query, Answer]):
    """A text that grows by steps, each under the answer to a query."""

    @property
    def position(self) -> int:
        """Where the text stands, in tokens."""
        ...

    def query(self) -> Query:
        """What the knowledge base is asked for the next step."""
        ...

    def guess(self, query: Query) -> Answer | None:
        """An answer without the knowledge base; None: no idea."""
        ...

    def same(self, guess: Answer, truth: Answer) -> bool:
        """Whether the text goes on alike with both."""
        ...

    def take(self, answer: Answer) -> None:
        """The next step is made under this answer."""
        ...

    def advance(self, abandon: Callable[[], bool]) -> bool:
        """Makes the step; True where the text ends with it. A step may be left off once `abandon()`: it will be
        taken back."""
        ...

    def back(self, position: int) -> None:
        """Takes everything back that came after `position`, which was a position before."""
        ...


class Verification(Protocol[Found]):
    """A search under way."""

    def done(self) -> bool:
        """Whether `result` returns, or raises, at once."""
        ...

    def result(self) -> Sequence[Found]:
        """The answers, one for each query; waits for them."""
        ...

    @property
    def seconds(self) -> float:
        """Of the search itself."""
        ...

    def cancel(self) -> None:
        """Nobody waits for the result any more."""
        ...


Submit = Callable[[Sequence[Query]], Verification[Answer]]
"""Starts a search for the answers to some queries."""


def _never() -> bool:
    return False


def plainly(task: Task[Query, Answer], submit: Submit[Query, Answer]) -> Iterator[int]:
    """The text without speculation; gives the position after each step."""
    ended = False
    while not ended:
        task.take(submit([task.query()]).result()[0])
        ended = task.advance(_never)
        yield task.position


@dataclass(frozen=True, slots=True)
class _Guess(Generic[Query, Answer]):
    position: int  # where the text stood
    query: Query
    answer: Answer | None


class _Flight(Generic[Query, Answer]):
    """A batch of guesses that is being verified."""

    def __init__(self, task: Task[Query, Answer], guesses: list[_Guess[Query, Answer]], search: Verification[Answer]):
        self._task = task
        self.guesses = guesses
        self.search = search
        self._right: int | None = None

    @property
    def right(self) -> int:
        """How many guesses are right before the first wrong one; waits for the search."""
        if self._right is None:
            right = 0
            for guess, truth in zip(self.guesses, self.search.result(), strict=True):
                if guess.answer is None or not self._task.same(guess.answer, truth):
                    break
                right += 1
            self._right = right
        return self._right

    def has_failed(self) -> bool:
        """Whether it is known that a guess was wrong. Never waits; raises what the search raised."""
        return self.search.done() and self.right < len(self.guesses)


class Rounds(Generic[Query, Answer]):
    """One text by speculative retrieval. `run` gives each position up to which the text is verified."""

    def __init__(
        self,
        task: Task[Query, Answer],
        submit: Submit[Query, Answer],
        scheduler: Scheduler,
        *,
        keeps_guessing: bool = True,
    ) -> None:
        """`keeps_guessing`: guess also in rounds that wait for each answer, so that it is seen when guesses get
        right."""
        self._task, self._submit, self._scheduler = task, submit, scheduler
        self._keeps_guessing = keeps_guessing
        self.stats = SpeculationStats()
        self._open: list[_Guess[Query, Answer]] = []  # not sent yet
        self._flight: _Flight[Query, Answer] | None = None
        self._ended = False  # the text, as far as the guesses are right
        self._stuck = False  # no guess for the next step, or it raised `_error`
        self._error: Exception | None = None
        self._plan = Plan()

    def run(self) -> Iterator[int]:
        """Closing the iterator leaves the search under way behind; the exceptions of searches and steps arrive."""
        try:
            self._task.take(self._answers([self._task.query()])[0])
            self._plan = self._scheduler.plan()
            while not (self._ended and not self._open and self._flight is None):
                yield from self._go_on()
        finally:
            if self._flight is not None:
                self._flight.search.cancel()

    def _go_on(self) -> Iterator[int]:
        """The next thing to do; gives the new verified position where there is one."""
        if self._flight is not None and (self._flight.search.done() or not self._may_guess()):
            yield self._settle(self._flight)
        elif self._flight is None and not self._open and not self._plan.speculates:
            self._wait_for_one()
            yield self._task.position
        elif self._may_guess():
            self._guess_one()
        elif self._open:
            self._send()
            if not self._scheduler.overlaps and self._flight is not None:
                yield self._settle(self._flight)
        if self._ended and not self._open and self._flight is None:
            yield self._task.position

    def _may_guess(self) -> bool:
        free = not self._ended and not self._stuck
        return free and self._plan.speculates and len(self._open) < self._plan.stride

    def _guess_one(self) -> None:
        """One speculation step."""
        task, started = self._task, perf_counter()
        abandon = self._flight.has_failed if self._flight is not None else _never
        try:
            self._ended = task.advance(abandon)
            if abandon():
                return
            if not self._ended:
                query = task.query()
                guess = task.guess(query)
                self._open.append(_Guess(task.position, query, guess))
                self._stuck = guess is None
                if guess is not None:
                    task.take(guess)
        except Exception as error:
            if not self._open and self._flight is None:
                raise
            # The plain form might never have come here: first it must be known that the guesses were right.
            self._error, self._stuck = error, True
        self._scheduler.observe_step(perf_counter() - started)

    def _wait_for_one(self) -> None:
        """A step and its retrieval as in the plain form."""
        task, started = self._task, perf_counter()
        self._ended = task.advance(_never)
        if self._ended:
            return
        query = task.query()
        guess = task.guess(query) if self._keeps_guessing else None
        self._scheduler.observe_step(perf_counter() - started)
        truth = self._answers([query])[0]
        if self._keeps_guessing:
            right = int(guess is not None and task.same(guess, truth))
            self._scheduler.observe_round(right, 1)
        task.take(truth)
        self._plan = self._scheduler.plan()

    def _send(self) -> None:
        """The open guesses go to the worker; the next round begins."""
        self._flight = _Flight(self._task, self._open, self._submit([guess.query for guess in self._open]))
        self._open = []
        self._stuck = self._error is not None or self._flight.guesses[-1].answer is None
        self._plan = self._scheduler.plan()

    def _settle(self, flight: _Flight[Query, Answer]) -> int:
        """Waits for the batch, and goes back where a guess was wrong. Returns the position that is verified."""
        truths = self._waited(flight.search)
        self._flight = None
        guesses, right = flight.guesses, flight.right
        self._scheduler.observe_search(len(guesses), flight.search.seconds)
        self._scheduler.observe_round(right, len(guesses))
        verified = min(right + 1, len(guesses))
        self.stats += SpeculationStats(guesses=verified, right=right, rounds=1, kept=verified)
        if right == len(guesses):
            if self._error is not None and not self._open:
                raise self._error
            return guesses[-1].position
        wrong = guesses[right]
        self.stats += SpeculationStats(wasted=self._task.position - wrong.position)
        self._task.back(wrong.position)
        self._task.take(truths[right])
        self._open, self._ended, self._stuck, self._error = [], False, False, None
        self._plan = self._scheduler.plan()
        return wrong.position

    def _answers(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """A search that is waited for."""
        search = self._submit(queries)
        found = self._waited(search)
        self._scheduler.observe_search(len(queries), search.seconds)
        return found

    def _waited(self, search: Verification[Answer]) -> Sequence[Answer]:
        started = perf_counter()
        found = search.result()
        waited = perf_counter() - started
        seconds = search.seconds
        self.stats += SpeculationStats(
            searches=1, queries=len(found), search_seconds=seconds, waited_seconds=min(waited, seconds)
        )
        return found
