"""Judges single changes: known words, related words, and a clear preference of the model for the change.

A margin is the log-probability, in nats, by which the model preferred a change to the source's own words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal, cast

from copyspec.common.lists import Lists
from copyspec.engine.results import Change
from copyspec.text.sentence_marks import SENTENCE_ENDS

from ..documents import Edit, Refusal, Segment, model_text
from ..edits.diff import apply
from .articles import ARTICLES
from .document_words import DocumentWords, plain_slips
from .evidence import Evidence
from .misspellings import rivals
from .openings import Openings
from .sentencehood import END, MARKER, begins_item, is_fragment, lacks_end
from .stretches import around
from .vocabulary import spelt
from .wording import Kind, Wording, is_grammar

MarginKind = Kind | Literal["unusual", "often", "care", "initial", "more", "other"]
"""`unusual`: a capital inside a sentence, a new spelling of a name, a word that is set off by quotes or the like,
another word in a heading or a cell, another mark at the end of a sentence;
`often`: added to the margin for another form of a word that the writer uses often;
`care`: added for a careful writer, by which mistakes are e times as rare;
`initial`: a sentence that loses the "The" it begins with;
`more`: added for function words in a document;
`other`: in a document, a function word in place of another, an article more, a word of another part of speech."""

BUNDLED = "default"
_LISTS = Lists(__file__)
CALIBRATED: Mapping[str, Mapping[MarginKind, float]] = {
    model: {cast(MarginKind, kind): float(least) for kind, least in _LISTS.pairs(model)}
    for model in (BUNDLED, "smollm2-correct")
}
"""Least margins by model and kind of change, in nats. Those of the bundled model are chosen by how often it makes such
changes in correct texts (docs/files.md), those of `smollm2-correct`, with the gain, fitted by logistic regression
(`python -m benchmarks.quality.margins`)."""

GAIN = 0.5
"""What a nat adds to a margin by which a change makes the text more likely to a language model."""
LOST_WORD = 6.5  # nats by which a text becomes more likely, right or wrong, with a word less
USUAL_PRECISION = 0.9
STEEPNESS = 3.3  # nats of margin for each nat in the odds that edits are right
MOST_MARGIN = 5.0  # more says nothing further, if there is a gain
STYLE = frozenset(("capital", "mark", "comma"))
"""Kinds of which careful writers have habits of their own, so that their care counts twice."""

_SET_OFF = frozenset('<>*_"“”«»`')  # marks around words that are meant as they are, such as foreign words and names
_CONTINUES = ",;،؛、，；"  # after these a text goes on
_MARKS = re.compile(rf"[{SENTENCE_ENDS}]+")
_RUNS = re.compile(r"[^\w\s'’]+")
_MOVING = frozenset(",.!?;:")
_QUOTES = re.compile(
    r"(?<!\w)['‘’](?=[^\W\d])|(?<=[^\W_])(?<![sS])['’](?!\w)"
)  # single; none ends "dogs'", or begins "'90s"
_PAIR = 20  # characters beside a word in which another one makes a pair with it
_MINUS = re.compile(r"(?<![^\W\d_])-\d")  # unlike "mid-1990s"


class Judge:
    """Judges the changes of one segment."""

    def __init__(
        self,
        text: str,
        segment: Segment,
        *,
        facts: DocumentWords,
        allow_new_words: bool,
        allow_swaps: bool,
        changes: Sequence[Change] | None,
        precision: float,
        min_confidence: float,
        margins: Mapping[MarginKind, float],
    ) -> None:
        self._text, self._segment, self._facts = text, segment, facts
        self._is_word, self._is_often = facts.is_word, facts.is_often
        self._may_write = None if allow_new_words else facts.knows
        self._allow_swaps = allow_swaps
        self._more = raised(precision)
        self._margins, self._openings = margins, Openings(text, segment)
        self._evidence = Evidence(text, segment, facts, self._openings)
        self._min_margin = _log_odds(min_confidence) if min_confidence else -math.inf
        self._preferred = _Preferred(text, segment, changes) if changes and (precision or min_confidence) else None

    def refusal(self, edit: Edit) -> Refusal | None:
        wording, start, end = self._worded(edit)
        return (
            self._wrong_end(wording, end)
            or (None if self._allow_swaps else _wrong_mark(wording))
            or self._wrong_capital(wording, start)
            or (wording.unknown(self._may_write) if self._may_write else None)
            or (None if self._allow_swaps else self._swapped(wording, start, end))
            or self._evidence.own(wording)
            or (None if self._allow_swaps else self._evidence.refusal(wording, start, end))
        )

    def account(self, edit: Edit, gain: float | None) -> str:
        """The kind and the margin of a change, the margin that it needs, and what the document says of its words."""
        wording, start, end = self._worded(edit)
        kind, _ = self.measured(edit)
        margin = self._margin(wording, start, end, gain)
        measured = "unknown" if margin is None else f"{margin:.1f}"
        needed = f"{self._least(wording, start):.1f}"
        return "; ".join(
            [f"{kind}: margin {measured} of {needed}", *map(self._facts.about, (*wording.gone, *wording.new))]
        )

    def measured(self, edit: Edit) -> tuple[Kind, float | None]:
        """Return the kind of a change and its margin, None if unknown."""
        wording, start, end = self._worded(edit)
        kind: Kind = "swap" if wording.swap(self._is_word) else wording.kind(self._is_word)
        return kind, self._preferred.margin(start, end) if self._preferred else None

    def rivals(self, edit: Edit) -> Sequence[tuple[str, Edit]]:
        """Other words that the writer may have meant, and the changes to these."""
        wording, start, _ = self._worded(edit)
        kind, _ = self.measured(edit)
        is_asked = kind == "spelling" or (self._facts.is_document and kind != "doubled")
        return rivals(wording, start, self._facts.count) if is_asked else ()

    def _worded(self, edit: Edit) -> tuple[Wording, int, int]:
        """A change extended to whole words, with the start and end of these words."""
        text, segment = self._text, self._segment
        start, end = around(text, segment, edit.start, edit.end)
        was = text[start:end]
        becomes = apply(was, [Edit(edit.start - start, edit.end - start, edit.replacement)])
        beside = (
            *spelt(text[max(segment.start, start - 60) : start])[-1:],
            *spelt(text[end : min(segment.end, end + 60)])[:1],
        )
        return Wording.of(was, becomes, beside), start, end

    def _swapped(self, wording: Wording, start: int, end: int) -> Refusal | None:
        """The refusal of exchanging unrelated words, unless the model's margin for such changes is reached."""
        refusal = wording.swap(self._is_word)
        if refusal is None or wording.denies(self._is_word) or self._preferred is None:
            return refusal
        margin = self._preferred.margin(start, end)
        return refusal if margin is None or margin < self._margins["swap"] else None

    def _wrong_end(self, wording: Wording, end: int) -> Refusal | None:
        """The refusal of changes of sentence ends, except adding one that a sentence lacks, and of final commas; of
        colons at the end of headings and cells, too."""
        was, becomes = wording.was, wording.becomes
        continues = _CONTINUES + ":：" * (not self._segment.ends)
        if end == self._segment.end and becomes.rstrip()[-1:] in {*continues} - {was.rstrip()[-1:]}:
            return wording.refusal("marks", f"but the text does not go on after the {becomes.rstrip()[-1:]!r}")
        had, has = _MARKS.findall(was), _MARKS.findall(becomes)
        if len(had) == len(has) and not any(len(a) > 1 and a != b for a, b in zip(had, has, strict=True)):
            return None
        if end < self._segment.end or len(has) < len(had) or any(len(mark) > 1 for mark in had):
            return wording.refusal("marks", "which changes where or how a sentence ends")
        if not self._segment.ends:
            return wording.refusal("fragment", "but a heading, an item, a cell or a text that goes on has no such end")
        if lacks_end(self._text[self._segment.start : self._segment.end]):
            return None
        return wording.refusal("fragment", "but the text does not look like a sentence that lacks its end")

    def _wrong_capital(self, wording: Wording, start: int) -> Refusal | None:
        """The refusal of a capital where no sentence begins, and of changes of case in unknown words."""
        was, becomes, first = wording.was, wording.becomes, self._openings.first
        takes_capital = start <= first and next(filter(str.isalpha, becomes), "").isupper()
        if takes_capital and not (self._openings.begins or self._text[first : first + 1].isupper()):
            what = "a heading, an item, a cell or a text that goes on gets no new capital"
            return wording.refusal("fragment", f"but {what}")
        if was[:1].islower() and becomes[:1].isupper() and begins_item(self._text[max(0, start - MARKER) : start]):
            return wording.refusal("fragment", "but a list item gets no new capital")
        if self._allow_swaps or was == becomes or was.casefold() != becomes.casefold():
            return None
        if self._text[self._segment.start : self._segment.end].isupper() and not becomes.isupper():
            return wording.refusal("fragment", "but all of the text is in capitals")
        for word in spelt(was):
            has_capital_inside = word[0].islower() and not word.islower()  # "iPhone", not "tHe"
            if has_capital_inside and word not in becomes and not self._is_word(word.lower()):
                return wording.refusal("names", f"but {word!r}, with its capital inside, is probably a name")
            if word not in becomes and not (self._is_word(word) or self._is_word(word.capitalize())):
                return wording.refusal("names", f"but {word!r} is in no word list and may be a name")
        for word, new in zip(spelt(was), spelt(becomes), strict=False):
            if word[0].isupper() and new != word and new.casefold() == word.casefold() and not self._is_word(new):
                return wording.refusal("names", f"but {word!r} is in no word list without its capital")
        return None

    def _margin(self, wording: Wording, start: int, end: int, gain: float | None) -> float | None:
        margin = self._preferred.margin(start, end) if self._preferred else None
        if margin is None or gain is None:
            return margin
        lost = max(0, len(wording.gone) - len(wording.new))
        return min(margin, MOST_MARGIN) + GAIN * (gain - LOST_WORD * lost)

    def doubtful(self, edit: Edit, gain: float | None) -> Refusal | None:
        """The refusal of a change of which the model is not sure enough. `gain`: by how many nats the change makes the
        text more likely to a language model; None: unknown."""
        wording, start, end = self._worded(edit)
        if (margin := self._margin(wording, start, end, gain)) is None:
            if self._preferred is None:
                return None
            return wording.refusal("margin", "but the model gave no margin for it, as it did for others")
        least = max(self._least(wording, start), self._min_margin)
        if margin >= least:
            return None
        if least == math.inf:
            return wording.refusal("margin", "but the model is too often wrong about changes of this kind")
        needed = f"its margin is {margin:.1f}, and a change of this kind needs {least:.1f}"
        return wording.refusal("margin", f"but the model was not sure enough: {needed}")

    def _least(self, wording: Wording, start: int) -> float:
        kind = wording.kind(self._is_word)
        opens = self._openings.begins if start <= self._openings.first else self._openings.has(start)
        if kind == "capital":
            written = spelt(wording.was)
            begins = opens and wording.becomes[:1].isupper() and self._is_word(written[0])
            usual = begins or any(word.startswith(("i'", "i’")) or word == "i" for word in written)
        elif kind == "mark":
            usual = _MARKS.findall(wording.was) in ([], _MARKS.findall(wording.becomes))  # but "." for "?"
        else:
            cases = [any(word[0].isupper() for word in side) for side in (wording.gone, wording.new)]
            usual = not cases[0] if kind == "spelling" else cases[0] >= cases[1] or "I" in wording.new
        # a heading, a cell, an item, a note of a comment
        piece = self._text[self._segment.start : self._segment.end]
        is_part = not (self._segment.begins or self._segment.ends)
        is_apart = (is_part and not END.search(piece)) or is_fragment(piece)
        usual = usual and not (is_apart and kind not in ("spelling", "doubled", "mark"))
        least = self._margins[kind]
        words = {word.lower() for word in (*wording.gone, *wording.new)}
        end = start + len(wording.was)
        before = self._text[max(self._segment.start, start - _PAIR) : start]
        after = self._text[end : min(self._segment.end, end + _PAIR)]
        slips, left = (plain_slips(f"{before}{side}{after}") for side in (wording.was, wording.becomes))
        if words == ARTICLES or left < slips:  # the next word decides which article is right, as the evidence says
            return self._margins[kind] + self._more
        if self._facts.is_document and kind == "grammar":
            least += self._margins["more"]
        if self._facts.is_document and wording.is_other(kind, before):
            least = max(least, self._margins["other"])
        if opens and spelt(wording.was)[:1] == ["The"] and "The" in wording.gone:
            least = max(least, self._margins["initial"])  # whether "The" is right depends on the text before
        if kind == "spelling" and not _SET_OFF.isdisjoint(wording.was):
            least = self._margins["unusual"]
        if kind in ("form", "tense", "several", "slip") and any(map(self._is_often, wording.gone)):
            least += self._margins["often"]
        elif kind == "capital" and any(self._is_often(word) and not is_grammar(word) for word in spelt(wording.was)):
            least = self._margins["unusual"]  # for example a program's name in lower case
        least = least if usual else max(least, self._margins["unusual"])
        least += self._margins["care"] * self._facts.care * (2 if kind in STYLE else 1)
        return -math.inf if self._more == -math.inf else least + self._more


def raised(precision: float) -> float:
    """By how many nats margins are higher than usual for a share of edits that are to be right; 0: no margins."""
    return STEEPNESS * (_log_odds(precision) - _log_odds(USUAL_PRECISION)) if precision else -math.inf


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def _wrong_mark(wording: Wording) -> Refusal | None:
    """The refusal of changes of brackets, quotes, signs and runs of marks; commas, full stops and so on may change."""
    had, has = (Counter(_RUNS.findall(side)) for side in (wording.was, wording.becomes))
    letters = [list(filter(str.isalnum, side.casefold())) for side in (wording.was, wording.becomes)]
    for mark in [*(had - has), *(has - had)]:
        is_hyphen = mark == "-" and (letters[0] == letters[1] or wording.joins)  # "man -kind", "well known"
        is_hyphen = is_hyphen and _MINUS.findall(wording.was) == _MINUS.findall(wording.becomes)  # "-5", "5-10"
        if mark not in _MOVING and not is_hyphen:
            return wording.refusal("marks", f"but a mark such as {mark!r} is neither added nor removed")
    quotes = {len(_QUOTES.findall(side)) for side in (wording.was, wording.becomes)}
    if len(quotes) > 1 and not (wording.gone or wording.new):  # but "goin'" may become "going"
        return wording.refusal("marks", "but a quote is neither added nor removed")
    if wording.gone and not wording.new and has - had:
        return wording.refusal("marks", "which replaces words by a mark")
    return None


def measured(text: str, segment: Segment, edits: Sequence[Edit], changes: Sequence[Change] | None) -> Sequence[Edit]:
    """Return edits of a segment with their margins. `changes`: with margins, offsets as in the text that was shown."""
    if not edits or not changes:
        return edits
    preferred = _Preferred(text, segment, changes)
    margins = [preferred.margin(edit.start, edit.end) for edit in edits]
    return [
        replace(edit, margin=None if margin is None or math.isinf(margin) else round(margin, 2))
        for edit, margin in zip(edits, margins, strict=True)
    ]


class _Preferred:
    """The model's margins for its changes, by position in the text."""

    def __init__(self, text: str, segment: Segment, changes: Sequence[Change]) -> None:
        """`changes`: with offsets in the segment as it was shown. Positions are compared by the number of non-space
        characters before them, because the text and its shown form differ only in white space and hidden spans."""
        self._ink = [0, *accumulate(_is_ink(text, segment))]
        self._start = segment.start
        counts = [0, *accumulate(not char.isspace() for char in model_text(text, segment))]
        last = len(counts) - 1
        self._changes = [
            (counts[min(change.start, last)], counts[min(change.end, last)], change.margin) for change in changes
        ]

    def margin(self, start: int, end: int) -> float | None:
        """Return the least margin of the changes in a span of the text, else that of the change before it, or None."""
        first, last = self._ink[start - self._start], self._ink[end - self._start]
        inside = [margin for begin, until, margin in self._changes if begin <= last and until >= first]
        if inside:
            return min(inside)
        before = [margin for begin, _, margin in self._changes if begin <= first]
        return before[-1] if before else None


def _is_ink(text: str, segment: Segment) -> list[bool]:
    ink = [not char.isspace() for char in text[segment.start : segment.end]]
    for start, end in segment.hidden:
        ink[start - segment.start : end - segment.start] = [False] * (end - start)
    return ink
