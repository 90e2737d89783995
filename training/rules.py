"""Rules that undo one kind of mistake each, given only the wrong text."""

from __future__ import annotations

from collections.abc import Callable

from training.lexicon import Lexicon
from training.tables import (
    AGREEMENT_PLURAL,
    AGREEMENT_SINGULAR,
    BASE_FORM_AFTER,
    CONFUSION_SETS,
    INTRODUCTIONS,
    MISSPELLINGS,
    PARTICIPLE_AFTER,
    PLURAL_AFTER,
    SINGULAR_AFTER,
    WRONG_FORMS,
)

Words = list[str]  # each with the space before it, see training.text.split_words
Rule = Callable[[Words, Lexicon], Words]
Fix = Callable[[Words, int, Lexicon], str | None]  # the right word for a position; None: no change
_ENDS = (".", "!", "?")
SETS_OF = {word: [group for group in CONFUSION_SETS if word in group] for group in CONFUSION_SETS for word in group}
MISSPELLED_TO = {wrong: right for right, forms in MISSPELLINGS.items() for wrong in forms}
WRONG_TO = {wrong: right for right, forms in WRONG_FORMS.items() for wrong in forms}
TO_S = {"are": "is", "have": "has", "were": "was", "do": "does", "go": "goes", "don't": "doesn't", "am": "is"}
TO_BASE = {"is": "are", "has": "have", "was": "were", "does": "do", "goes": "go", "doesn't": "don't"}


def space(word: str) -> str:
    return word[: len(word) - len(word.lstrip())]


def like(new: str, old: str) -> str:
    """``new`` with the leading space and the capitalisation of ``old``."""
    bare = old.strip()
    if bare[:1].isupper() and new and (len(bare) == 1 or not bare.isupper()):
        new = new[0].upper() + new[1:]
    return space(old) + new


def low(words: Words, i: int) -> str:
    return words[i].strip().lower() if 0 <= i < len(words) else ""


def each_word(fix: Fix) -> Rule:
    def undo(words: Words, lexicon: Lexicon) -> Words:
        repaired = []
        for i, word in enumerate(words):
            right = fix(words, i, lexicon)
            if right is None or right == word.strip().lower():
                repaired.append(word)
            else:
                repaired.extend(split_like(right, word))
        return repaired

    return undo


def split_like(text: str, old: str) -> Words:
    first, *rest = text.split(" ")
    return [like(first, old), *(" " + word for word in rest)]


def fix_table(table: dict[str, str]) -> Fix:
    def fix(words: Words, i: int, lexicon: Lexicon) -> str | None:
        word = words[i].strip()
        return table.get(word.lower()) if not lexicon.known(word) else None

    return fix


def fix_typo(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word = words[i].strip()
    if word[:1].isupper() and i > 0:
        return None  # a name
    return MISSPELLED_TO.get(word.lower()) or lexicon.nearest(word.lower()) if not lexicon.known(word) else None


def fix_agreement(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word, before = low(words, i), low(words, i - 1)
    if low(words, i - 2) in BASE_FORM_AFTER or low(words, i - 2) in ("and", "if", "that", "of", "nor"):
        return None  # "let it go", "he and they are", "if he were"
    if before in AGREEMENT_SINGULAR:
        if word in TO_S:
            return TO_S[word] if word != "were" else None
        return word + "s" if lexicon.is_verb(word) else None
    if before in AGREEMENT_PLURAL:
        if word in TO_BASE:
            return (
                ("am" if word == "is" else None if word == "was" else TO_BASE[word]) if before == "i" else TO_BASE[word]
            )
        return word[:-1] if word.endswith("s") and lexicon.is_verb(word[:-1]) else None
    return None


def fix_number(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word, before = low(words, i), low(words, i - 1)
    if not word.isalpha() or len(word) < 4:
        return None
    if before in PLURAL_AFTER and not word.endswith("s") and lexicon.words[word + "s"] >= 3:
        return word + "s" if _nounish(word, lexicon) else None
    if before in SINGULAR_AFTER and word.endswith("s") and not word.endswith("ss") and lexicon.words[word[:-1]] >= 12:
        return word[:-1]
    return None


def _nounish(word: str, lexicon: Lexicon) -> bool:
    """Whether the prose has the word before "of the", "of a" or the like, where adjectives hardly ever stand."""
    tails = sum(lexicon.slots.get((word, tail), {}).get("of", 0) for tail in ("the", "a", "this", "his", "their"))
    return tails >= 3


def fix_base(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word, before = low(words, i), low(words, i - 1)
    if before not in BASE_FORM_AFTER:
        return None
    for base in bases(word):
        if lexicon.is_verb(base):
            return base
    return None


def bases(word: str) -> list[str]:
    forms = []
    if word.endswith("s") and not word.endswith("ss"):
        forms.append(word[:-1])
    if word.endswith("ed"):
        forms += [word[:-2], word[:-1]]
    if word.endswith("ing"):
        forms += [word[:-3], word[:-3] + "e"]
    return forms


def past(base: str) -> str:
    return base + "d" if base.endswith("e") else base + "ed"


def fix_participle(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word, before = low(words, i), low(words, i - 1)
    if before in PARTICIPLE_AFTER and lexicon.is_verb(word) and lexicon.words[past(word)] >= 8:
        return past(word)
    return None


def fix_article_sound(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word, after = low(words, i), low(words, i + 1)
    if word not in ("a", "an") or not after.isalpha() or len(after) < 3:
        return None
    with_an = sum(lexicon.slots.get((left, after), {}).get("an", 0) for left in _ARTICLE_LEFT)
    with_a = sum(lexicon.slots.get((left, after), {}).get("a", 0) for left in _ARTICLE_LEFT)
    if with_an + with_a >= 3 and max(with_an, with_a) >= 8 * min(with_an, with_a):
        return "an" if with_an > with_a else "a"
    if after[0] in "aeio" and not after.startswith(("one", "eu")):
        return "an"
    return "a" if after[0] not in "aeiouh" else None


_ARTICLE_LEFT = ("of", "in", "is", "as", "to", "with", "for", "was", "by", "be", "and", "on", "such", "has", "have")


def _fix_slot(words: Words, i: int, lexicon: Lexicon) -> str | None:
    word = low(words, i)
    for group in SETS_OF.get(word, ()):
        best = lexicon.best_filler(low(words, i - 1), word, low(words, i + 1), group)
        if best != word:
            return best
    return None


def undo_slots(words: Words, lexicon: Lexicon) -> Words:
    """Fill, empty or change slots where the neighbours clearly require it."""
    repaired: Words = []
    i = 0
    while i < len(words):
        fixed = _fix_slot(words, i, lexicon)
        if fixed == "" and i > 0:
            pass
        elif fixed:
            repaired.append(like(fixed, words[i]))
        else:
            repaired.append(words[i])
        if i + 1 < len(words) and words[i + 1].startswith(" ") and fixed != "":
            missing = _missing(low(words, i), low(words, i + 1), lexicon)
            if missing:
                repaired.append(" " + missing)
        i += 1
    return repaired


def _missing(left: str, right: str, lexicon: Lexicon) -> str:
    for group in CONFUSION_SETS:
        if "" in group:
            best = lexicon.best_filler(left, "", right, group)
            if best:
                return best
    return ""


def undo_doubled(words: Words, lexicon: Lexicon) -> Words:
    return [
        word
        for i, word in enumerate(words)
        if i == 0 or not word.strip().isalpha() or low(words, i - 1) != low(words, i)
    ]


def undo_capitals(words: Words, lexicon: Lexicon) -> Words:
    repaired = []
    start = True
    for word in words:
        bare = word.strip()
        if bare == "i":
            bare = "I"
        elif bare[:1].islower():
            upper = bare[0].upper() + bare[1:]
            if start or lexicon.capitals[upper] > 4 * lexicon.words[bare]:
                bare = upper
        elif bare[:1].isupper() and not start and lexicon.words[bare.lower()] > 50 * lexicon.capitals[bare]:
            bare = bare.lower()
        repaired.append(space(word) + bare)
        start = bare in _ENDS or (start and not bare[:1].isalnum())
    return repaired


def undo_full_stop(words: Words, lexicon: Lexicon) -> Words:
    return words if words[-1].strip()[-1:] in ".!?:;\"'”’)" else [*words, "."]


def undo_comma(words: Words, lexicon: Lexicon) -> Words:
    """Insert a comma after an introduction, and a space after every comma."""
    repaired = list(words)
    for length in (1, 2, 3, 4):
        opening = "".join(repaired[:length]).strip().lower()
        if opening in INTRODUCTIONS and len(repaired) > length + 1 and repaired[length].startswith(" "):
            repaired.insert(length, ",")
            break
    for i in range(1, len(repaired)):
        if repaired[i - 1].strip() == "," and repaired[i].isalpha():
            repaired[i] = " " + repaired[i]
    return repaired


def undo_join(words: Words, lexicon: Lexicon) -> Words:
    """Split two frequent words written as one, if both halves are known and there is only one way."""
    repaired: Words = []
    for word in words:
        bare = word.strip()
        cuts = [] if lexicon.known(bare) or not bare.isalpha() else _cuts(bare.lower(), lexicon)
        if len(cuts) == 1:
            repaired += [like(bare[: cuts[0]], word), " " + bare[cuts[0] :]]
        else:
            repaired.append(word)
    return repaired


def _cuts(word: str, lexicon: Lexicon) -> list[int]:
    return [c for c in range(1, len(word)) if lexicon.words[word[:c]] >= 300 and lexicon.words[word[c:]] >= 300]
