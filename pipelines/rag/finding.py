"""Finds the sentence that answers a question: ranks parts of passages by the question's words in and near them.

No model is used. Words in the sentence itself count most, then those near it, in the headings above, and in the rest of
its passage. Rare words count more. A "unit" is a part that can be quoted: a sentence, list item, row or line of code.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from copyspec.retrievers import UNSPACED, BM25Retriever, Hit, Retriever, Stems, share_of_word
from copyspec.text.sentence_marks import CLOSING

from ..sentences import QUESTION_MARKS, sentences
from .question_terms import ASKS_NAME, TermRarity, answer_bonus, asked_terms, commonness

MAX_UNIT = 400  # longest list item that is quoted whole, in characters as `extent` counts them
WORD_LENGTH = 6  # characters of an English word, with the space

INSIDE, HEAD, BESIDE, CONTEXT, PASSAGE = 1.0, 0.75, 0.5, 0.55, 0.3
"""Value of a question's word by where it is found: in the sentence, at the start of its list item or in the heading
directly above, in a neighbouring sentence, in higher headings or the document's name, anywhere in the passage."""

LONG_COST, LONG_UNIT = 0.12, 400  # penalty, reached at this length: long sentences contain more words by chance
CODE_COST = 0.15  # penalty for a line of code
NEIGHBOURS, JOIN_MARGIN, MAX_JOINED = 6, 0.25, 500  # when two adjacent sentences are quoted together (`_joined`)
RANK_DISCOUNT = 0.012  # penalty per rank of the passage in the search


_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,2}[.)])[ \t]+\S")
_TABLE = re.compile(r"[ \t]*\|.*\|[ \t]*$")
_RULE = re.compile(r"[|:=\-~^+*\"'`.#\s]+$")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]")
_FENCE = re.compile(r"[ \t]*(?:```|~~~)")


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a passage that can be quoted: text[start:end] is a sentence, a list item, a row or a line of code."""

    start: int
    end: int
    head: int  # start of the list item or block that it belongs to
    is_prose: bool = True
    heading: str = ""  # the last heading above it in the passage


@dataclass(frozen=True, slots=True)
class Found:
    """A unit with its score as an answer."""

    passage: int  # index among the passages given
    start: int
    end: int
    score: float  # from 0 to about 1.2
    coverage: float  # share of the question's words, by weight, in or near the unit, from 0 to 1
    inside: float  # the same for the unit itself


def units(text: str) -> list[Unit]:
    """Return the units of a passage, in order. Headings, rules and fences are left out."""
    found: list[Unit] = []
    headings = list(_headings(text))
    starts = [start for start, _ in headings]
    for begin, end, kind in _blocks(text):
        above = bisect_left(starts, begin)
        heading = headings[above - 1][1] if above else ""
        if kind in ("row", "code"):
            found.append(Unit(begin, end, begin, kind == "row", heading))
        elif extent(text[begin:end]) <= MAX_UNIT and (kind == "item" or _asks_first(text[begin:end])):
            found.append(Unit(begin, end, begin, heading=heading))
        else:
            parts = sentences(text[begin:end])
            found += [Unit(begin + first, begin + last, begin, heading=heading) for first, last in parts]
    return found


def _headings(text: str) -> Iterator[tuple[int, str]]:
    """The headings with their positions."""
    at, before, fenced = 0, (0, ""), False
    for line in text.splitlines(keepends=True):
        bare = line.strip()
        fenced ^= _FENCE.match(line) is not None
        if not fenced and _HEADING.match(line):
            yield at, bare.strip("# ")
        elif not fenced and len(bare) > 2 and before[1] and not bare.strip(bare[0]) and bare[0] in "=-~^.":
            yield before
        before, at = (at, bare), at + len(line)


def _asks_first(block: str) -> bool:
    """Whether a paragraph is a question and its answer, which are quoted together."""
    parts = sentences(block)
    return len(parts) > 1 and block[slice(*parts[0])].rstrip(CLOSING).endswith(QUESTION_MARKS)


def extent(text: str) -> float:
    """Return the length of a text in characters. In scripts without spaces, each counts for as many as its share of a
    word has in English."""
    if text.isascii():
        return len(text)
    return len(text) + sum(WORD_LENGTH * share_of_word(each) - 1 for each in UNSPACED.findall(text))


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
    found = (_word_search(part) for part in parts if part is not None)
    return next((each for each in found if each is not None), None)


def find(
    question: str, passages: Sequence[tuple[str, str]], weights: TermRarity, split: Stems, *, most: int = 5
) -> list[Found]:
    """Return the `most` best units, best first. `passages`: (context with headings, text) of each passage."""
    forms = asked_terms(question, weights, split)
    asked = {term: min(weights[each] for each in same) * commonness(split)[term] for term, same in forms.items()}
    total = sum(asked.values()) or 1.0

    @cache
    def terms(text: str) -> frozenset[str]:
        """The question's terms that a text holds, in any form."""
        held = set(split(text))
        return frozenset(term for term, same in forms.items() if not same.isdisjoint(held))

    found: list[Found] = []
    for rank, (context, text) in enumerate(passages):
        parts = units(text)
        held = [terms(text[part.start : part.end]) for part in parts]
        everywhere, above = terms(text), terms(context)
        nearest = terms(context.rpartition(" > ")[2])
        before = frozenset[str]()  # the terms of its block up to the unit
        for number, part in enumerate(parts):
            if number and parts[number - 1].head == part.head:
                before |= held[number - 1]
            else:
                before = frozenset()
            head = before | (terms(part.heading) if part.heading else nearest)
            beside = frozenset[str]().union(*held[max(0, number - 1) : number], *held[number + 1 : number + 2])
            places = ((held[number], INSIDE), (head, HEAD), (above, CONTEXT), (beside, BESIDE), (everywhere, PASSAGE))
            worth = sum(weight * _worth(term, places) for term, weight in asked.items())
            inside = sum(weight for term, weight in asked.items() if term in held[number])
            near = sum(weight for term, weight in asked.items() if any(term in place for place, _ in places[:4]))
            piece = text[part.start : part.end]
            bonus = answer_bonus(question, piece, asked, split) if part.is_prose or ASKS_NAME.search(question) else 0.0
            score = worth / total + bonus - RANK_DISCOUNT * rank
            score -= LONG_COST * min(1.0, extent(piece) / LONG_UNIT) + (0.0 if part.is_prose else CODE_COST)
            if inside or near:
                found.append(Found(rank, part.start, part.end, score, near / total, inside / total))
    return _joined(sorted(found, key=lambda each: -each.score), passages)[:most]


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


def _joined(found: list[Found], passages: Sequence[tuple[str, str]]) -> list[Found]:
    """Join the best unit with an adjacent one of its paragraph, if that is nearly as good."""
    if not found:
        return found
    best = found[0]
    for other in found[1:NEIGHBOURS]:
        first, second = sorted((best, other), key=lambda each: each.start)
        text = passages[best.passage][1]
        if other.passage != best.passage or other.score < best.score - JOIN_MARGIN:
            continue
        if not 0 <= second.start - first.end <= 2 or "\n\n" in text[first.end : second.start]:
            continue
        if extent(text[first.start : second.end]) <= MAX_JOINED:
            joined = replace(best, start=first.start, end=second.end, inside=max(best.inside, other.inside))
            return [joined, *(each for each in found[1:] if each is not other)]
    return found


def _worth(term: str, places: Sequence[tuple[frozenset[str], float]]) -> float:
    return max((worth for held, worth in places if term in held), default=0.0)


def _blocks(text: str) -> list[tuple[int, int, str]]:
    """Paragraphs, list items and single lines (of tables and code), without headings."""
    found: list[tuple[int, int, str]] = []
    kind, begin, end, fenced = "", 0, 0, False
    item = 0  # the indentation of the list item that is open
    at = 0
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        bare = line.strip()
        if _FENCE.match(line) and (fenced or not kind or "`" in line):
            kind, begin, end = _closed(found, kind, begin, end)
            fenced = not fenced
            continue
        is_line = fenced or _TABLE.match(line) or bare.startswith((">>>", "$ "))
        indent = len(line) - len(line.lstrip())
        if not bare and kind == "item":
            continue  # indented text after a list item belongs to it
        if (
            kind == "item"
            and indent <= item
            and not _ITEM.match(line)
            and text[end:start].strip() == ""
            and (text[end:start].count("\n") > 1)
        ):
            kind, begin, end = _closed(found, kind, begin, end)
        if not bare or _HEADING.match(line) or (_RULE.match(line) and not fenced):
            if kind == "text" and bare and _RULE.match(line) and "\n" not in text[begin:end].strip():
                kind = ""  # the line above a rule is a heading
            kind, begin, end = _closed(found, kind, begin, end)
        elif is_line:
            kind, begin, end = _closed(found, kind, begin, end)
            if any(map(str.isalnum, bare)):
                kind_of_line = "row" if _TABLE.match(line) and not fenced else "code"
                found.append((start + indent, start + len(line.rstrip()), kind_of_line))
        elif _ITEM.match(line):
            _closed(found, kind, begin, end)
            item = indent
            kind, begin, end = "item", start + indent, start + len(line.rstrip())
        elif kind:
            end = start + len(line.rstrip())
        else:
            kind, begin, end = "text", start + len(line) - len(line.lstrip()), start + len(line.rstrip())
    _closed(found, kind, begin, end)
    return found


def _closed(found: list[tuple[int, int, str]], kind: str, begin: int, end: int) -> tuple[str, int, int]:
    if kind and begin < end:
        found.append((begin, end, kind))
    return "", 0, 0
