"""The words and the language of a document, for judging its edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .languages import ANY, is_in
from .vocabulary import ENDING, english, is_english, is_rare, spelt

MAX_OWN = 1 << 16
"""Maximum number of stored words that are not in the word list: 10 MB at most. Only data files have more."""

OFTEN = 3
"""A word with this many occurrences in a document is not a slip."""

LANGUAGE_PARTS = 100  # parts from which the document's language is determined
LANGUAGE_CHARS = 500  # first characters of each


class DocumentWords:
    """Words and language of one document, collected part by part. Queries refer to the state after a given part.

    Parts may be read ahead of the one that is queried; they do not count, so that a file gets the same corrections
    however far it is read ahead.
    """

    def __init__(self, own: Iterable[str] = (), language: str = "en") -> None:
        """`own`: additional words of the user; `language`: of the model."""
        self._first = {word.casefold(): -1 for word in own}  # word -> first part that has it; -1: the user's
        self._parts = 0
        self._often: dict[str, int] = {}  # word -> count, or -1 - (number of the part with its OFTEN-th occurrence)
        languages = {"en", language} - {ANY}
        # language -> (part, whether the part is in that language)
        self._verdicts: dict[str, list[tuple[int, bool]]] = {name: [] for name in languages}

    def read(self, text: str, prose: str | None = None) -> int:
        """Add the next part and return its number. `prose`: its text without code and markup, in which words are
        counted for `is_often`."""
        number = self._parts
        if len(self._first) < MAX_OWN:
            words = english()
            for word in set(spelt(text)):
                if word not in words:
                    self._first.setdefault(word.casefold(), number)
            for word, count in Counter(spelt((text if prose is None else prose).casefold())).items():
                seen = self._often.get(word, 0)
                if seen >= 0:
                    self._often[word] = -1 - number if seen + count >= OFTEN else seen + count
        for language, verdicts in self._verdicts.items():
            if len(verdicts) < LANGUAGE_PARTS and (verdict := is_in(text[:LANGUAGE_CHARS], language)) is not None:
                verdicts.append((number, verdict))
        self._parts += 1
        return number

    def knows(self, word: str, part: int) -> bool:
        """Whether `word` is in the word list, one of the user's, or in the document up to and including `part`."""
        if is_english(word):
            return True
        stem = ENDING.sub("", word).casefold()
        return any(self._first.get(each, part + 1) <= part for each in (word.casefold(), stem))

    def is_word(self, word: str) -> bool:
        """Whether `word` is in a word list or one of the user's. Words of the document may be misspelt."""
        return is_english(word) or self._first.get(word.casefold(), 0) < 0 or is_rare(word)

    def is_often(self, word: str, part: int) -> bool:
        """Whether the document up to and including `part` has a word OFTEN, so that it is intended."""
        return -1 - part <= self._often.get(word.casefold(), 0) < 0

    def is_in(self, language: str, part: int) -> bool:
        """Whether most of the document up to and including `part` is in a language; True if undecided."""
        votes = [verdict for number, verdict in self._verdicts.get(language, ()) if number <= part]
        return 2 * sum(votes) >= len(votes)
