"""Finds the sentence that answers a question: ranks parts of passages by the question's words in and near them.

No model is used. Words in the sentence itself count most, then those near it, in the headings above, and in the rest of
its passage. Rare words count more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from copyspec.retrievers import BM25Retriever, Hit, Retriever, Stems

from .question_terms import ASKS_NAME, TermRarity, answer_bonus, asked_terms, commonness, holds_value, limits
from .units import extent, units

INSIDE, HEAD, NEARBY, CONTEXT, PASSAGE = 1.0, 0.75, 0.5, 0.55, 0.3
"""Value of a question's word by where it is found: in the sentence, at the start of its list item or in the heading
directly above, in a neighbouring sentence, in higher headings or the document's name, anywhere in the passage."""

LONG_COST, LONG_UNIT = 0.12, 400  # penalty, reached at this length: long sentences contain more words by chance
CODE_COST = 0.15  # penalty for a line of code
NEIGHBOURS, JOIN_MARGIN, MAX_JOINED = 6, 0.25, 500  # when two adjacent sentences are quoted together (`_joined`)
RANK_DISCOUNT = 0.012  # penalty per rank of the passage in the search


@dataclass(frozen=True, slots=True)
class ScoredUnit:
    """A unit with its score as an answer."""

    passage: int  # index among the passages given
    start: int
    end: int
    score: float  # from 0 to about 1.2
    coverage: float  # share of the question's words, by weight, in or near the unit, from 0 to 1
    inside: float  # the same for the unit itself
    holds_value: bool = True  # whether it holds a value, if the question asks for one


def rarity_in(retriever: Retriever, hits: Sequence[Hit], split: Stems) -> TermRarity:
    """Return term rarities among all texts of a retriever with stems; for others, among its hits."""
    search = _word_search(retriever)
    if search is None or not isinstance(search.split, Stems):
        return TermRarity.among([hit.text for hit in hits], split)
    return TermRarity(search.holders, len(search))


def stems_of(retriever: Retriever) -> Stems:
    """Return the stemmer of a retriever; the English one if it has none."""
    search = _word_search(retriever)
    return search.split if search is not None and isinstance(search.split, Stems) else Stems()


def _word_search(retriever: object) -> BM25Retriever | None:
    """The BM25 retriever that this one is, wraps (`base`: a reranker, a cache) or fuses (`retrievers`: a hybrid)."""
    if isinstance(retriever, BM25Retriever):
        return retriever
    parts = (getattr(retriever, "base", None), *getattr(retriever, "retrievers", ()))
    searches = (_word_search(part) for part in parts if part is not None)
    return next((search for search in searches if search is not None), None)


def find(
    question: str, passages: Sequence[tuple[str, str]], weights: TermRarity, split: Stems, *, most: int = 5
) -> list[ScoredUnit]:
    """Return the `most` best units, best first. `passages`: (context with headings, text) of each passage."""
    forms = asked_terms(question, weights, split)
    term_weights = {term: min(weights[form] for form in same) * commonness(split)[term] for term, same in forms.items()}
    total = sum(term_weights.values()) or 1.0

    @cache
    def terms(text: str) -> frozenset[str]:
        """The question's terms that a text holds, in any form."""
        text_terms = set(split(text)) | limits(text)
        return frozenset(term for term, same in forms.items() if not same.isdisjoint(text_terms))

    candidates: list[ScoredUnit] = []
    for rank, (context, text) in enumerate(passages):
        parts = units(text, context)
        by_unit = [terms(text[part.start : part.end]) | terms(part.question) for part in parts]
        everywhere, above = terms(text), terms(context)
        nearest = terms(context.rpartition(" > ")[2])
        before = frozenset[str]()  # the terms of its block up to the unit
        for number, part in enumerate(parts):
            if number and parts[number - 1].head == part.head:
                before |= by_unit[number - 1]
            else:
                before = frozenset()
            head = before | (terms(part.heading) if part.heading else nearest)
            nearby = frozenset[str]().union(*by_unit[max(0, number - 1) : number], *by_unit[number + 1 : number + 2])
            places = (
                (by_unit[number], INSIDE),
                (head, HEAD),
                (above, CONTEXT),
                (nearby, NEARBY),
                (everywhere, PASSAGE),
            )
            worth = sum(weight * _worth(term, places) for term, weight in term_weights.items())
            inside = sum(weight for term, weight in term_weights.items() if term in by_unit[number])
            near = sum(weight for term, weight in term_weights.items() if any(term in place for place, _ in places[:4]))
            piece = text[part.start : part.end]
            bonus = 0.0
            if part.is_prose or ASKS_NAME.search(question):
                bonus = answer_bonus(question, piece, term_weights, split, part.question)
            score = worth / total + bonus - RANK_DISCOUNT * rank
            score -= LONG_COST * min(1.0, extent(piece) / LONG_UNIT) + (0.0 if part.is_prose else CODE_COST)
            if inside or near:
                fits = holds_value(question, piece)
                candidates.append(ScoredUnit(rank, part.start, part.end, score, near / total, inside / total, fits))
    return _joined(sorted(candidates, key=lambda candidate: -candidate.score), passages)[:most]


def widened(text: str, start: int, end: int, most: int) -> tuple[int, int]:
    """Extend a span by sentences after and before it in its paragraph, in turn, up to an `extent` of `most`."""
    parts = units(text)
    inside = [number for number, part in enumerate(parts) if part.start < end and part.end > start]
    if not inside:
        return start, end
    first, last = inside[0], inside[-1]
    while True:
        after, before = last + 1, first - 1
        if (
            after < len(parts)
            and parts[after].head == parts[last].head
            and extent(text[start : parts[after].end]) <= most
        ):
            last, end = after, parts[after].end
            grown = True
        else:
            grown = False
        if before >= 0 and parts[before].head == parts[first].head and extent(text[parts[before].start : end]) <= most:
            first, start = before, parts[before].start
        elif not grown:
            return start, end


def _joined(ranked: list[ScoredUnit], passages: Sequence[tuple[str, str]]) -> list[ScoredUnit]:
    """Join the best unit with an adjacent one of its paragraph, if that is nearly as good."""
    if not ranked:
        return ranked
    best = ranked[0]
    for other in ranked[1:NEIGHBOURS]:
        first, second = sorted((best, other), key=lambda unit: unit.start)
        text = passages[best.passage][1]
        if other.passage != best.passage or other.score < best.score - JOIN_MARGIN:
            continue
        if not 0 <= second.start - first.end <= 2 or "\n\n" in text[first.end : second.start]:
            continue
        if extent(text[first.start : second.end]) <= MAX_JOINED:
            joined = replace(best, start=first.start, end=second.end, inside=max(best.inside, other.inside))
            return [joined, *(unit for unit in ranked[1:] if unit is not other)]
    return ranked


def _worth(term: str, places: Sequence[tuple[frozenset[str], float]]) -> float:
    return max((worth for terms, worth in places if term in terms), default=0.0)
