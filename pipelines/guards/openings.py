"""Tells which words of a segment begin a sentence: their capitals do not make them names."""

from __future__ import annotations

import re

from copyspec.text.sentence_marks import CLOSING_QUOTES, SENTENCE_ENDS

from ..documents import Segment
from ..sentences import sentences
from .sentencehood import begins_item

_NEAR = 60  # characters on each side of a place that are looked at
_WORD = re.compile(r"[^\W_]\w*")
_SAYS = r"\b(?:sa(?:id|ys?|ying)|ask(?:s|ed|ing)?|tells?|told(?:\s\w+)?|repl(?:y|ie[sd])|answer(?:s|ed)?|wrote|writes?)"
_BEFORE = re.compile(
    rf"(?:[{SENTENCE_ENDS}][{re.escape(CLOSING_QUOTES)}]*|:\s*|\b[ap]\.m\.\s+"
    rf"|(?:,|{_SAYS})\s*(?=[\"“„«‘]))[\"'“‘„«(\[*_]*\Z"
)
"""What stands before a word that begins a sentence: a colon, a full stop without a space or that of "p.m.", or what
introduces a quotation."""
_PICTURES = ("\ufffc", "![")  # in documents, and in Markdown
_TAG = re.compile(r"</?(?:a|abbr|b|br|cite|del|em|font|i|ins|mark|q|small|span|strong|sub|sup|u)\b[^<>]*>", re.I)
"""Inline tags, right after which a sentence may begin."""
_LINE_START = re.compile(r"\n[^\w\n]*\Z")


class Openings:
    """The places in a segment where a sentence, a list item or a quotation begins."""

    def __init__(self, text: str, segment: Segment) -> None:
        prose, is_free = list(text[segment.start : segment.end]), [True] * (segment.end - segment.start)
        for spans in (segment.protected, segment.hidden):
            for start, end in spans:
                first, last = max(start - segment.start, 0), min(end - segment.start, len(prose))
                is_free[first:last] = [False] * (last - first)
                # code stands for a word, markup does not
                is_word = spans is segment.protected and any(map(str.isalnum, prose[first:last]))
                is_word &= not _TAG.fullmatch(text, start, end)
                prose[first:last] = ("x" if is_word else " ") * (last - first)
        self._prose, self._start = "".join(prose), segment.start
        opening = next((at for at, char in enumerate(prose) if is_free[at] and char.isalpha()), 0)
        self.first = segment.start + opening
        """The first letter that may change."""
        front = text[segment.start : self.first]
        is_in_front = any(mark in front for mark in _PICTURES) or any(map(str.isalnum, prose[:opening]))
        self.begins = segment.begins and not is_in_front
        """Whether it begins a sentence."""
        self._width = max((len(line.rstrip()) for line in self._prose.split("\n")), default=0)

    def has(self, at: int) -> bool:
        """Whether a sentence begins at character `at` of the text if its first word gets a capital."""
        at -= self._start
        word = _WORD.search(self._prose, at, at + _NEAR)
        at = word.start() if word else at
        before = self._prose[max(0, at - _NEAR) : at]
        if _BEFORE.search(before) or begins_item(before):
            return True
        if (line := _LINE_START.search(before)) and self._is_ended(at - len(line[0]), len(word[0]) if word else 1):
            return True
        start, _ = sentences(before + (word[0].capitalize() if word else "A"))[-1]
        is_known = start > 0 or at <= _NEAR  # otherwise the sentence began further up
        return is_known and not any(map(str.isalnum, before[start:]))

    def _is_ended(self, end: int, size: int) -> bool:
        """Whether the line break at `end` is deliberate, as after a letter's greeting: the next word, of this size,
        would have fitted on the line."""
        line = self._prose[self._prose.rfind("\n", 0, end) + 1 : end]
        return len(line.rstrip()) + 1 + size <= self._width
