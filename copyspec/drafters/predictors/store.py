"""What drafts from a datastore have in common: the look-up that they need, and how often their matches are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MAX_HITS = 64  # matches read per step: more change few trees and cost two microseconds each
CONTINUATION_TOKENS = 16  # tokens of continuation read from each match: deeper nodes are hardly ever accepted
CONTEXT_TOKENS = 32  # last tokens of the text that are looked up

PRIOR_RATES = (0.05, 0.34, 0.45, 0.45, 0.52, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)
"""Probability that one of the drafted next tokens is right, by length of the match; the last entry is for all longer
matches. Lengths up to five are measured on recorded chats, answers and summaries, with a datastore of 8 million tokens
of books and articles."""

PRIOR_COUNT = 8.0  # PRIOR_RATES count as much as this many proposals of this output
RATE_DECAY = 0.97  # of the learned rates, per proposal, because an output moves from one subject to another

Hit = tuple[int, int, Sequence[int], float]
"""(document, offset, tokens, weight)."""


class Store(Protocol):
    """The look-up that drafts need of a datastore."""

    def find(self, context: Sequence[int], length: int, count: int) -> tuple[tuple[int, int], Sequence[Hit]]:
        """Find the longest suffix of `context` that occurs in the store.

        Returns its length and its number of occurrences, and for up to `count` of them
        (document, offset, at most `length` following tokens, share of the weight)."""
        ...


class HitRates:
    """The probability that one of the drafted next tokens is right, by length of the match, as learned so far."""

    def __init__(self) -> None:
        self._right = [PRIOR_COUNT * prior for prior in PRIOR_RATES]
        self._tries = [PRIOR_COUNT] * len(PRIOR_RATES)

    def __call__(self, matched: int) -> float:
        bucket = min(matched, len(PRIOR_RATES) - 1)
        return self._right[bucket] / self._tries[bucket]

    def record(self, matched: int, right: bool) -> None:
        """Record whether one of the tokens drafted after a match of this length was `right`."""
        bucket = min(matched, len(PRIOR_RATES) - 1)
        prior = PRIOR_COUNT * (1 - RATE_DECAY)
        self._right[bucket] = RATE_DECAY * self._right[bucket] + prior * PRIOR_RATES[bucket] + right
        self._tries[bucket] = RATE_DECAY * self._tries[bucket] + prior + 1
