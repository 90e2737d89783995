"""Splits texts that are too long for a model between sentences, clauses or words, never inside a word."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

from copyspec.common.extras import install

from ..documents import Refusal, Segment, model_text
from ..formats.neighbours import is_ended
from ..guards.languages import ANY
from ..sentences import sentences

Spans = list[tuple[int, int]]
Splitter = Callable[[str], Spans]
"""Returns the spans of the sentences of a text: ascending, not overlapping, all of it covered except white space."""

NAMES = ("builtin", "pysbd", "none")

_CLAUSE_END = re.compile(r"[,;:–—][\"'”’)\]]*(?=\s)|\)(?=\s)|[、，；：]")
_WORD_END = re.compile(r"(?<=\S)(?=\s)")
_SLACK = 16  # a piece may be shorter than possible by one part in this many, as every probe counts tokens
_BEFORE = 100  # characters before a piece in which a sentence may end
_DETAIL = 40  # maximum characters of a text that a refusal quotes


def splitter(name: str, *, language: str = "en") -> Splitter:
    """Return the sentence splitter called `name`. `language` is for pysbd, as a code; "any" is split as English. `none`
    takes a paragraph as one sentence."""
    if name == "builtin":
        return sentences
    if name == "none":
        return _whole
    if name == "pysbd":
        return _pysbd("en" if language == ANY else language)
    known = ", ".join(NAMES)
    raise ValueError(f"unknown segmenter {name!r}: name one of {known}, or give a function from a text to spans")


@dataclass(frozen=True, slots=True)
class Fitted:
    """The pieces of a segment that fit."""

    segments: Sequence[Segment]
    refused: Sequence[Refusal] = ()  # stretches that cannot be split and stay as they were


def fit(
    text: str,
    segment: Segment,
    *,
    length: Callable[[str], int],
    limit: int,
    split: Splitter = sentences,
    pack: bool = True,
) -> Fitted:
    """Split `segment` of `text` into pieces whose shown text is at most `limit` long, measured by `length` (in tokens).

    `pack`: put as many sentences as fit into a piece; otherwise each sentence is a piece. Sentences that do not fit are
    split at clauses, and clauses between words. Protected and hidden spans are never cut.
    """
    if limit < 1:
        raise ValueError(f"limit={limit!r} must be at least 1")
    if pack and length(model_text(text, segment)) <= limit:
        return Fitted((segment,))
    fitting = _Fitting(text, segment, length, limit)
    units = fitting.spans(segment.start, segment.end, split)
    if pack:
        fitting.pack(units, 0)
    else:
        for unit in units:
            fitting.pack([unit], 0)
    return Fitted(fitting.pieces, fitting.refused)


class _Fitting:
    def __init__(self, text: str, segment: Segment, length: Callable[[str], int], limit: int) -> None:
        self.text, self.segment, self.length, self.limit = text, segment, length, limit
        self.pieces: list[Segment] = []
        self.refused: list[Refusal] = []
        self.solid = sorted([*segment.protected, *segment.hidden])

    def pack(self, units: Spans, level: int) -> None:
        """Append pieces of as many units as fit, from left to right. Units that do not fit are split more finely."""
        at, stride = 0, 1
        while at < len(units):
            count = self._most(units, at, stride)
            if count:
                self.pieces.append(self._apart(units[at][0], units[at + count - 1][1]))
                at, stride = at + count, count
                continue
            start, end = units[at]
            if level < len(_FINER):
                self.pack(self.spans(start, end, _FINER[level]), level + 1)
            else:
                quoted = self.text[start : min(end, start + _DETAIL)]
                self.refused.append(
                    Refusal("length", f"{quoted!r} is longer than {self.limit} without a place to split")
                )
            at += 1

    def spans(self, start: int, end: int, split: Splitter) -> Spans:
        """The spans of a stretch by `split`, joined where a border would cut a protected or hidden span."""
        pieces, at = [], start
        for hidden_start, hidden_end in self.segment.hidden:
            if hidden_end > start and hidden_start < end:
                pieces += [self.text[at:hidden_start], " " * (min(hidden_end, end) - hidden_start)]
                at = hidden_end
        spans: Spans = []
        solid = iter(self.solid)
        block = next(solid, None)
        for unit_start, unit_end in split("".join([*pieces, self.text[at:end]])):
            unit_start, unit_end = unit_start + start, unit_end + start
            while block and block[1] <= unit_start:
                block = next(solid, None)
            if spans and block and block[0] < unit_start and spans[-1][1] > block[0]:
                spans[-1] = (spans[-1][0], unit_end)
            else:
                spans.append((unit_start, unit_end))
        return spans

    def _most(self, units: Spans, at: int, stride: int) -> int:
        """About how many units from `at` on fit into one piece. Doubles, then bisects, as every probe counts tokens."""
        fits, fails = 0, len(units) - at + 1
        probe = min(stride, fails - 1)
        while fails - fits > max(1, fits // _SLACK):
            if self.length(model_text(self.text, self._piece(units[at][0], units[at + probe - 1][1]))) <= self.limit:
                fits = probe
                probe = min(2 * probe, (fits + fails) // 2 if fails <= len(units) - at else fails - 1)
            else:
                fails = probe
                probe = (fits + fails) // 2
            probe = max(probe, fits + 1)
        return fits

    def _apart(self, start: int, end: int) -> Segment:
        """The piece of a stretch, which may begin or end inside a sentence."""
        piece, (first, last) = self._piece(start, end), (self.segment.start, self.segment.end)
        before = model_text(self.text, self._piece(max(first, start - _BEFORE), start))
        begins = self.segment.begins if start == first else is_ended(before)
        return replace(piece, begins=begins, ends=self.segment.ends and end == last)

    def _piece(self, start: int, end: int) -> Segment:
        inside = partial(_inside, start=start, end=end)
        return replace(
            self.segment,
            start=start,
            end=end,
            protected=inside(self.segment.protected),
            hidden=tuple((max(first, start), min(last, end)) for first, last in inside(self.segment.hidden)),
        )


def _inside(spans: Sequence[tuple[int, int]], *, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The spans that overlap a stretch; `spans` ascend. White space at the edge of a span may lie outside."""
    return tuple(spans[bisect_right(spans, start, key=itemgetter(1)) : bisect_left(spans, end, key=itemgetter(0))])


def _whole(text: str) -> Spans:
    stripped = text.strip()
    start = len(text) - len(text.lstrip())
    return [(start, start + len(stripped))] if stripped else []


def _by(pattern: re.Pattern[str], text: str) -> Spans:
    spans, start = [], 0
    for end in [*(match.end() for match in pattern.finditer(text)), len(text)]:
        spans += [(start + a, start + b) for a, b in _whole(text[start:end])]
        start = end
    return spans


_FINER: tuple[Splitter, ...] = (partial(_by, _CLAUSE_END), partial(_by, _WORD_END))


def _pysbd(language: str) -> Splitter:
    try:
        import pysbd
    except ImportError:
        raise ImportError(f"the segmenter 'pysbd' needs its package: {install('pysbd')}") from None
    try:
        segmenter = pysbd.Segmenter(language=language, clean=False, char_span=True)
    except ValueError as error:
        raise ValueError(f"pysbd cannot split language={language!r}; take another segmenter: {error}") from error

    def split(text: str) -> Spans:
        return [
            (span.start + a, span.start + b)
            for span in segmenter.segment(text)
            for a, b in _whole(text[span.start : span.end])
        ]

    return split
