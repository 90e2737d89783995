"""Citations: finds the parts of a text that occur word for word in documents, by comparing the texts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from copyspec.retrievers import MARKS, UNSPACED, WORD, share_of_word

MIN_WORDS = 3
"""Least number of words of a citation: shorter matches may be chance, unless they are the whole text. In scripts
without spaces, several characters count as one word (`share_of_word`)."""

_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Citation:
    """text[start:end] == documents[document][document_start:document_end]"""

    start: int
    end: int
    document: int
    document_start: int
    document_end: int


def citations(text: str, documents: Mapping[int, str], *, min_words: int = MIN_WORDS) -> tuple[Citation, ...]:
    """Return the longest runs of whole words that occur in one of the documents, from left to right, without overlap.

    Of equally long runs the first place in the first document is taken. A run has at least `min_words` words, or all
    words of the text.
    """
    words = _Words()
    words.read(text, len(text))
    return tuple(run for _, run in words.runs(text, 0, min_words, documents) if run is not None)


class CitationStream:
    """Follows a text that is being written: tells which part of it is settled, and the citations in it.

    Later text cannot change these citations or add others there. The last word and the end of a run before it are not
    settled, because both may continue. Only what may still change is read again.
    """

    def __init__(self, documents: Mapping[int, str]) -> None:
        self.citations: list[Citation] = []
        self._documents = documents
        self._words = _Words()
        self._at = 0  # no run begins before this word, but for the citations

    def settle(self, written: str) -> int:
        """Return the length of the settled part, and add its citations. `written`: the text so far."""
        # What stands before white space, or before a character that is a word by itself, will not continue.
        known = self._words.end
        ends = (match.start() for pattern in (_SPACE, UNSPACED) for match in pattern.finditer(written, known))
        end = max(ends, default=known)
        self._words.read(written, end)
        if self._words.sums[-1] <= MIN_WORDS:
            return 0
        border = self._words.starts[-1]
        for at, run in self._words.runs(written[:end], self._at, MIN_WORDS, self._documents):
            if run is not None and run.end > border:
                break
            self._at = at
            if run is not None:
                self.citations.append(run)
        return border


class _Words:
    """The words of a text, as WORD finds them."""

    def __init__(self) -> None:
        self.end = 0  # the text up to here was read
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.sums = [0.0]  # the number of words before each match of WORD, and of all

    def read(self, text: str, end: int) -> None:
        """Add the words up to a place where none goes on."""
        for word in WORD.finditer(text, self.end, end):
            self.starts.append(word.start())
            self.ends.append(word.end())
            self.sums.append(self.sums[-1] + share_of_word(word[0]))
        self.end = end

    def runs(
        self, text: str, at: int, min_words: int, documents: Mapping[int, str]
    ) -> Iterator[tuple[int, Citation | None]]:
        """The longest runs of at least `min_words` words, or of all, from word `at` on: for each word that may begin
        one, the word to go on from, and the run if there is one."""
        text = text.rstrip()  # a run that reaches the end is the longest, and none ends in white space
        wanted = min(min_words, self.sums[-1])
        while wanted and (last := bisect_left(self.sums, self.sums[at] + wanted) - 1) < len(self.starts):
            run = _longest(text, self, at, last, documents)
            at = at + 1 if run is None else bisect_left(self.starts, run.end)
            yield at, run


def _longest(text: str, words: _Words, at: int, last: int, documents: Mapping[int, str]) -> Citation | None:
    """The longest run that begins with word `at` and holds word `last`."""
    start = words.starts[at]
    best: Citation | None = None
    for name, document in documents.items():
        for place in _places(text[start : words.ends[last]], document):
            end = _end(text, words.ends, last, document, place - start)
            if best is None or end > best.end:
                best = Citation(start, end, name, place, place + end - start)
            if end == len(text):  # the other places of a text that repeats itself cannot be better
                return best
    return best


def _places(seed: str, document: str) -> Iterator[int]:
    """The positions of `seed` in the document, as whole words."""
    place = document.find(seed)
    while place >= 0:
        if _is_border(document, place) and _is_border(document, place + len(seed)):
            yield place
        place = document.find(seed, place + 1)


def _end(text: str, ends: Sequence[int], last: int, document: str, shift: int) -> int:
    """The end of the run that contains word `last`, for a document whose offsets are larger by `shift`. `ends`: of the
    words."""
    end, step = ends[last], 1
    while step and last < len(ends) - 1:  # comparing word by word would take long for a text that quotes at length
        number = min(last + step, len(ends) - 1)
        here, there = text[end : ends[number]], document[end + shift : ends[number] + shift]
        if here == there and _is_border(document, ends[number] + shift):
            last, end, step = number, ends[number], step * 2
        else:
            step //= 2
    # A full stop or closing bracket after the last word belongs to the quotation.
    while end < len(text) and text[end : end + 1] == document[end + shift : end + shift + 1] and _closes(text[end]):
        end += 1
    return end


def _closes(character: str) -> bool:
    return not character.isalnum() and not character.isspace() and character != "_"


def _is_border(document: str, place: int) -> bool:
    """Whether `place` is not inside a word, to which the marks of its letters belong."""
    before = place - 1
    while before > 0 and document[before] in MARKS:
        before -= 1
    pair = document[before] + document[place] if 0 < place < len(document) else ""
    word = WORD.match(pair)
    return word is None or word.end() < len(pair)
