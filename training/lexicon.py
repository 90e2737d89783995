"""Word statistics of a corpus: how often words occur, and which word fits between two others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from training.tables import CONFUSION_SETS
from training.text import split_words

# A slot is decided only by clear evidence: the best filler must have this count, and this many times the count of the
# current word. Lower values let noise through that a reader could not undo.
MIN_COUNT = 4
MIN_RATIO = 8.0
KNOWN_COUNT = 2  # words with this count are words, not misspellings
FREQUENT_COUNT = 12  # misspellings are made from, and repaired to, words with this count
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FILLERS = frozenset(word for group in CONFUSION_SETS for word in group if word)


class Lexicon:
    """Counts of words, of neighbours, and of the function words seen between two neighbours.

    ``words[w]``: occurrences of the lower-case word ``w``; ``capitals[W]``: occurrences of a word that is written
    with a capital inside a sentence; ``slots[(left, right)][filler]``: occurrences of ``left filler right``, with
    the filler ``""`` for ``left right`` side by side. ``nouns[w]``: occurrences between a determiner and the end of
    its phrase; ``counted[w]``: those of them after ``a`` or ``an``.
    """

    def __init__(self, sentences: Iterable[str]) -> None:
        self.words: Counter[str] = Counter()
        self.capitals: Counter[str] = Counter()
        self.slots: dict[tuple[str, str], dict[str, int]] = {}
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.nouns: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self._repairs: dict[str, str] = {}
        self._company: dict[str, Counter[str]] = {}
        texts = [[word.strip() for word in split_words(sentence)] for sentence in sentences]
        triples: Counter[tuple[str, str, str]] = Counter()
        for words in texts:
            lower = [word.lower() for word in words]
            self.words.update(word for word in words[1:] if word[0].islower())
            self.words.update(lower[:1])
            self.capitals.update(word for word in words[1:] if word[0].isupper())
            triples.update(t for t in zip(lower, lower[1:], lower[2:], strict=False) if t[1] in _FILLERS)
        for (left, filler, right), count in triples.items():
            if count >= 2:
                self.slots.setdefault((left, right), {})[filler] = count
        for words in texts:
            lower = [word.lower() for word in words]
            for pair in pairwise(lower):
                if pair in self.slots:
                    fillers = self.slots[pair]
                    fillers[""] = fillers.get("", 0) + 1
                if pair[0] in _VERB_SIGNS or pair[1] in PREPOSITIONS:
                    self.pairs[pair] += 1
            for left, word, right in zip(lower, lower[1:], lower[2:], strict=False):
                if left in _BEFORE_NOUNS and right in _PHRASE_ENDS:
                    self.nouns[word] += 1
                    self.counted[word] += left in ("a", "an")

    def known(self, word: str) -> bool:
        """Whether ``word`` occurs in the corpus, in any capitalisation."""
        return self.words[word.lower()] >= KNOWN_COUNT or self.capitals[word] >= KNOWN_COUNT

    def best_filler(self, left: str, current: str, right: str, options: frozenset[str]) -> str:
        """The filler that clearly belongs between two words, else ``current``."""
        fillers = self.slots.get((left.lower(), right.lower()))
        if fillers is None:
            return current
        best = max(options, key=lambda option: (fillers.get(option, 0), option))
        seen = fillers.get(best, 0)
        if seen >= MIN_COUNT and seen >= MIN_RATIO * fillers.get(current, 0):
            return best
        return current

    def is_verb(self, word: str) -> bool:
        """Whether ``word`` is a base form whose third person adds an s, judged by the contexts of both forms."""
        base = sum(self.pairs[(sign, word)] for sign in ("to", "they", "we", "you"))
        return base >= 6 and self.words[word + "s"] >= 3 and word.isalpha() and len(word) > 2

    def is_noun(self, word: str) -> bool:
        """Whether ``word`` occurs alone after determiners, as nouns do."""
        return self.nouns[word] >= max(5, self.words[word] // 30)

    def is_mass(self, word: str) -> bool:
        """Whether ``word`` is a noun that takes no ``a`` and no plural, as far as the corpus shows."""
        few = max(1, self.nouns[word] // 20)
        return self.is_noun(word) and not word.endswith("s") and max(self.counted[word], self.nouns[word + "s"]) <= few

    def takes(self, word: str, preposition: str) -> float:
        """The share of the occurrences of ``word`` that ``preposition`` follows."""
        return self.pairs[(word, preposition)] / self.words[word] if self.words[word] >= 20 else 0.0

    def company(self, left: str, filler: str) -> float:
        """The share of ``filler`` among the function words after ``left``; 0 if there are too few."""
        if not self._company:
            for (before, _), fillers in self.slots.items():
                self._company.setdefault(before, Counter()).update({f: n for f, n in fillers.items() if f})
        seen = self._company.get(left)
        total = seen.total() if seen else 0
        return seen[filler] / total if seen and total >= 8 else 0.0

    def nearest(self, word: str) -> str:
        """The frequent word one edit away from an unknown word, if exactly one stands out; else ``word``."""
        if self.known(word) or not word.isalpha():
            return word
        if word not in self._repairs:
            if len(self._repairs) > 200_000:
                self._repairs.clear()  # otherwise every made-up typo would be cached for good
            candidates = {near: self.words[near] for near in edits(word) if self.words[near] >= FREQUENT_COUNT}
            ranked = sorted(candidates, key=lambda near: -candidates[near])
            alone = len(ranked) == 1 or (len(ranked) > 1 and candidates[ranked[0]] >= MIN_RATIO * candidates[ranked[1]])
            self._repairs[word] = ranked[0] if alone else word
        return self._repairs[word]


_VERB_SIGNS = frozenset({"to", "they", "we", "you"})
PREPOSITIONS = ("in", "on", "at", "of", "to", "for", "with", "from", "by", "about", "into")
DETERMINERS = frozenset(
    {"a", "an", "the", "this", "that", "these", "those", "his", "her", "its", "their", "our", "my", "your", "no"}
)
_BEFORE_NOUNS = DETERMINERS - {"this", "that", "these", "those", "no", "her"}
_PHRASE_ENDS = frozenset(
    {*PREPOSITIONS, "is", "was", "are", "were", "and", "or", "but", "that", "which", ".", ",", "?"}
)


def edits(word: str) -> set[str]:
    """All strings one deletion, transposition, replacement or insertion away (P. Norvig, 2007)."""
    splits = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    near = {a + b[1:] for a, b in splits if b}
    near |= {a + b[1] + b[0] + b[2:] for a, b in splits if len(b) > 1}
    near |= {a + letter + b[1:] for a, b in splits if b for letter in _LETTERS}
    near |= {a + letter + b for a, b in splits for letter in _LETTERS}
    near.discard(word)
    return near
