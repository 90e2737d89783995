"""Speculative retrieval: answers guessed from a cache at once, verified by the knowledge base later and in batches.

Zhang et al. 2024 (RaLMSpec, arXiv:2401.14021), section 3. The cache ranks its texts by the base's own scores: where
the base's best text is in the cache, it is the cache's best too.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import add, attrgetter
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from copyspec.forks import at_rest

from ..base import DEFAULT_K, Folder, Hit, Retriever, check_k, check_query, check_texts
from ..saving import Saving, Written
from ..shortlist import Shortlist, shortlist_of
from .worker import Search, Worker

PREFETCH = 20
"""Hits of each search of the base that enter the cache: the paper's number. Later queries of one text ask for near
neighbours of the earlier ones."""

CAPACITY = 1024
"""Texts in the cache: some fifty searches' hits. Ranking them takes far below a millisecond."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did. Steps are strides of a text, tokens of kNN-LM, or answers of `ask`."""

    guesses: int = 0  # that were verified
    right: int = 0  # of these
    rounds: int = 0  # batches that were verified
    kept: int = 0  # steps of these rounds that stayed: up to the first wrong guess, and the one that it follows
    wasted: int = 0  # output tokens that were taken back
    searches: int = 0  # calls of the knowledge base
    queries: int = 0  # in these calls
    search_seconds: float = 0.0  # of the knowledge base
    waited_seconds: float = 0.0  # of these, those in which nothing else was done

    @property
    def hit_rate(self) -> float:
        """Share of the guesses that were right."""
        return self.right / self.guesses if self.guesses else 0.0

    @property
    def kept_per_round(self) -> float:
        """E(s) as it came out."""
        return self.kept / self.rounds if self.rounds else 0.0

    @property
    def hidden_seconds(self) -> float:
        """Search time that passed while something else was done."""
        return max(0.0, self.search_seconds - self.waited_seconds)

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(*map(add, _numbers(self), _numbers(other)))


_numbers = attrgetter(*(field.name for field in fields(SpeculationStats)))


@dataclass(slots=True)
class Answer:
    """A guess of `SpeculativeRetriever.ask`, and what became of it."""

    query: str
    hit: Hit | None
    """The guess until it is verified, then what the knowledge base found; None where it found nothing."""
    is_verified: bool = False
    was_right: bool = False


class SpeculativeRetriever:
    """Any retriever with a cache in front of it.

    `search` and `search_batch` are the base's own; what they find enters the cache. `guess` answers from the cache
    alone. `ask` guesses, or searches while there is nothing to guess from, and `verify` checks all open answers in
    one search. `submit` searches in a worker thread. All of it may be called from several threads at once; `close`,
    or the end of a `with` block, ends the worker.
    """

    def __init__(self, base: Retriever, *, prefetch: int = PREFETCH, capacity: int = CAPACITY) -> None:
        """`prefetch`: hits of each search that enter the cache; `capacity`: texts that it holds, the ones least
        recently found leave first."""
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
        self._lock = at_rest(threading.Lock())  # of the three above
        self._worker = Worker()

    @property
    def texts(self) -> Sequence[str]:
        """The base's texts."""
        return self.base.texts

    @property
    def stats(self) -> SpeculationStats:
        """What was guessed, searched and waited for since the retriever was made."""
        with self._lock:
            return self._stats

    def __len__(self) -> int:
        return len(self.base)

    @property
    def cached(self) -> Sequence[int]:
        """Ids of the texts in the cache, the one found longest ago first."""
        with self._lock:
            return self._cache.by_age()

    def search(self, query: str, k: int = DEFAULT_K) -> list[Hit]:
        """The base's hits."""
        return self.search_batch([check_query(query)], k)[0]

    def search_batch(self, queries: Sequence[str], k: int = DEFAULT_K) -> list[list[Hit]]:
        """The base's hits of each query, from one search."""
        wanted = check_k(k)
        checked = check_texts(queries, "queries")
        if not checked:
            return []
        started = perf_counter()
        found = self._search(checked, max(wanted, self.prefetch))
        self.count(SpeculationStats(waited_seconds=perf_counter() - started))
        return [hits[:wanted] for hits in found]

    def score(self, query: str, ids: Sequence[int]) -> NDArray[np.float64]:
        """The base's scores of these texts. [len(ids)]"""
        return self.base.score(check_query(query), ids)

    def add(self, texts: Sequence[str]) -> None:
        """More texts for the base."""
        self.base.add(texts)

    def save(self, folder: Folder) -> None:
        """Writes the base; a cache is not kept."""
        self.base.save(folder)

    def write(self, index: Saving) -> None:
        """Writes the base beside what belongs to the same index."""
        if not isinstance(self.base, Written):
            raise TypeError(f"a {type(self.base).__name__} has no write() that puts more beside its own files")
        self.base.write(index)

    def guess(self, query: str) -> Hit | None:
        """The cached text with the highest score, of equal ones the first; None while the cache is empty."""
        check_query(query)
        with self._lock:
            if not self._cache.fills(self._shortlist):
                return None
        chosen, score = self._shortlist.best(query)
        with self._lock:
            self._cache.touch(chosen)
        return Hit(chosen, score, self.base.texts[chosen])

    def submit(self, queries: Sequence[str]) -> Search[list[list[Hit]]]:
        """Starts `search_batch(queries, k=prefetch)` in the worker thread. Raises RuntimeError after `close`."""
        checked = check_texts(queries, "queries")
        return self._worker.submit(lambda: self._search(checked, self.prefetch, fills=True))

    def search_here(self, queries: Sequence[str]) -> list[list[Hit]]:
        """What `submit` searches for, in the caller's thread: a search that is waited for needs no other one."""
        return self._search(check_texts(queries, "queries"), self.prefetch)

    def ask(self, query: str) -> Answer:
        """The cache's answer, to be verified later; the base's own while the cache is empty."""
        hit = self.guess(query)
        if hit is None:
            return Answer(query, next(iter(self.search(query, 1)), None), is_verified=True, was_right=True)
        answer = Answer(query, hit)
        with self._lock:
            self._open.append(answer)
        return answer

    def verify(self) -> list[Answer]:
        """Verifies all open answers in one search, corrects those that were wrong and returns them."""
        with self._lock:
            answers, self._open = self._open, []
        if not answers:
            return []
        try:
            found = self.search_batch([answer.query for answer in answers], 1)
        except BaseException:
            with self._lock:
                self._open = answers + self._open
            raise
        for answer, hits in zip(answers, found, strict=True):
            answer.was_right = bool(hits) and answer.hit is not None and hits[0].id == answer.hit.id
            answer.hit = hits[0] if hits else None
            answer.is_verified = True
        wrong = [answer for answer in answers if not answer.was_right]
        right = len(answers) - len(wrong)
        self.count(SpeculationStats(guesses=len(answers), right=right, rounds=1, kept=right))
        return wrong

    def count(self, more: SpeculationStats) -> None:
        """Adds to `stats`."""
        with self._lock:
            self._stats += more

    def close(self) -> None:
        """Ends the worker when its running search is done; those that wait are cancelled. Safe to call twice."""
        self._worker.close()

    def __enter__(self) -> SpeculativeRetriever:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _search(self, queries: list[str], k: int, *, fills: bool = False) -> list[list[Hit]]:
        """One search of the base; its hits enter the cache. `fills`: the shortlist, too, while others work."""
        started = perf_counter()
        found = self.base.search_batch(queries, k)
        seconds = perf_counter() - started
        with self._lock:
            for hits in found:
                # The best hit last: it is the one most recently found.
                self._cache.add(hit.id for hit in reversed(hits[: self.prefetch]))
            self._stats += SpeculationStats(searches=1, queries=len(queries), search_seconds=seconds)
            if fills:
                self._cache.fills(self._shortlist)
        return found


class _Cache:
    """Ids of texts in slots, the least recently used leaving first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: OrderedDict[int, int] = OrderedDict()  # of the ids
        self._pending: dict[int, int] = {}  # ids by slot that the shortlist has not got yet

    def add(self, ids: Iterable[int]) -> None:
        for each in ids:
            if each in self._slots:
                self._slots.move_to_end(each)
                continue
            full = len(self._slots) == self._capacity
            slot = self._slots.popitem(last=False)[1] if full else len(self._slots)
            self._slots[each] = slot
            self._pending[slot] = each

    def touch(self, each: int) -> None:
        if each in self._slots:
            self._slots.move_to_end(each)

    def by_age(self) -> list[int]:
        return list(self._slots)

    def fills(self, shortlist: Shortlist) -> bool:
        """Puts what was added into the shortlist: only when a guess is asked for, as most searches that are waited
        for are followed by none. False while there is nothing in it."""
        if self._pending:
            shortlist.put(list(self._pending), list(self._pending.values()))
            self._pending.clear()
        return bool(self._slots)
