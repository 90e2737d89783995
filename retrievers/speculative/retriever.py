"""Speculative retrieval: results are guessed from a cache, and verified by the knowledge base later and in batches.

Zhang et al. 2024 (RaLMSpec, arXiv:2401.14021), section 3. The cache ranks its texts by the base's own scores, so if it
holds the base's best text, that is the cache's best as well.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from operator import add, attrgetter
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from copyspec.common.checks import check_retriever
from copyspec.common.forks import fork_safe

from ..base import DEFAULT_K, Folder, Hit, Retriever, check_k, check_query, check_texts
from ..saving import Saving, Written
from ..shortlist import Shortlist, shortlist_of
from .worker import Search, Worker

T = TypeVar("T")

PREFETCH = 20
"""Hits of each base search that enter the cache, the paper's number: later queries of a text have similar results."""

CAPACITY = 1024
"""Texts in the cache: the hits of about fifty searches. Ranking them takes far less than a millisecond."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counters of speculation. A step is a stride of generated text, a token of kNN-LM, or an answer of `ask`."""

    guesses: int = 0  # verified guesses
    right: int = 0  # guesses that were right
    rounds: int = 0  # verified batches
    kept: int = 0  # steps of these rounds that were kept: up to the first wrong guess, and the step before it
    wasted: int = 0  # output tokens that were discarded
    searches: int = 0  # calls of the knowledge base
    queries: int = 0  # queries in these calls
    search_seconds: float = 0.0  # time of these calls
    waited_seconds: float = 0.0  # the part of it in which nothing else was done

    @property
    def hit_rate(self) -> float:
        """Share of the guesses that were right."""
        return self.right / self.guesses if self.guesses else 0.0

    @property
    def kept_per_round(self) -> float:
        """Measured average of the kept steps per round, the paper's E(s)."""
        return self.kept / self.rounds if self.rounds else 0.0

    @property
    def hidden_seconds(self) -> float:
        """Search time that overlapped with other work."""
        return max(0.0, self.search_seconds - self.waited_seconds)

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(*map(add, _numbers(self), _numbers(other)))


_numbers = attrgetter(*(field.name for field in fields(SpeculationStats)))


@dataclass(slots=True)
class Answer:
    """An answer of `SpeculativeRetriever.ask`."""

    query: str
    hit: Hit | None
    """The guess until it is verified, then the knowledge base's best hit, or None if it found nothing."""
    is_verified: bool = False
    was_right: bool = False


class SpeculativeRetriever(Retriever):
    """A cache in front of any retriever.

    `search` and `search_batch` search the base, and put the hits into the cache. `guess` answers from the cache alone.
    `ask` guesses, or searches while the cache is empty, and `verify` checks all open answers in one search. `submit`
    searches in a worker thread. The class is thread-safe; `close`, or the end of a `with` block, ends the worker.
    """

    def __init__(self, base: Retriever, *, prefetch: int = PREFETCH, capacity: int = CAPACITY) -> None:
        """`prefetch`: hits of each search that enter the cache; with HNSW, the number may change what is found first.
        `capacity`: size of the cache; the least recently found texts are evicted first. Raises TypeError if
        `base` is no retriever, ValueError for numbers below one."""
        check_retriever("base", base)
        check_k(prefetch, "prefetch")
        check_k(capacity, "capacity")
        if capacity < prefetch:
            raise ValueError(f"capacity must hold the {prefetch!r} hits of one search, got {capacity!r}")
        self.base = base
        self.prefetch = prefetch
        self._cache = _Cache(capacity)
        self._shortlist = shortlist_of(base)
        self._open: list[Answer] = []
        self._stats = SpeculationStats()
        self._lock = fork_safe(threading.Lock())  # guards cache, open answers and stats
        self._worker = Worker()

    @property
    def texts(self) -> Sequence[str]:
        """The base's texts."""
        return self.base.texts

    @property
    def stats(self) -> SpeculationStats:
        """Counters since the retriever was made."""
        with self._lock:
            return self._stats

    @property
    def cached(self) -> Sequence[int]:
        """Ids of the texts in the cache, least recently found first."""
        with self._lock:
            return self._cache.by_age()

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """Search the base for all queries at once."""
        wanted = check_k(k)
        checked = check_texts(queries, "queries")
        if not checked:
            return []
        started = perf_counter()
        results = self._search(checked, max(wanted, self.prefetch))
        self.count(SpeculationStats(waited_seconds=perf_counter() - started))
        return [hits[:wanted] for hits in results]

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the base's scores of these texts. [len(ids)]"""
        return self.base.score(check_query(query), ids)

    @property
    def no_match(self) -> float | None:
        """The base's score of texts that do not match a query; None if it ranks all."""
        score: float | None = getattr(self.base, "no_match", None)
        return score

    def add(self, texts: Sequence[str]) -> None:
        """Add texts to the base."""
        self.base.add(texts)

    def save(self, folder: Folder) -> None:
        """Write the base's index; the cache is not saved."""
        self.base.save(folder)

    def write(self, index: Saving) -> None:
        """Write the base's files into `index`, and commit it."""
        if not isinstance(self.base, Written):
            raise TypeError(f"a {type(self.base).__name__} has no write() that puts more beside its own files")
        self.base.write(index)

    def guess(self, query: str) -> Hit | None:
        """Return the cached text with the highest score, ties by lowest id; None while the cache is empty."""
        check_query(query)
        with self._lock:
            if not self._cache.fills(self._shortlist):
                return None
        chosen, score = self._shortlist.best(query)
        with self._lock:
            self._cache.touch(chosen)
        return Hit(chosen, score, self.base.texts[chosen])

    def submit(
        self,
        queries: Sequence[str],
        read: Callable[[list[Hit]], T] = list,  # type: ignore[assignment]
        then: Callable[[list[T]], None] | None = None,
    ) -> Search[list[T]]:
        """Start `search_batch(queries, k=prefetch)` in the worker thread; the result is what `read` makes of each
        query's hits, and `then` is called with it before the search is done. Raises RuntimeError after `close`."""
        checked = check_texts(queries, "queries")
        return self._worker.submit(
            lambda: [read(hits) for hits in self._search(checked, self.prefetch, fills=True)], then
        )

    def search_here(self, queries: Sequence[str]) -> list[list[Hit]]:
        """Do the search of `submit` in the caller's thread, for results that are needed at once."""
        return self._search(check_texts(queries, "queries"), self.prefetch)

    def ask(self, query: str) -> Answer:
        """Answer from the cache, to be verified later; while the cache is empty, from the base."""
        hit = self.guess(query)
        if hit is None:
            return Answer(query, next(iter(self.search(query, 1)), None), is_verified=True, was_right=True)
        answer = Answer(query, hit)
        with self._lock:
            self._open.append(answer)
        return answer

    def verify(self) -> list[Answer]:
        """Verify all open answers in one search. Corrects the wrong ones and returns them."""
        with self._lock:
            answers, self._open = self._open, []
        if not answers:
            return []
        try:
            results = self.search_batch([answer.query for answer in answers], 1)
        except BaseException:
            with self._lock:
                self._open = answers + self._open
            raise
        for answer, hits in zip(answers, results, strict=True):
            answer.was_right = bool(hits) and answer.hit is not None and hits[0].id == answer.hit.id
            answer.hit = hits[0] if hits else None
            answer.is_verified = True
        wrong = [answer for answer in answers if not answer.was_right]
        right = len(answers) - len(wrong)
        self.count(SpeculationStats(guesses=len(answers), right=right, rounds=1, kept=right))
        return wrong

    def count(self, more: SpeculationStats) -> None:
        """Add to `stats`."""
        with self._lock:
            self._stats += more

    def close(self) -> None:
        """End the worker after its running search, and cancel waiting ones. Safe to call twice."""
        self._worker.close()

    def __enter__(self) -> SpeculativeRetriever:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _search(self, queries: list[str], k: int, *, fills: bool = False) -> list[list[Hit]]:
        """Search the base and put the hits into the cache. `fills`: update the shortlist, too (in a worker thread)."""
        started = perf_counter()
        results = self.base.search_batch(queries, k)
        seconds = perf_counter() - started
        with self._lock:
            for hits in results:
                # The best hit last, so that it counts as the most recent one.
                self._cache.add(hit.id for hit in reversed(hits[: self.prefetch]))
            self._stats += SpeculationStats(searches=1, queries=len(queries), search_seconds=seconds)
            if fills:
                self._cache.fills(self._shortlist)
        return results


class _Cache:
    """Ids of texts in slots, with eviction of the least recently used."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: OrderedDict[int, int] = OrderedDict()  # id -> slot, least recently used first
        self._pending: dict[int, int] = {}  # slot -> id, not yet put into the shortlist

    def add(self, ids: Iterable[int]) -> None:
        for text_id in ids:
            if text_id in self._slots:
                self._slots.move_to_end(text_id)
                continue
            full = len(self._slots) == self._capacity
            slot = self._slots.popitem(last=False)[1] if full else len(self._slots)
            self._slots[text_id] = slot
            self._pending[slot] = text_id

    def touch(self, text_id: int) -> None:
        if text_id in self._slots:
            self._slots.move_to_end(text_id)

    def by_age(self) -> list[int]:
        return list(self._slots)

    def fills(self, shortlist: Shortlist) -> bool:
        """Put the pending ids into the shortlist. Returns whether the cache holds a text.

        This is only done for a guess, because after most searches that are waited for, none follows."""
        if self._pending:
            shortlist.put(list(self._pending), list(self._pending.values()))
            self._pending.clear()
        return bool(self._slots)
