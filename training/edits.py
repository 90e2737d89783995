"""Functions that insert one kind of mistake each at a position of a text."""

from __future__ import annotations

import random
from collections.abc import Callable

from training.lexicon import FREQUENT_COUNT, Lexicon
from training.rules import SETS_OF, TO_BASE, TO_S, Words, bases, like, low, past, space, split_like
from training.tables import (
    AGREEMENT_PLURAL,
    AGREEMENT_SINGULAR,
    BASE_FORM_AFTER,
    PARTICIPLE_AFTER,
    PLURAL_AFTER,
    SINGULAR_AFTER,
)

# words, position -> the words that replace the one (or two) at the position; None if it does not apply there
Put = Callable[[Words, int, Lexicon, random.Random], Words | None]


def put_table(table: dict[str, list[str]]) -> Put:
    def put(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
        bare = words[i].strip()
        forms = table.get(bare if bare in table else bare.lower())
        return split_like(rng.choice(forms), words[i]) if forms else None

    return put


def put_typo(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    bare = words[i].strip()
    if len(bare) < 4 or not bare.isalpha() or lexicon.words[bare.lower()] < FREQUENT_COUNT or not bare[1:].islower():
        return None
    return [like(_typo(bare.lower(), rng), words[i])]


def _typo(word: str, rng: random.Random) -> str:
    kind, i = rng.random(), rng.randrange(1, len(word))
    vowels = [k for k in range(1, len(word)) if word[k] in "aeiou"]
    doubles = [k for k in range(1, len(word)) if word[k] == word[k - 1]]
    if doubles and kind < 0.5:
        return word[: doubles[0]] + word[doubles[0] + 1 :]
    if vowels and kind < 0.4:
        k = rng.choice(vowels)
        return word[:k] + rng.choice("aeiou") + word[k + 1 :]
    if kind < 0.6:
        return word[:i] + word[i + 1 :]
    if kind < 0.75:
        return word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :] if i > 1 else word[:-2] + word[-1] + word[-2]
    if kind < 0.9:
        return word[:i] + word[i] + word[i:]
    letter = rng.choice("abcdefghijklmnopqrstuvwxyz")
    return word[:i] + letter + word[i + rng.randrange(2) :]


def put_agreement(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if before in AGREEMENT_SINGULAR:
        new = TO_BASE.get(word) or (word[:-1] if word.endswith("s") and lexicon.is_verb(word[:-1]) else None)
    elif before in AGREEMENT_PLURAL:
        new = TO_S.get(word) or (word + "s" if lexicon.is_verb(word) else None)
    else:
        return None
    return [like(new, words[i])] if new else None


def put_number(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if before in PLURAL_AFTER and word.endswith("s"):
        return [like(word[:-1], words[i])]
    if before in SINGULAR_AFTER and word.isalpha() and len(word) > 3:
        return [like(word + "s", words[i])]
    return None


def put_form(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if before in BASE_FORM_AFTER and lexicon.is_verb(word):
        ing = (word[:-1] if word.endswith("e") else word) + "ing"
        return [like(rng.choice([word + "s", past(word), ing]), words[i])]
    return None


def put_base(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    if low(words, i - 1) in PARTICIPLE_AFTER and low(words, i).endswith("ed"):
        return [like(rng.choice(bases(low(words, i))), words[i])]
    return None


def put_article_sound(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    swap = {"a": "an", "an": "a"}.get(low(words, i))
    return [like(swap, words[i])] if swap else None


def put_slot(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    groups = SETS_OF.get(low(words, i))
    if not groups:
        return None
    options = sorted(rng.choice(groups) - {low(words, i)})
    new = "" if "" in options and rng.random() < 0.6 else rng.choice(options)
    return [like(new, words[i])] if new else ([] if i > 0 else None)


def put_extra(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    if i == 0 or not words[i].startswith(" ") or not words[i].strip().isalpha():
        return None
    return [" " + rng.choice(["the", "the", "a", "of", "to", "in", "on", "for", "about"]), words[i]]


def put_double(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return [words[i], " " + words[i].strip().lower()] if words[i].strip().isalpha() else None


def put_case(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    bare = words[i].strip()
    if bare == "I" or (bare[:1].isupper() and bare[1:].islower()):
        return [space(words[i]) + bare.lower()]
    if rng.random() < 0.1 and i > 0 and len(bare) > 3 and bare.isalpha() and bare.islower():
        return [space(words[i]) + bare.capitalize()]
    return None


def put_no_stop(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return [] if i == len(words) - 1 and words[i] == "." else None


def put_no_comma(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return [] if words[i].strip() == "," and 0 < i < 5 else None


def put_no_space(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return [words[i].strip()] if i > 0 and words[i - 1].strip() == "," and words[i].startswith(" ") else None


def put_join(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    if i + 1 >= len(words) or not words[i + 1].startswith(" "):
        return None
    return [words[i] + words[i + 1].strip()] if words[i].strip().isalpha() and words[i + 1].strip().isalpha() else None
