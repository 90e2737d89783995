"""Rounds of speculative retrieval: steps are made with guessed answers while a batch of guesses is verified.

A text grows step by step, and each step needs an answer from a knowledge base. `plainly` waits for each answer.
`Rounds` guesses several, verifies them with one search in a worker thread while it continues, and goes back to the
first wrong one: the same steps with the same answers, in less time. Zhang et al. 2024 (RaLMSpec, arXiv:2401.14021),
algorithm 1 and section 4. Unlike there, a search that ends during a step does not wait for the end of the step: if all
its guesses were right, its thread goes on with those that were made meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from copyspec.common.forks import fork_safe
from copyspec.retrievers import Plan, Scheduler, Search, SpeculationStats

Query = TypeVar("Query")
Answer = TypeVar("Answer")


class Task(Protocol[Query, Answer]):
    """A text that grows by steps, each depending on the answer to a query to the knowledge base."""

    @property
    def position(self) -> int:
        """Length of the text, in tokens."""

    def query(self) -> Query:
        """Return the query for the next step."""

    def guess(self, query: Query) -> Answer | None:
        """Guess the answer without the knowledge base; None: no guess."""

    def same(self, guess: Answer, truth: Answer) -> bool:
        """Whether the text continues in the same way with both answers."""

    def reads(self, answer: Answer) -> bool:
        """Whether a step with this answer begins with a prefill of it, which a wrong guess would waste."""

    def take(self, answer: Answer) -> None:
        """Use this answer for the next step."""

    def advance(self, abandon: Callable[[], bool]) -> bool:
        """Make the step. Returns whether the text ends with it. The step may stop early once `abandon()` is true,
        because it will be discarded."""

    def back(self, position: int) -> None:
        """Discard everything after `position`, which is an earlier value of `position`."""


@dataclass(frozen=True, slots=True)
class Guess(Generic[Query, Answer]):
    """A guessed answer for a step, to be verified by the knowledge base."""

    position: int  # length of the text at that time
    query: Query
    answer: Answer | None  # None: there is no guess, or none worth continuing with
    withheld: Answer | None = None  # the guess that was not worth continuing with
    reads: bool = False  # whether the guess needs a prefill


class GuessBatch(Generic[Query, Answer]):
    """A batch of guesses being verified."""

    def __init__(self, task: Task[Query, Answer], guesses: list[Guess[Query, Answer]]) -> None:
        self._task = task
        self.guesses = guesses
        self.search: Search[Sequence[Answer]]
        """For the guesses' queries."""
        self._sent = perf_counter()
        self._right: int | None = None

    @property
    def right(self) -> int:
        """Number of right guesses before the first wrong one; waits for the search."""
        if self._right is None:
            self._right = self.compared(self.search.result())
        return self._right

    def compared(self, truths: Sequence[Answer]) -> int:
        """Number of guesses before the first one that is not like these answers."""
        right = 0
        for guess, truth in zip(self.guesses, truths, strict=True):
            if guess.answer is None or not self._task.same(guess.answer, truth):
                break
            right += 1
        return right

    def has_failed(self) -> bool:
        """Whether a guess is known to be wrong. Does not wait; raises what the search raised."""
        return self.search.done() and self.right < len(self.guesses)

    def late(self) -> float:
        """Seconds since the search ended."""
        return max(0.0, perf_counter() - self._sent - self.search.seconds)


SearchHere = Callable[[Sequence[Query]], Search[Sequence[Answer]]]
"""Searches for the answers to the queries, in the caller's thread."""

Submit = Callable[[Sequence[Query], Callable[[Sequence[Answer]], None]], Search[Sequence[Answer]]]
"""Starts such a search in another thread, where it calls the function with the answers before it is done."""


GUESS_EVERY, MAX_APART = 2, 32
"""In rounds that wait for their answer, one in GUESS_EVERY also guesses, to notice when guesses become right. A guess
costs time, so the interval doubles up to MAX_APART while guesses change nothing."""


def _never() -> bool:
    return False


def plainly(task: Task[Query, Answer], search: SearchHere[Query, Answer]) -> Iterator[int]:
    """Write the text without speculation. Yields the position after each step."""
    ended = False
    while not ended:
        task.take(search([task.query()]).result()[0])
        ended = task.advance(_never)
        yield task.position


class Rounds(Generic[Query, Answer]):
    """Writes one text with speculative retrieval. `run` yields the positions up to which the text is verified."""

    def __init__(
        self,
        task: Task[Query, Answer],
        submit: Submit[Query, Answer],
        search: SearchHere[Query, Answer],
        scheduler: Scheduler,
        *,
        guesses_first: bool = False,
    ) -> None:
        """`search`: for answers that are needed at once, since another thread takes time to wake.
        `guesses_first`: guess the first answer, too, once the scheduler knows that guesses pay."""
        self._task, self._submit, self._search, self._scheduler = task, submit, search, scheduler
        self._guesses_first = guesses_first
        self.stats = SpeculationStats()
        self._open: list[Guess[Query, Answer]] = []  # guesses not submitted yet
        self._batches: deque[GuessBatch[Query, Answer]] = deque()  # being verified; more than one in a long step
        self._sending = fork_safe(threading.Lock())  # held until a batch that is sent is listed
        self._closed = False
        self._began = 0.0  # time of the last step's beginning
        self._ended = False  # whether the text has ended, if the guesses are right
        self._stuck = False  # whether there is no guess for the next step, or it raised `_error`
        self._error: Exception | None = None
        self._plan = Plan()
        self._reads = True  # whether the next step begins with a prefill
        self._waits = 0  # rounds that waited for their answer since the last of them that guessed
        self._apart = GUESS_EVERY
        self._settled = perf_counter()  # time of the last verification
        self._held = 0.0  # seconds that submitting the last batch took: its whole search, without overlap

    def run(self) -> Iterator[int]:
        """Write the text. Exceptions of searches and steps are raised; closing the iterator abandons the search."""
        self._settled = perf_counter()
        try:
            if not self._begun_by_guess():
                answer = self._answers([self._task.query()])[0]
                self._take(answer, self._task.reads(answer))
                self._plan = self._scheduler.plan()
            while not (self._ended and not self._open and not self._batches):
                yield from self._go_on()
        finally:
            self._closed = True  # without the lock: this may run as a finaliser, in any thread
            for batch in self._batches.copy():
                batch.search.cancel()

    def _begun_by_guess(self) -> bool:
        self._plan = self._scheduler.plan()
        if not self._guesses_first or not self._plan.speculates:
            return False
        guess = self._made()
        if guess.answer is None:
            return False
        self._open.append(guess)
        self._take(guess.answer, guess.reads)
        return True

    def _go_on(self) -> Iterator[int]:
        """Do the next action. Yields the new verified position, if there is one.

        The first that applies of: settle the batch, if its search has ended or nothing else can be done; wait for one
        answer, if the plan is not to guess; guess one more step; send the open guesses as a batch."""
        if self._batches and (self._batches[0].search.done() or not self._may_guess()):
            yield self._settle(self._batches[0])
        elif not self._batches and not self._open and not self._plan.speculates:
            self._wait_for_one()
            yield self._task.position
        elif self._may_guess():
            self._guess_one()
        elif self._open:
            # The end of this search finds it listed. One in this thread may take long, and forks wait for locks.
            with self._sending if self._scheduler.overlaps else nullcontext():
                self._send()
            if not self._scheduler.overlaps:
                yield self._settle(self._batches[0])
        if self._ended and not self._open and not self._batches:
            yield self._task.position

    def _may_guess(self) -> bool:
        free = not self._ended and not self._stuck
        if not free or not self._plan.speculates:
            return False
        made = len(self._open)
        are_enough = not self._batches and made and self._scheduler.is_enough(made, self._plan)
        return made < self._plan.ahead and not are_enough

    def _guess_one(self) -> None:
        """Make one speculation step."""
        task, started, reads = self._task, perf_counter(), self._reads
        is_first = not task.position
        self._began = started
        try:
            self._ended = task.advance(self._has_failed)
            if self._has_failed():
                return
            if not self._ended:
                guess = self._made()
                self._open.append(guess)
                self._stuck = guess.answer is None
                if guess.answer is not None:
                    self._take(guess.answer, guess.reads)
        except Exception as error:
            if not self._open and not self._batches:
                raise
            # The plain form might never raise this: the guesses before must be verified first.
            self._error, self._stuck = error, True
        self._scheduler.observe_step(perf_counter() - started, reads=reads, is_first=is_first)

    def _made(self) -> Guess[Query, Answer]:
        """The guess for the next step; one that needs a prefill is withheld unless that pays."""
        task = self._task
        query = task.query()
        guess = task.guess(query)
        reads = guess is not None and task.reads(guess)
        if reads and not self._scheduler.reads():
            return Guess(task.position, query, None, guess, reads)
        return Guess(task.position, query, guess, None, reads)

    def _take(self, answer: Answer, reads: bool) -> None:
        self._task.take(answer)
        self._reads = reads

    def _wait_for_one(self) -> None:
        """Make a step and its retrieval as in the plain form."""
        task, started, reads = self._task, perf_counter(), self._reads
        is_first = not task.position
        self._ended = task.advance(_never)
        if self._ended:
            return
        query = task.query()
        self._waits += 1
        tries = self._waits >= self._apart
        guess = task.guess(query) if tries else None
        self._scheduler.observe_step(perf_counter() - started, reads=reads, is_first=is_first)
        truth = self._answers([query])[0]
        if tries:
            right = guess is not None and task.same(guess, truth)
            self._scheduler.observe_round(int(right), 1)
            self._scheduler.observe_late(0.0)  # else one bad measurement would end speculation for good
            if guess is not None and task.reads(guess):
                self._scheduler.observe_change(right)
        self._take(truth, task.reads(truth))
        if not tries:
            self._pace(1, speculates=False)
        if self._waits % GUESS_EVERY == 0:  # planning takes time too
            self._plan = self._scheduler.plan()
        if tries:
            self._waits, self._apart = 0, GUESS_EVERY if self._plan.speculates else min(2 * self._apart, MAX_APART)
            self._settled = perf_counter()

    def _pace(self, steps: int, *, speculates: bool) -> None:
        now = perf_counter()
        self._scheduler.observe_pace(now - self._settled, steps, speculates=speculates)
        self._settled = now

    def _has_failed(self) -> bool:
        """Whether a guess is known to be wrong: one of the last batch, as none is sent after it."""
        return bool(self._batches) and self._batches[-1].has_failed()

    def _send(self) -> None:
        """Submit the open guesses to the worker."""
        count = self._scheduler.batch(len(self._open))
        batch = GuessBatch(self._task, self._open[:count])
        queries = [guess.query for guess in batch.guesses]
        started = perf_counter()
        if self._scheduler.overlaps:
            batch.search = self._submit(queries, partial(self._send_next, batch))
        else:
            batch.search = self._search(queries)
        self._held = perf_counter() - started
        del self._open[:count]
        self._batches.append(batch)
        if self._closed:  # while this one was not listed yet
            batch.search.cancel()

    def _send_next(self, batch: GuessBatch[Query, Answer], truths: Sequence[Answer]) -> None:
        """At the end of a search, in its thread: submit the guesses that were made meanwhile, if they are enough and
        all of this batch were right."""
        with self._sending:
            made = len(self._open)
            if not made or self._closed or batch.compared(truths) < len(truths):
                return
            ended = self._ended or self._stuck
            if ended or self._scheduler.is_enough(made, self._plan, perf_counter() - self._began):
                self._send()

    def _settle(self, batch: GuessBatch[Query, Answer]) -> int:
        """Wait for the batch, and go back to the first wrong guess. Returns the verified position."""
        truths = self._waited(batch.search, perf_counter() - self._held)
        self._batches.popleft()
        guesses, right = batch.guesses, batch.right
        self._learn(batch, truths)
        verified = min(right + 1, len(guesses))
        self._pace(verified, speculates=True)
        withheld = right < verified and guesses[right].withheld is not None
        self.stats += SpeculationStats(guesses=verified - withheld, right=right, rounds=1, kept=verified)
        self._plan = self._scheduler.plan()
        if right == len(guesses):
            if self._error is not None and not self._open and not self._batches:
                raise self._error
            return guesses[-1].position
        wrong = guesses[right]
        self.stats += SpeculationStats(wasted=self._task.position - wrong.position)
        self._task.back(wrong.position)
        self._take(truths[right], self._task.reads(truths[right]))
        self._open, self._ended, self._stuck, self._error = [], False, False, None
        return wrong.position

    def _learn(self, batch: GuessBatch[Query, Answer], truths: Sequence[Answer]) -> None:
        guesses, right, scheduler = batch.guesses, batch.right, self._scheduler
        scheduler.observe_search(len(guesses), batch.search.seconds)
        for guess, truth in zip(guesses[: right + 1], truths, strict=False):
            made = guess.answer if guess.answer is not None else guess.withheld
            if guess.reads and made is not None:
                scheduler.observe_change(self._task.same(made, truth))
        withheld = right < len(guesses) and guesses[right].withheld is not None
        # Steps without a guess are no evidence of how often guesses are right.
        scheduler.observe_round(right, right if withheld else len(guesses))
        if right < len(guesses) and not withheld and scheduler.overlaps:
            scheduler.observe_late(batch.late())

    def _answers(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """Search and wait for the answers."""
        started = perf_counter()
        search = self._search(queries)
        answers = self._waited(search, started)
        self._scheduler.observe_search(len(queries), search.seconds)
        return answers

    def _waited(self, search: Search[Sequence[Answer]], started: float) -> Sequence[Answer]:
        """Wait for a search. `started`: the time when waiting began."""
        answers = search.result()
        waited = perf_counter() - started
        seconds = search.seconds
        self.stats += SpeculationStats(
            searches=1, queries=len(answers), search_seconds=seconds, waited_seconds=min(waited, seconds)
        )
        return answers
