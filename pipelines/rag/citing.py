"""Citations: finds the parts of a text that occur word for word in documents, by comparing the texts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
    return tuple(_runs(text, list(WORD.finditer(text)), 0, min_words, documents))


def settled(written: str, documents: Mapping[int, str], earlier: Sequence[Citation] = ()) -> tuple[int, list[Citation]]:
    """Return the length of the settled part of a text being written, and the citations in it.

    Later text cannot change these citations or add others there. The last word and the end of a run before it are not
    settled, because both may continue. `earlier`: the citations that were returned for a beginning of the text.
    """
    # What stands before white space, or before a character that is a word by itself, will not continue.
    end = max((found.start() for ends in (_SPACE, UNSPACED) for found in ends.finditer(written)), default=0)
    words = list(WORD.finditer(written[:end]))
    if _sums(words)[-1] <= MIN_WORDS:
        return 0, []
    border = words[-1].start()
    at = bisect_left([word.start() for word in words], earlier[-1].end if earlier else 0)
    runs = _runs(written[:end], words, at, MIN_WORDS, documents)
    return border, [*earlier, *(run for run in runs if run.end <= border)]


def _sums(words: Sequence[re.Match[str]]) -> list[float]:
    """The number of words before each match of WORD, and of all."""
    return [0.0, *accumulate(share_of_word(word[0]) for word in words)]


def _runs(
    text: str, words: Sequence[re.Match[str]], at: int, min_words: int, documents: Mapping[int, str]
) -> Iterator[Citation]:
    """The longest runs of at least `min_words` words, or of all, from word `at` on."""
    text = text.rstrip()  # a run that reaches the end is the longest, and none ends in white space
    sums = _sums(words)
    wanted = min(min_words, sums[-1])
    while wanted and (last := bisect_left(sums, sums[at] + wanted) - 1) < len(words):
        run = _longest(text, words, at, last, documents)
        if run is None:
            at += 1
            continue
        yield run
        while at < len(words) and words[at].start() < run.end:
            at += 1


def _longest(
    text: str, words: Sequence[re.Match[str]], at: int, last: int, documents: Mapping[int, str]
) -> Citation | None:
    """The longest run that begins with word `at` and holds word `last`."""
    start = words[at].start()
    best: Citation | None = None
    for name, document in documents.items():
        for place in _places(text[start : words[last].end()], document):
            end = _end(text, words, last, document, place - start)
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


def _end(text: str, words: Sequence[re.Match[str]], last: int, document: str, shift: int) -> int:
    """The end of the run that contains word `last`, for a document whose offsets are larger by `shift`."""
    end = words[last].end()
    for number in range(last + 1, len(words)):
        word = words[number]
        here, there = text[end : word.end()], document[end + shift : word.end() + shift]
        if here != there or not _is_border(document, word.end() + shift):
            break
        end = word.end()
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
    return not WORD.fullmatch(pair)
