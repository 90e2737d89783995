"""What rounds of speculative retrieval are made of: a text that grows by steps, and batches of guesses under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

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

    def reads(self, answer: Answer) -> bool:
        """Whether a step under this answer begins with reading it: work that a wrong guess wastes."""
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


@dataclass(frozen=True, slots=True)
class Guess(Generic[Query, Answer]):
    """What the text goes on with after a position, before the knowledge base says so."""

    position: int  # where the text stood
    query: Query
    answer: Answer | None  # None: there is none, or none that is worth going on under
    withheld: Answer | None = None  # the guess that was not worth it
    reads: bool = False  # whether the guess has to be read


class Flight(Generic[Query, Answer]):
    """A batch of guesses that is being verified."""

    def __init__(self, task: Task[Query, Answer], guesses: list[Guess[Query, Answer]], search: Verification[Answer]):
        """`search` is for the guesses' queries, and was just submitted."""
        self._task = task
        self.guesses = guesses
        self.search = search
        self._sent = perf_counter()
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

    def late(self) -> float:
        """Seconds since the search ended."""
        return max(0.0, perf_counter() - self._sent - self.search.seconds)
