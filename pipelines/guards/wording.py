"""Classifies a change by its words: which it adds, which it removes, and whether they are related.

`knows`, in this module, tells whether a word is spelt correctly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from copyspec.common.lists import Lists

from ..documents import Refusal, replacing
from .articles import ARTICLES
from .function_words import FUNCTION_WORDS, NEGATIONS, are_forms, are_of_a_kind, are_synonyms
from .gerunds import are_inflected, governs, is_adjective
from .likeness import are_akin, is_near, is_nearer, is_spelling, plain
from .opposites import are_opposites
from .vocabulary import spelt

_LISTS = Lists(__file__)

Knows = Callable[[str], bool]

Kind = Literal["spelling", "capital", "mark", "comma", "doubled", "form", "tense", "several", "grammar", "slip", "swap"]
"""Kinds of change: corrects a misspelt word; only capitals; only marks and spaces; only adds a comma; removes the
second of two equal words; another form of a word; a form with -ed for one without; a form, with words that come or go
beside it; function words; another word that differs by a letter; any other word."""

# Words that may rightly be doubled.
_TWICE = _LISTS.words("twice")
_UNMARKED = _LISTS.words("unmarked")
"""Negations without apostrophe."""
_CASES = _LISTS.words("cases")
_CARDINALS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion half dozen
""".split()  # noqa: SIM905
_NUMBERS = (
    {word: word for word in _CARDINALS}
    | {f"{word}th": word for word in _CARDINALS}  # "fiveth", too, which learners write
    | {f"{word[:-1]}ieth": word for word in _CARDINALS if word.endswith("ty")}
    | {"first": "one", "second": "two", "third": "three", "fifth": "five", "eighth": "eight", "ninth": "nine"}
    | {"twelfth": "twelve"}
)
"""Numbers in words, and what they count."""


@dataclass(frozen=True, slots=True)
class Wording:
    """One change: the text that it touches, before and after, and the neighbouring words."""

    was: str
    becomes: str
    gone: Sequence[str]  # words of `was` that `becomes` lacks, as written
    new: Sequence[str]  # words of `becomes` that `was` lacks
    beside: Sequence[str]  # the word before and the word after

    @classmethod
    def of(cls, was: str, becomes: str, beside: Sequence[str] = ()) -> Wording:
        gone, new = _apart(spelt(was), spelt(becomes))
        return cls(was, becomes, gone, new, beside)

    @property
    def joins(self) -> bool:
        """Whether words are joined, or a word is split, without changing letters."""
        return any(_is_run(word, self.gone) for word in self.new) or any(_is_run(word, self.new) for word in self.gone)

    def refusal(self, reason: str, why: str) -> Refusal:
        """The refusal of this change; `why` ends the sentence that begins with it."""
        return Refusal(reason, f"{replacing(self.was, self.becomes)}, {why}")

    def denies(self, knows: Knows) -> bool:
        """Whether a negation is added or removed. Exchanging words that sound alike does not count ("I don't no"), nor
        does correcting the spelling of one; "dident" may be "didn't", and hence does not become "did"."""
        if len(self.gone) == len(self.new) == 1:
            gone, new = self.gone[0], self.new[0]
            if are_forms(gone.casefold(), new.casefold()):
                return False
            if not knows(gone) and not is_negation(gone):
                if is_negation(new):
                    return not is_spelling(gone, new)
                negations = [word for word in NEGATIONS | _UNMARKED if word.startswith(plain(new))]  # "did": "didnt"
                has_n = plain(gone).count("n") > plain(new).count("n")  # of "not": "didn" may be "didn't"
                return not is_nearer(gone, new, negations, or_as_near=not has_n)
        was, becomes = (any(map(is_negation, spelt(side))) for side in (self.was, self.becomes))
        return was != becomes

    def unknown(self, knows: Knows) -> Refusal | None:
        """Return the refusal of a new word that is unknown, or None."""
        for word in self.new:
            if not knows(word) and not _is_run(word, self.gone):
                return self.refusal("words", f"but {word!r} is in no word list and not in the document")
        return None

    def swap(self, knows: Knows) -> Refusal | None:
        """Return the refusal of a change whose new words are unrelated to the removed ones, or None."""
        if _letters(self.was) == _letters(self.becomes):
            return None
        if self.denies(knows):
            return self.refusal("swap", 'which adds or removes a word such as "not"')
        if are_synonyms(self.gone, self.new):
            return self.refusal("swap", "but both mean the same")
        for gone, new in product(self.gone, self.new):
            if are_opposites(gone, new, knows):
                return self.refusal("swap", f"but {gone!r} and {new!r} are opposites")
        for word in self.new:
            if not self._has_origin(word, knows):
                return self.refusal("swap", f"but {word!r} is another word, not another form or spelling")
        for word in self.gone:
            if not self._has_heir(word, knows):
                return self.refusal("swap", f"but the word {word!r} would be lost")
        return None

    def kind(self, knows: Knows) -> Kind:
        """Return the kind of a change that `swap` does not refuse."""
        had, has = _letters(self.was), _letters(self.becomes)
        if had == has:
            cut = [word for word in self.gone if knows(word)]  # known words are not split: "hereof" to "here of"
            if self.new and cut and len(cut) == len(self.gone):
                return "slip"
            if _adds_apostrophe(self.gone, self.new) and not knows(self.gone[0]) and knows("".join(self.new)):
                return "spelling"
            return "comma" if _adds_commas(self.was, self.becomes) else "mark"
        if had.casefold() == has.casefold():
            return "capital"
        if any(not knows(word) for word in self.gone) and self.new:
            return "spelling"
        if self._is_doubled():
            return "doubled"
        if all(map(is_grammar, (*self.gone, *self.new))):
            is_form = self.gone and self.new and all(map(self._has_form, self.gone))
            return "form" if is_form and _CASES.isdisjoint(word.casefold() for word in self.gone) else "grammar"
        if not all(is_grammar(word) or self._has_form(word) for word in self.gone):
            return "slip"
        if len(self.gone) != len(self.new):
            return "several"
        return "tense" if any(map(_is_tense, self.gone, self.new)) else "form"

    def is_other(self, kind: Kind, before: str) -> bool:
        """Whether function words or forms change into more than a form of the same words: another preposition than the
        word before asks for, an article that comes, a word of another part of speech, unless it is an adjective or an
        adverb ("difference", "different"), which other words are often written for. `before`: the text before it."""
        if kind == "grammar" and not self.gone:
            return {*ARTICLES, "the"}.issuperset(word.lower() for word in self.new)
        is_asked = kind in ("grammar", "form", "tense") and len(self.gone) == len(self.new)
        governor = "".join(spelt(before.lower())[-1:])
        pairs = ((gone.casefold(), new.casefold()) for gone, new in zip(self.gone, self.new, strict=False))
        return is_asked and any(
            not (are_inflected(gone, new) or governs(governor, new))
            and (
                is_grammar(new)
                or not (is_near(gone, new) or ((is_adjective(new) or new.endswith("ly")) and not gone.endswith("ly")))
            )
            for gone, new in pairs
        )

    def _has_origin(self, word: str, knows: Knows) -> bool:
        if any(_may_become(gone, word, knows) for gone in self.gone) or _is_run(word, self.gone):
            return True
        if _is_number(word):
            return not word.isalpha()  # digits are guarded elsewhere
        if not is_grammar(word):
            return False
        grammar = [gone for gone in self.gone if is_grammar(gone)]
        if len(self.gone) < len(self.new) or (len(grammar) < len(self.gone) > 1):
            return True  # function words may be added and removed: "listen music", "discuss about"
        return any(are_of_a_kind(word.casefold(), gone.casefold()) for gone in grammar)

    def _has_heir(self, word: str, knows: Knows) -> bool:
        if any(_may_become(word, new, knows) for new in self.new) or _is_run(word, self.new):
            return True
        if any(word in _run(self.gone, new) for new in self.new):
            return True
        is_guarded = _is_number(word) and not word.isalpha()  # digits are, elsewhere
        return is_grammar(word) or is_guarded or self._is_doubled()

    def _has_form(self, word: str) -> bool:
        return any(are_akin(word, new) or word in _run(self.gone, new) for new in self.new) or _is_run(word, self.new)

    def _is_doubled(self) -> bool:
        if self.new or len(self.gone) != 1 or self.gone[0].casefold() in _TWICE:
            return False
        stays = [word.casefold() for word in (*spelt(self.becomes), *self.beside)]
        return self.gone[0].casefold() in stays


def _may_become(gone: str, new: str, knows: Knows) -> bool:
    had, has = (_NUMBERS.get(word.casefold()) for word in (gone, new))
    if had and has:  # "sixteen" and "sixty" look akin
        return had == has
    if has and not knows(gone) and not is_near(gone, new):  # "fourty" is "forty" rather than "four"
        others = [word for word, number in _NUMBERS.items() if number != has]
        return is_spelling(gone, new) and is_nearer(gone, new, others)
    if are_akin(gone, new):
        return True
    if is_grammar(gone) and is_grammar(new):
        return are_forms(gone.casefold(), new.casefold()) or are_of_a_kind(gone.casefold(), new.casefold())
    return is_near(gone, new) if knows(gone) else is_spelling(gone, new)


def is_grammar(word: str) -> bool:
    small = word.casefold().replace("’", "'")
    return small in FUNCTION_WORDS or is_negation(word) or not any(map(str.isalpha, word))


def is_negation(word: str) -> bool:
    small = word.casefold().replace("’", "'")
    return small in NEGATIONS or small.endswith("n't") or small.replace("'", "") in _UNMARKED


def _is_number(word: str) -> bool:
    return word.casefold() in _NUMBERS or any(map(str.isdigit, word))


def _apart(had: Sequence[str], has: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of each side that the other side lacks; of repeated words the first ones are matched."""
    small = [word.casefold() for word in had], [word.casefold() for word in has]
    counts = Counter(small[0]), Counter(small[1])
    return _without(had, small[0], counts[1]), _without(has, small[1], counts[0])


def _without(words: Sequence[str], small: Sequence[str], there: Counter[str]) -> list[str]:
    left = []
    for word, key in zip(words, small, strict=True):
        if there.get(key):
            there[key] -= 1
        else:
            left.append(word)
    return left


def _is_run(word: str, others: Sequence[str]) -> bool:
    return bool(_run(others, word))


def _run(words: Sequence[str], joined: str) -> Sequence[str]:
    """Adjacent words that spell `joined` together; empty if there are none."""
    for start in range(len(words)):
        text = ""
        for end in range(start, len(words)):
            text += _letters(words[end]).casefold()
            if len(text) >= len(_letters(joined)):
                if text == _letters(joined).casefold():
                    return words[start : end + 1]
                break
    return ()


def _adds_apostrophe(gone: Sequence[str], new: Sequence[str]) -> bool:
    """Whether one word gets an apostrophe: "dont" becomes "don't", or "do n't" as corpora write it."""
    joined = "".join(new)
    return len(gone) == 1 and joined != gone[0] and joined.replace("’", "").replace("'", "") == gone[0]


def _adds_commas(was: str, becomes: str) -> bool:
    had, has = ("".join(side.split()) for side in (was, becomes))
    return len(has) > len(had) and had.replace(",", "") == has.replace(",", "")


def _is_tense(word: str, new: str) -> bool:
    """Whether one of two forms is made with -ed, and the other is not ("need" and "needs" are no such forms)."""
    a, b = word.casefold(), new.casefold()
    return (a.endswith("ed") and not b.startswith(a)) != (b.endswith("ed") and not a.startswith(b))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))
