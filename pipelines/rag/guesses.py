"""The parts of speculative retrieval (`rounds`): a text that grows by steps, guesses, and batches being verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, Protocol, TypeVar

Query = TypeVar("Query")
Answer = TypeVar("Answer")
Found = TypeVar("Found", covariant=True)


class Task(Protocol[Query, Answer]):
    """A text that grows by steps, each depending on the answer to a query to the knowledge base."""

    @property
    def position(self) -> int:
        """Length of the text, in tokens."""
        ...

    def query(self) -> Query:
        """Return the query for the next step."""
        ...

    def guess(self, query: Query) -> Answer | None:
        """Guess the answer without the knowledge base; None: no guess."""
        ...

    def same(self, guess: Answer, truth: Answer) -> bool:
        """Whether the text continues in the same way with both answers."""
        ...

    def reads(self, answer: Answer) -> bool:
        """Whether a step with this answer begins with a prefill of it, which a wrong guess would waste."""
        ...

    def take(self, answer: Answer) -> None:
        """Use this answer for the next step."""
        ...

    def advance(self, abandon: Callable[[], bool]) -> bool:
        """Make the step. Returns whether the text ends with it. The step may stop early once `abandon()` is true,
        because it will be discarded."""
        ...

    def back(self, position: int) -> None:
        """Discard everything after `position`, which is an earlier value of `position`."""
        ...


class Verification(Protocol[Found]):
    """A running search."""

    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        ...

    def result(self) -> Sequence[Found]:
        """Wait for the answers, one for each query."""
        ...

    @property
    def seconds(self) -> float:
        """Duration of the search itself."""
        ...

    def cancel(self) -> None:
        """Cancel the search; its result is not needed."""
        ...


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

    def __init__(self, task: Task[Query, Answer], guesses: list[Guess[Query, Answer]], search: Verification[Answer]):
        """`search`: for the guesses' queries, just submitted."""
        self._task = task
        self.guesses = guesses
        self.search = search
        self._sent = perf_counter()
        self._right: int | None = None

    @property
    def right(self) -> int:
        """Number of right guesses before the first wrong one; waits for the search."""
        if self._right is None:
            right = 0
            for guess, truth in zip(self.guesses, self.search.result(), strict=True):
                if guess.answer is None or not self._task.same(guess.answer, truth):
                    break
                right += 1
            self._right = right
        return self._right

    def has_failed(self) -> bool:
        """Whether a guess is known to be wrong. Does not wait; raises what the search raised."""
        return self.search.done() and self.right < len(self.guesses)

    def late(self) -> float:
        """Seconds since the search ended."""
        return max(0.0, perf_counter() - self._sent - self.search.seconds)
