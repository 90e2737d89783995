"""What is known of the document at hand when an edit is judged: its words, its language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .languages import ANY, is_in
from .vocabulary import ENDING, english, is_english, is_rare, spelt

MOST_OWN = 1 << 16
"""Words of a document that the list lacks: 10 MB at most. Data has more, and texts have not."""

OFTEN = 3
"""A word that stands so often in a document is no slip of its writer."""

TELLING = 100  # parts whose language tells that of the document
LOOKED_AT = 500  # characters of each


class Facts:
    """Words and language of one document. It grows with each part that is read, and is asked as of a part.

    Parts may be read ahead of the one that is asked about, and what was read ahead never counts: the same file gives
    the same corrections however it is read.
    """

    def __init__(self, own: Iterable[str] = (), language: str = "en") -> None:
        """`own`: more words, of the user's; `language`: of the model."""
        self._first = {word.casefold(): -1 for word in own}  # the part that had a word first
        self._parts = 0
        self._often: dict[str, int] = {}  # times that a word was seen, or -1 less the part in which it was OFTEN
        languages = {"en", language} - {ANY}
        # by language: part, whether it is in that language
        self._verdicts: dict[str, list[tuple[int, bool]]] = {name: [] for name in languages}

    def read(self, text: str, prose: str | None = None) -> int:
        """Takes the next part; returns its number. `prose`: what of it was written as text, without code and markup:
        what stands often there is what the writer means."""
        number = self._parts
        if len(self._first) < MOST_OWN:
            words = english()
            for word in set(spelt(text)):
                if word not in words:
                    self._first.setdefault(word.casefold(), number)
            for word, count in Counter(spelt((text if prose is None else prose).casefold())).items():
                seen = self._often.get(word, 0)
                if seen >= 0:
                    self._often[word] = -1 - number if seen + count >= OFTEN else seen + count
        for language, verdicts in self._verdicts.items():
            if len(verdicts) < TELLING and (verdict := is_in(text[:LOOKED_AT], language)) is not None:
                verdicts.append((number, verdict))
        self._parts += 1
        return number

    def knows(self, word: str, part: int) -> bool:
        """Whether `word` is of the list, of the user's, or stood in the document up to and including `part`."""
        if is_english(word):
            return True
        stem = ENDING.sub("", word).casefold()
        return any(self._first.get(each, part + 1) <= part for each in (word.casefold(), stem))

    def is_word(self, word: str) -> bool:
        """Whether it is of the lists or of the user's: a word of the document may be a misspelling."""
        return is_english(word) or self._first.get(word.casefold(), 0) < 0 or is_rare(word)

    def is_often(self, word: str, part: int) -> bool:
        """Whether the document up to and including `part` has a word so often that the writer means it."""
        return -1 - part <= self._often.get(word.casefold(), 0) < 0

    def is_in(self, language: str, part: int) -> bool:
        """Whether most of the document up to and including `part` is in a language; True where nothing tells."""
        told = [verdict for number, verdict in self._verdicts.get(language, ()) if number <= part]
        return 2 * sum(told) >= len(told)
