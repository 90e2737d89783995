"""Analyses a question: its terms and their weights, and the kind of answer it expects (a number, a name, a time)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from copyspec.common.lists import Lists
from copyspec.retrievers import STOP_WORDS, UNSPACED, Stems, cased_words

from ..guards.function_words import forms_of

_LISTS = Lists(__file__)

TYPE_BONUS = 0.12  # for an answer of the expected kind: a number for "how many", an identifier for "which option"
FIRST_BONUS = 0.06  # for a sentence that begins with a term of the question, which is then its subject
TOPIC_BONUS = 0.1  # for a sentence with all terms in its first FIRST_CHARS characters
FIRST_CHARS = 40
COMMONEST, MIN_WEIGHT = 50, 0.7
"""The 50 most common English words get this weight factor, because rarity in few documents is unreliable. From there
the factor rises to 1 with the logarithm of the rank in `frequent_words.txt`."""
FEWEST = 20  # least N in `TermRarity`
_CODE = re.compile(r"`[^`]+`|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|\b\w+[._]\w+|\b[a-z]+[A-Z]\w*|--\w+|\b\w+[=(]")
_NUMBER = _LISTS.pattern("number")
_ASKED_BY = _LISTS.pattern("asked_by")
"""Question phrases, which do not occur in answers."""
_PARTICLES = frozenset("的了是在はがをにでとのもへや")
"""Chinese and Japanese words of one character whose English counterparts are in `STOP_WORDS`. Inside a longer run of
kana they stay, as parts of pairs of characters."""
_ASKS_NUMBER = _LISTS.pattern("asks_number")
_ASKS_TIME = re.compile(r"\b(?:when|(?:at|by|until|from) what times?|what time)\b", re.IGNORECASE)
_TIME = _LISTS.pattern("time")
_ASKS_SPAN = re.compile(r"\bhow long\b|\bhow many (?:seconds|minutes|hours|days|weeks|months|years)\b", re.IGNORECASE)
# These begin where a run of letters or digits begins: tried at each of its characters, they would take quadratic time.
_SPAN = re.compile(r"(?<![\w.,])[.,]*\w[\w.,]*[ -](?:second|minute|hour|day|week|month|year)s?\b", re.IGNORECASE)
_ASKS_MONEY = _LISTS.pattern("asks_money")
_MONEY = _LISTS.pattern("money")
_HOW_MANY = re.compile(r"\bhow many ((?:\w+ )?\w+)", re.IGNORECASE)
COUNTED_WORDS = 4  # maximum number of words between a number and what it counts
COUNTED_CHARS = 120  # after the number, in which these words are looked for
_ASKS_VERSION = re.compile(r"\b(?:version|release)s?\b", re.IGNORECASE)
_VERSION = re.compile(r"\d\.\d")
_LIMITS = {word: words for words in _LISTS.rows("limits") for word in words}
_BOUND = {
    name: re.compile(rf"\b{phrase}\W+(?:\w+\W+){{0,2}}?{_NUMBER.pattern}", re.IGNORECASE)
    for name, phrase in _LISTS.pairs("bounds")
}
_ASKS_LIMIT = _LISTS.pattern("asks_limit")
_VALUE = re.compile(
    r"(?<![\w-])[.,]?\d|\b(?:no|none|one|a single|only|both|pair|couple|several|unlimited|any number|zero|half)\b|"
    r"\b(?:a|an|each|every|per) (?:second|minute|hour|day|week|month|year|fortnight)|\b(?:for)?ever\b|"
    + _NUMBER.pattern.partition("|")[2],
    re.IGNORECASE,
)
_DEFAULT = re.compile(r"\bdefaults?\b\W{0,3}(?:is\W+|to\W+)?\w+", re.IGNORECASE)
_MARK = re.compile(r"[-*+•]\s|\d{1,2}[.)]\s")  # of a list item
ASKS_NAME = _LISTS.pattern("asks_name")


class TermRarity:
    """Rarity of a term that n of N texts hold: ln(1 + (N - n + 0.5) / (n + 0.5)), as in BM25.

    N is at least FEWEST: among one or two texts, words that none of them holds would count several times as much as
    those that answer the question."""

    def __init__(self, holders: Callable[[str], int], total: int) -> None:
        self._holders, self._total = holders, max(total, FEWEST)

    @classmethod
    def among(cls, texts: Sequence[str], split: Stems) -> TermRarity:
        """Make the rarities among these texts."""
        counts = Counter(term for text in texts for term in set(split(text)))
        return cls(lambda term: counts[term], len(texts))

    def __contains__(self, term: str) -> bool:
        """Whether any text holds the term."""
        return self._holders(term) > 0

    def __getitem__(self, term: str) -> float:
        count = self._holders(term)
        return math.log1p((self._total - count + 0.5) / (count + 0.5))


def asked_terms(question: str, weights: TermRarity, split: Stems) -> dict[str, frozenset[str]]:
    """Return the terms of a question, each with all of its forms. The parts of an identifier are only terms if no text
    holds the whole identifier. In scripts without spaces, characters in a row that no text holds are one term."""
    terms: dict[str, frozenset[str]] = {}
    was_unknown = False
    for word in cased_words(_ASKED_BY.sub(" ", question)) or cased_words(question):
        if word.lower() in STOP_WORDS or word in _PARTICLES:
            continue
        first, *parts = split(word)
        is_unknown = UNSPACED.match(word) is not None and first not in weights
        if is_unknown and was_unknown:
            continue  # else one unknown word, such as "when", would count as several
        was_unknown = is_unknown
        forms = [*forms_of(word.lower()), *_LIMITS.get(word.lower(), ())]
        others = {other for form in forms for other in split(form)[:1]}
        terms[first] = frozenset({first, *split.spelt(word.lower()), *others})
        if first not in weights:
            terms.update({part: frozenset((part,)) for part in parts})
    return terms or {term: frozenset((term,)) for term in split.query(question)}


def commonness(split: Stems) -> _Factors:
    """Return the weight factor of each term."""
    return _factors(split.name)


@cache
def _factors(language: str) -> _Factors:
    return _Factors(Stems(language))


class _Factors:
    """Weight factors by how common a word is in English, from MIN_WEIGHT to 1."""

    def __init__(self, split: Stems) -> None:
        factors: dict[str, float] = {}
        if split.name == "english":
            listed = Path(__file__).with_name("frequent_words.txt").read_text(encoding="utf-8").split()
            for place, word in enumerate(listed, 1):
                part = max(0.0, math.log(place / COMMONEST)) / math.log(len(listed) / COMMONEST)
                factors.setdefault(split(word)[0], MIN_WEIGHT + (1 - MIN_WEIGHT) * part)
        self._by_term = factors

    def __getitem__(self, term: str) -> float:
        return self._by_term.get(term, 1.0)


def limits(text: str) -> set[str]:
    """Return "maximum" or "minimum" for a text that says "at most 5" or the like: forms of what a question asks for."""
    return {name for name, bound in _BOUND.items() if bound.search(text)}


def holds_value(question: str, sentence: str) -> bool:
    """Whether a text holds a value at all, if the question asks for one: other texts are no sure answers."""
    if not _ASKS_LIMIT.search(question):
        return True
    if "default" not in question.lower():
        sentence = _DEFAULT.sub("", sentence)
    mark = _MARK.match(sentence)
    return _VALUE.search(sentence, mark.end() if mark else 0) is not None


def answer_bonus(question: str, sentence: str, term_weights: dict[str, float], split: Stems, above: str = "") -> float:
    """Return the bonus of a text for what it has besides words shared with the question. `above`: the question that the
    text answers, in a list of questions and answers."""
    bonus = 0.0
    known = set(split(question))
    bonus += TYPE_BONUS * _has_kind(question, sentence, split, above)
    if ASKS_NAME.search(question) and any(not known.issuperset(split(name[0])) for name in _CODE.finditer(sentence)):
        bonus += TYPE_BONUS
    if _ASKS_VERSION.search(question) and _VERSION.search(sentence):
        bonus += TYPE_BONUS
    beginning = (above or sentence)[:FIRST_CHARS]
    if any(term in term_weights for first in cased_words(beginning)[:1] for term in split(first)):
        bonus += FIRST_BONUS
    if set(term_weights) <= set(split(beginning)):
        bonus += TOPIC_BONUS
    return bonus


def _has_kind(question: str, sentence: str, split: Stems, above: str) -> bool:
    """Whether a text holds a time, number or sum if the question asks for one; only the narrowest kind counts."""
    for asks, holds in ((_ASKS_SPAN, _SPAN), (_ASKS_MONEY, _MONEY), (_ASKS_TIME, _TIME)):
        if asks.search(question):
            return holds.search(sentence) is not None
    if counted := _HOW_MANY.search(question):
        things = set(split(counted[1]))
        if not things.isdisjoint(split(above)):
            return _VALUE.search(sentence) is not None
        for number in _NUMBER.finditer(sentence):
            after = sentence[number.end() : number.end() + COUNTED_CHARS].split()
            if not things.isdisjoint(split(" ".join(after[: COUNTED_WORDS + 1]))):
                return True
        return False
    return bool(_ASKS_NUMBER.search(question) and _NUMBER.search(sentence))
