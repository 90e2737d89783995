"""Edits that insert mistakes in verbs, which the rest of the sentence reveals; see `training.open_edits`."""

from __future__ import annotations

import random

from training.lexicon import DETERMINERS, FREQUENT_COUNT, PREPOSITIONS, Lexicon
from training.open_tables import FORMS_OF
from training.rules import TO_BASE, TO_S, Words, bases, like, low, past
from training.tables import BASE_FORM_AFTER

BE = frozenset({"is", "are", "was", "were", "am", "be", "been", "being"})
_TAKES_TO = frozenset(
    """want decide hope need try agree plan promise refuse like love prefer learn wish expect offer manage fail choose
    begin start continue""".split()  # noqa: SIM905
)
_TAKES_ING = frozenset(
    "enjoy avoid finish keep mind suggest consider practise practice miss stop like love".split()  # noqa: SIM905
)
_STATIVE = frozenset(
    """know believe want need like love hate understand belong own seem contain mean prefer remember deserve depend
    agree doubt wish cost consist include""".split()  # noqa: SIM905
)
ASK = frozenset(
    "what who where when why how which is are do does did can could will would have has was were".split()  # noqa: SIM905
)
HAVE = frozenset({"have", "has", "had"})
SUBJECTS = frozenset({"i", "you", "he", "she", "it", "we", "they", "who", "which", "that", "there"})
_BEFORE_ING = frozenset({"by", "for", "of", "without", "in", "after", "before", "enjoy", "avoid", "keep", "while"})
_PAST_SIGNS = frozenset({"was", "were", "had", "did", "ago", "yesterday", "last", "said", "went", "came", "took"})
_AUXILIARIES = frozenset({"do", "does", "did", "can", "could", "will", "would", "should", "didn't", "don't"})
MIDDLE = frozenset({"always", "never", "often", "also", "usually", "already", "still", "just", "probably", "only"})


def plain(words: Words, i: int) -> bool:
    """Whether the word there is lower-case and preceded by a space."""
    bare = words[i].strip() if 0 <= i < len(words) else ""
    return i > 0 and bare.isalpha() and bare.islower() and words[i][:1] == " "


def change_infinitive(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``enjoy to read`` and ``decided staying``; replaces two words."""
    before, word, after = low(words, i - 1), low(words, i), low(words, i + 1)
    if not plain(words, i) or i + 1 >= len(words):
        return None
    if word == "to" and lexicon.is_verb(after) and base_of(before, lexicon) in _TAKES_TO:
        return [" " + _ing(after)]
    if base_of(before, lexicon) in _TAKES_ING and word.endswith("ing"):
        base = base_of(word, lexicon)
        return [" to", " " + base, words[i + 1]] if base else None
    return None


def add_to(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``must to go``."""
    modal = low(words, i - 1) in BASE_FORM_AFTER - {"to"}
    return [" to", words[i]] if modal and plain(words, i) and lexicon.is_verb(low(words, i)) else None


def drop_small(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """Drop a copula, an auxiliary or the ``to`` of an infinitive."""
    word, before, after = low(words, i), low(words, i - 1), low(words, i + 1)
    if not plain(words, i) or not after.isalpha():
        return None
    is_infinitive = word == "to" and lexicon.is_verb(after)
    is_copula = word in BE - {"being"} and (before.isalpha() and before not in PREPOSITIONS)
    is_auxiliary = word in HAVE and after in ("been", "become", *(form[2] for form in FORMS_OF.values()))
    return [] if is_infinitive or is_copula or is_auxiliary else None


def swap_number_of_verb(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if not plain(words, i) or not before.isalpha() or before in ("if", "though", "wish"):
        return None
    if word in TO_S and word != "am" and (word != "do" or low(words, i + 1) == "not"):
        return [like(TO_S[word], words[i])]
    if word in TO_BASE:
        return [like(TO_BASE[word], words[i])]
    if before in DETERMINERS or before in PREPOSITIONS or before in BASE_FORM_AFTER or before == "and":
        return None
    if word.endswith("s") and lexicon.is_verb(word[:-1]) and lexicon.words[before] >= FREQUENT_COUNT:
        return [like(word[:-1], words[i])]
    if before.endswith("s") and not before.endswith("ss") and lexicon.is_verb(word):
        return [like(word + "s", words[i])]
    return None


def change_form(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """A verb in a form that does not fit its auxiliary, preposition or modal."""
    word, before = low(words, i), low(words, i - 1)
    if not plain(words, i):
        return None
    base = base_of(word, lexicon)
    if base is None:
        return None
    forms = _forms(base, lexicon)
    takes_ing = word.endswith("ing") and (before in BE or before in _BEFORE_ING)
    takes_participle = before in HAVE | BE and not word.endswith("ing") and word != base
    is_asked = low(words, i - 2) in _AUXILIARIES and before in SUBJECTS and word == base
    takes_base = (before in BASE_FORM_AFTER and word == base) or is_asked
    if not (takes_ing or takes_participle or takes_base):
        return None
    others = [form for form in forms if form not in (word, base + "s" if takes_ing else "")]
    if takes_participle and word in FORMS_OF:
        others = [form for form in FORMS_OF[word] if form != word]
    return [" " + rng.choice(others)] if others else None


def lose_progressive(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``is work``, ``were not listen``."""
    word = low(words, i)
    before, first = low(words, i - 1), low(words, i - 2)
    is_behind = before in BE or (first in BE and before in SUBJECTS | MIDDLE | {"not"})
    base = base_of(word, lexicon) if word.endswith("ing") and len(word) > 4 else None
    if not plain(words, i) or base is None or not is_behind:
        return None
    others = [form for form in _forms(base, lexicon) if form != word]
    return [" " + (base if rng.random() < 0.75 or not others else rng.choice(others))]


def put_progressive(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``is wanting``: a stative verb, which has no progressive."""
    word, before = low(words, i), low(words, i - 1)
    base = base_of(word, lexicon) if plain(words, i) else None
    if base not in _STATIVE or before not in SUBJECTS - {"that", "there"} or word.endswith("ing"):
        return None
    if low(words, i - 2) in _AUXILIARIES or low(words, i + 1) == "not":
        return None
    is_one = before in ("he", "she", "it") or word == base + "s"
    now = "is" if is_one else "am" if before == "i" else "are"
    then = "was" if is_one or before == "i" else "were"
    return [" " + (now if word in (base, base + "s") else then), " " + _ing(base)]


def drop_be(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``She very tired``, ``Where the bank``."""
    before = low(words, i - 1)
    fits = before in SUBJECTS | ASK | {"this", "these", "those", "everyone"} or lexicon.is_noun(before)
    is_be = low(words, i) in ("is", "are", "was", "were", "am")
    return [] if is_be and fits and plain(words, i) and plain(words, i + 1) else None


def change_tense(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """A present tense for a past one, if other words show that it is past."""
    word, before = low(words, i), low(words, i - 1)
    if not plain(words, i) or before in HAVE | BE | DETERMINERS | BASE_FORM_AFTER or not before.isalpha():
        return None
    if sum(low(words, k) in _PAST_SIGNS for k in range(len(words)) if k != i) < 1:
        return None
    base = base_of(word, lexicon)
    is_past = word.endswith("ed") or (word in FORMS_OF and word == FORMS_OF[word][1])
    if base is None or not is_past or word == base:
        return None
    return [" " + (base if rng.random() < 0.7 or base == "be" else base + "s")]


def base_of(word: str, lexicon: Lexicon) -> str | None:
    """The base form of a verb form."""
    if word in FORMS_OF:
        return FORMS_OF[word][0]
    if lexicon.is_verb(word):
        return word
    return next((base for base in bases(word) if lexicon.is_verb(base)), None)


def _forms(base: str, lexicon: Lexicon) -> list[str]:
    row = FORMS_OF.get(base)
    forms = [base, _ing(base), *(row[1:] if row else (past(base),)), base + "s"]
    return [form for form in dict.fromkeys(forms) if lexicon.words[form] >= 3]


def _ing(base: str) -> str:
    return (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"


def regularize(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``buyed``, ``falled``."""
    word = low(words, i)
    row = FORMS_OF.get(word)
    if not plain(words, i) or row is None or word == row[0] or row[0] in ("be", "have", "do", "get"):
        return None
    return [" " + past(row[0])] if lexicon.words[past(row[0])] < FREQUENT_COUNT else None


def put_number_there(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``There is many``."""
    return swap_number_of_verb(words, i, lexicon, rng) if low(words, i - 1) == "there" else None
