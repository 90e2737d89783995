"""Edits that insert mistakes which no fixed rule undoes, but which the rest of the sentence reveals.

A model that knows English can infer what is missing: an article before a countable noun, the number of a subject
five words before its verb. They are used for models with that knowledge; see `training.noise`.
"""

from __future__ import annotations

import random

from training.edits import Put, put_article_sound, put_table
from training.lexicon import DETERMINERS, FREQUENT_COUNT, PREPOSITIONS, Lexicon
from training.misspelling import cut, misspell
from training.open_tables import AMOUNTS, DEMONSTRATIVES, HOMOPHONES, PRONOUNS, QUANTITIES, SWAPS
from training.rules import Words, like, low, space, split_like
from training.tables import BASE_FORM_AFTER
from training.verb_edits import ASK, BE, HAVE, MIDDLE, SUBJECTS, base_of, plain

ARTICLES = frozenset({"a", "an", "the"})
_TIMES = frozenset(
    """monday tuesday wednesday thursday friday saturday sunday january february march april june july august september
    october november december night noon midnight weekends""".split()  # noqa: SIM905
)
_OBJECTS = frozenset({"me", "him", "us", "them", "it", "every", "some", "any", "many", "all"})
_EXTRA = ("about", "to", "to", "for", "of", "at", "in", "into", "with")
_BARE = frozenset(
    """school church college university prison jail hospital court bed work home night noon midnight sea class town
    breakfast lunch dinner supper tea bus train car plane boat bike foot mind hand memory nature society""".split()  # noqa: SIM905
)
_ENDINGS = (
    ("ly", ""), ("ness", ""), ("ity", ""), ("ion", "e"), ("ion", ""), ("ation", "e"), ("al", ""), ("ful", ""),
    ("ence", "ent"), ("ance", "ant"), ("ment", ""), ("ous", ""), ("y", ""), ("iness", "y"), ("ily", "y"),
)  # fmt: skip
_APOSTROPHES = ("n't", "'s", "'re", "'ve", "'ll", "'m", "n’t", "’s", "’re", "’ve", "’ll", "’m")


def drop_article(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return [] if plain(words, i) and low(words, i) in ARTICLES and plain(words, i + 1) else None


def add_article(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``the life is``, ``have the breakfast``, ``an advice``: before plurals and nouns without an article."""
    before, word = low(words, i - 1), low(words, i)
    if word in DETERMINERS | SUBJECTS or word in PREPOSITIONS or lexicon.words[word] < FREQUENT_COUNT:
        return None
    is_mass = lexicon.is_mass(word)
    if word in _OBJECTS or word in BE | HAVE or word in BASE_FORM_AFTER:
        return None
    if i == 0:
        bare = words[0]
        is_alone = lexicon.is_noun(word) and low(words, 1) in BE | HAVE | BASE_FORM_AFTER - {"to"}
        fits = bare[:1].isupper() and bare[1:].islower() and (is_mass or is_alone or _is_plural(word, lexicon))
        # rarely: nouns without an article are easy to find at the start, and the model would learn to drop "The"
        return ["The", " " + word] if fits and len(words) > 3 and rng.random() < 0.3 else None
    if not plain(words, i) or before in DETERMINERS:
        return None
    if word in _BARE and (before in PREPOSITIONS or base_of(before, lexicon) is not None):
        return [" the" if rng.random() < 0.8 else " a", words[i]]
    if _is_described_mass(words, i, lexicon) and rng.random() < 0.7:
        return [" a", words[i]]
    opens = before in PREPOSITIONS or before in BASE_FORM_AFTER or before in ("and", "or", "as", "than")
    if is_mass or _is_plural(word, lexicon):
        if not (opens or base_of(before, lexicon) is not None) or not _ends_phrase(words, i + 1):
            return None
        return [" a" if is_mass and rng.random() < 0.4 else " the", words[i]]
    if not opens or lexicon.is_verb(word) or not lexicon.is_noun(word):
        return None
    return [" the" if rng.random() < 0.6 else " a", words[i]]


def _is_described_mass(words: Words, i: int, lexicon: Lexicon) -> bool:
    """Whether there is an adjective without an article, followed by a noun that has no plural."""
    word, before, noun = low(words, i), low(words, i - 1), low(words, i + 1)
    is_adjective = lexicon.words[word + "ly"] >= 3 and not lexicon.is_verb(word)
    opens = before in PREPOSITIONS or base_of(before, lexicon) is not None
    return is_adjective and opens and plain(words, i + 1) and lexicon.is_mass(noun) and _ends_phrase(words, i + 2)


def add_bare_article(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``go to the bed``, ``a good advice``, ``The nature is``: in idioms and before mass nouns, without one."""
    fits = low(words, i) in _BARE or i == 0 or _is_described_mass(words, i, lexicon)
    return add_article(words, i, lexicon, rng) if fits else None


def swap_article_sound(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``an`` before a consonant sound, ``a`` before a vowel sound."""
    following = low(words, i + 1)
    return put_article_sound(words, i, lexicon, rng) if following.isalpha() and len(following) > 2 else None


def _is_plural(word: str, lexicon: Lexicon) -> bool:
    return word.endswith("s") and not word.endswith("ss") and lexicon.is_noun(word[:-1]) and lexicon.words[word] >= 12


def put_plural(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``informations``: a plural of a noun that has none."""
    word = low(words, i)
    is_noun = plain(words, i) and len(word) > 4 and 8 * lexicon.nouns[word] >= max(96, lexicon.words[word])
    return [words[i] + "s"] if is_noun and lexicon.words[word + "s"] <= 3 and lexicon.is_mass(word) else None


def swap_preposition(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word = low(words, i)
    if not plain(words, i) or word not in PREPOSITIONS:
        return None
    if low(words, i + 1) in _TIMES and word in ("in", "on", "at"):
        return [" " + rng.choice([other for other in ("in", "on", "at") if other != word])]
    before = low(words, i - 1)
    if lexicon.company(before, word) < 0.45 and lexicon.takes(before, word) < 0.2:
        return None
    return [" " + rng.choice([other for other in PREPOSITIONS[:8] if other != word])]


def drop_preposition(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if not plain(words, i) or word not in PREPOSITIONS or not low(words, i + 1).isalpha():
        return None
    least = 0.12 if base_of(before, lexicon) is not None else 0.3
    return [] if lexicon.company(before, word) >= 0.6 or lexicon.takes(before, word) >= least else None


def add_preposition(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``discuss about the plan``, ``told to me``, ``on next Friday``: where no preposition belongs."""
    before, word = low(words, i - 1), low(words, i)
    if not plain(words, i) or not before.isalpha() or before in PREPOSITIONS:
        return None
    if word in ("next", "last", "here", "there", "home", "today", "abroad", "downtown"):
        return [" " + rng.choice(["in", "on", "at", "to"]), words[i]]
    if before in BE | HAVE or base_of(before, lexicon) is None or word not in DETERMINERS | _OBJECTS:
        return None
    rare = [p for p in _EXTRA if lexicon.words[before] >= 30 and lexicon.takes(before, p) < 0.01]
    return [" " + rng.choice(rare), words[i]] if rare else None


def swap_demonstrative(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``this shoes``: before a noun that shows the number."""
    after = [low(words, k) for k in range(i + 1, i + (2 if low(words, i) in ("that", "those") else 3))]
    if not any(lexicon.is_noun(word) or _is_plural(word, lexicon) for word in after):
        return None
    return put_demonstrative(words, i, lexicon, rng)


def swap_good(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``speaks good``: at the end of a phrase, where an adverb belongs."""
    word, before = low(words, i), low(words, i - 1)
    fits = plain(words, i) and before not in BE | DETERMINERS and _ends_phrase(words, i + 1)
    return [" good"] if word == "well" and fits and before not in ("as", "and") else None


def swap_case_of_pair(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``between you and I``, ``My father and me went``."""
    swap = {"i": "me", "me": "I", "he": "him", "him": "he", "she": "her", "they": "them", "them": "they"}
    new = swap.get(low(words, i)) if low(words, i - 1) == "and" and i > 1 else None
    return [space(words[i]) + new] if new else None


def put_me_first(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``Me and my wife``; replaces four words."""
    if low(words, i) not in ("my", "the", "your") or low(words, i + 2) != "and" or low(words, i + 3) != "i":
        return None
    first = words[i].strip().lower()
    return [like("me" if rng.random() < 0.8 else "I", words[i]), " and", " " + first, words[i + 1]]


def swap_number_of_noun(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """A noun in the wrong number, if a word before it or the verb after it shows its number."""
    word = low(words, i)
    near = [low(words, k) for k in range(max(0, i - 3), i)]
    if not plain(words, i) or len(word) < 4 or lexicon.is_verb(word):
        return None
    if word.endswith("s") and not word.endswith("ss") and lexicon.words[word[:-1]] >= FREQUENT_COUNT:
        plural = {"many", "these", "those", "several", "few", "two", "three", "four", "five", "various", "all", "other",
                "some", "most", "different", "number", "both"}  # fmt: skip
        behind = low(words, i + 1) in ("are", "were", "have", "do")
        return [like(word[:-1], words[i])] if behind or plural & set(near) else None
    single = {"a", "an", "this", "each", "every", "another", "one"} & set(near[-2:])
    if single and lexicon.words[word + "s"] >= 5 and low(words, i + 1) not in ("of",) and _ends_phrase(words, i + 1):
        return [like(word + "s", words[i])]
    return None


def _ends_phrase(words: Words, i: int) -> bool:
    word = low(words, i)
    return not word.isalpha() or word in PREPOSITIONS or word in BE or word in ("and", "that", "which", "who", "has")


def put_misspelling(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    bare = words[i].strip()
    if len(bare) < 4 or not bare.isalpha() or not bare[1:].islower() or lexicon.words[bare.lower()] < 5:
        return None
    wrong = misspell(bare.lower(), lexicon, rng)
    return [like(wrong, words[i])] if wrong else None


def put_cut(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    pieces = cut(low(words, i), lexicon, rng) if plain(words, i) else None
    return [" " + pieces[0], " " + pieces[1]] if pieces else None


def change_ending(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """Another part of speech of the same word family: ``quick`` for ``quickly``."""
    word = low(words, i)
    if not plain(words, i) or len(word) < 5:
        return None
    forms = []
    for longer, shorter in _ENDINGS:
        if word.endswith(longer):
            forms.append(word[: len(word) - len(longer)] + shorter)
        if shorter and word.endswith(shorter):
            forms.append(word[: len(word) - len(shorter)] + longer)
    forms += [word + "ly", word + "ness", word + "ment"]
    known = [other for other in forms if len(other) > 3 and lexicon.words[other] >= FREQUENT_COUNT]
    return [" " + rng.choice(known)] if known else None


def drop_apostrophe(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    bare = words[i].strip()
    if len(bare) < 3 or not bare.endswith(_APOSTROPHES):
        return None
    return [space(words[i]) + bare.replace("'", "").replace("’", "")]


def drop_comma(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """Drop a comma in a date or an address, before a conjunction or after an introduction."""
    tells = low(words, i + 1) in ("but", "so", "which", "and", "however", "too") or i < 6
    return [] if words[i].strip() == "," and 0 < i < len(words) - 2 and tells else None


def add_comma(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    fits = low(words, i) in ("that", "is", "was", "to", "are", "because", "if")
    return [",", words[i]] if fits and plain(words, i) and low(words, i - 1).isalpha() else None


def repeat_comparison(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``more bigger``, ``the most easiest``."""
    word = low(words, i)
    if not plain(words, i) or low(words, i - 1) in ("more", "most", "much"):
        return None
    if rng.random() < 0.5:
        for ending, sign in (("ier", "more"), ("iest", "most"), ("er", "more"), ("est", "most")):
            stem = word[: -len(ending)] + ("y" if ending[0] == "i" else "")
            if word.endswith(ending) and lexicon.words[stem] >= FREQUENT_COUNT and lexicon.words[stem + "ly"] >= 3:
                return [" " + sign, " " + stem]
    if word in ("better", "worse") or (word.endswith("er") and lexicon.words[word[:-2] + "est"] >= 5):
        return [" more", words[i]]
    return [" most", words[i]] if word.endswith("est") and lexicon.words[word[:-3] + "er"] >= 5 else None


def move_adverb(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``always is`` for ``is always``; replaces two words."""
    if not (plain(words, i) and plain(words, i + 1)) or low(words, i + 1) not in MIDDLE:
        return None
    return [words[i + 1], words[i]] if low(words, i) in BE | HAVE | BASE_FORM_AFTER - {"to"} else None


def repeat_subject(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``The people they are``: a pronoun that repeats the subject."""
    word, before = low(words, i), low(words, i - 1)
    if word not in ("is", "are", "was", "were", "has", "have", "can", "will") or not plain(words, i):
        return None
    if not before.isalpha() or before in SUBJECTS or before in ("and", "or", "but", "not") or not plain(words, i - 1):
        return None
    return [" they" if before.endswith("s") else " it", words[i]]


def put_connector(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``Although ..., but ...``."""
    if words[i].strip() != "," or not 3 <= i < len(words) - 2 or any(w.strip() == "," for w in words[:i]):
        return None
    word = {"although": "but", "though": "but", "because": "so", "since": "so", "if": "then"}.get(low(words, 0))
    return [words[i], " " + word] if word and low(words, i + 1).isalpha() else None


def change_adverb(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``drive careful``, ``feel happily``."""
    word = low(words, i)
    if not plain(words, i) or len(word) < 4:
        return None
    if word.endswith("ly"):
        for stem in (word[:-2], word[:-3] + "y", word[:-2] + "le", word[:-4]):
            if len(stem) > 3 and lexicon.words[stem] >= FREQUENT_COUNT:
                return [" " + stem]
        return None
    longer = word[:-1] + "ily" if word.endswith("y") else word + "ly"
    return [" " + longer] if lexicon.words[longer] >= FREQUENT_COUNT and _ends_phrase(words, i + 1) else None


def lose_question(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return ["."] if i == len(words) - 1 and words[i] == "?" and low(words, 0) in ASK else None


def put_one_of(rows: list[list[str]]) -> Put:
    """Swaps within word groups. Those rare in prose and frequent in learners' mistakes are kinds of their own."""
    others = {word: [o for row in rows if word in row for o in row if o != word] for row in rows for word in row}

    def put(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
        forms = others.get(low(words, i))
        if not forms or not words[i].strip().replace("'", "").isalpha():
            return None
        return split_like(rng.choice(forms), words[i])

    return put


put_swap = put_one_of(SWAPS)
put_quantity = put_one_of(QUANTITIES)
put_pronoun = put_one_of(PRONOUNS)
put_demonstrative = put_one_of(DEMONSTRATIVES)
put_amount = put_one_of(AMOUNTS)
put_homophone = put_one_of(HOMOPHONES)
APOSTROPHE_TABLE = put_table({"doesn't": ["don't"], "isn't": ["aren't"], "wasn't": ["weren't"], "don't": ["doesn't"]})
