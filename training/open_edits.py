"""Edits that insert mistakes which no fixed rule undoes, but which the rest of the sentence reveals.

A model that knows English can infer what is missing: an article before a countable noun, the number of a subject
five words before its verb. They are used for models with that knowledge; see `training.noise`.
"""

from __future__ import annotations

import random

from training.edits import Put, put_article_sound, put_table
from training.lexicon import DETERMINERS, FREQUENT_COUNT, PREPOSITIONS, Lexicon
from training.misspelling import cut, misspell
from training.open_tables import AMOUNTS, DEMONSTRATIVES, FORMS_OF, HOMOPHONES, PRONOUNS, QUANTITIES, SWAPS
from training.rules import TO_BASE, TO_S, Words, bases, like, low, past, space, split_like
from training.tables import BASE_FORM_AFTER

ARTICLES = frozenset({"a", "an", "the"})
_BE = frozenset({"is", "are", "was", "were", "am", "be", "been", "being"})
_TIMES = frozenset(
    """monday tuesday wednesday thursday friday saturday sunday january february march april june july august september
    october november december night noon midnight weekends""".split()  # noqa: SIM905
)
_OBJECTS = frozenset({"me", "him", "us", "them", "it", "every", "some", "any", "many", "all"})
_EXTRA = ("about", "to", "to", "for", "of", "at", "in", "into", "with")
_TAKES_TO = frozenset(
    """want decide hope need try agree plan promise refuse like love prefer learn wish expect offer manage fail choose
    begin start continue""".split()  # noqa: SIM905
)
_TAKES_ING = frozenset(
    "enjoy avoid finish keep mind suggest consider practise practice miss stop like love".split()  # noqa: SIM905
)
_BARE = frozenset(
    """school church college university prison jail hospital court bed work home night noon midnight sea class town
    breakfast lunch dinner supper tea bus train car plane boat bike foot mind hand memory nature society""".split()  # noqa: SIM905
)
_STATIVE = frozenset(
    """know believe want need like love hate understand belong own seem contain mean prefer remember deserve depend
    agree doubt wish cost consist include""".split()  # noqa: SIM905
)
_ASK = frozenset(
    "what who where when why how which is are do does did can could will would have has was were".split()  # noqa: SIM905
)
_HAVE = frozenset({"have", "has", "had"})
_SUBJECTS = frozenset({"i", "you", "he", "she", "it", "we", "they", "who", "which", "that", "there"})
_BEFORE_ING = frozenset({"by", "for", "of", "without", "in", "after", "before", "enjoy", "avoid", "keep", "while"})
_PAST_SIGNS = frozenset({"was", "were", "had", "did", "ago", "yesterday", "last", "said", "went", "came", "took"})
_AUXILIARIES = frozenset({"do", "does", "did", "can", "could", "will", "would", "should", "didn't", "don't"})
_MIDDLE = frozenset({"always", "never", "often", "also", "usually", "already", "still", "just", "probably", "only"})
_ENDINGS = (
    ("ly", ""), ("ness", ""), ("ity", ""), ("ion", "e"), ("ion", ""), ("ation", "e"), ("al", ""), ("ful", ""),
    ("ence", "ent"), ("ance", "ant"), ("ment", ""), ("ous", ""), ("y", ""), ("iness", "y"), ("ily", "y"),
)  # fmt: skip
_APOSTROPHES = ("n't", "'s", "'re", "'ve", "'ll", "'m", "n’t", "’s", "’re", "’ve", "’ll", "’m")


def _plain(words: Words, i: int) -> bool:
    """Whether the word there is lower-case and preceded by a space."""
    bare = words[i].strip() if 0 <= i < len(words) else ""
    return i > 0 and bare.isalpha() and bare.islower() and words[i][:1] == " "


def drop_article(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return [] if _plain(words, i) and low(words, i) in ARTICLES and _plain(words, i + 1) else None


def add_article(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``the life is``, ``have the breakfast``, ``an advice``: before plurals and nouns without an article."""
    before, word = low(words, i - 1), low(words, i)
    if word in DETERMINERS | _SUBJECTS or word in PREPOSITIONS or lexicon.words[word] < FREQUENT_COUNT:
        return None
    is_mass = lexicon.is_mass(word)
    if word in _OBJECTS or word in _BE | _HAVE or word in BASE_FORM_AFTER:
        return None
    if i == 0:
        bare = words[0]
        is_alone = lexicon.is_noun(word) and low(words, 1) in _BE | _HAVE | BASE_FORM_AFTER - {"to"}
        fits = bare[:1].isupper() and bare[1:].islower() and (is_mass or is_alone or _is_plural(word, lexicon))
        # rarely: nouns without an article are easy to find at the start, and the model would learn to drop "The"
        return ["The", " " + word] if fits and len(words) > 3 and rng.random() < 0.3 else None
    if not _plain(words, i) or before in DETERMINERS:
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
    return is_adjective and opens and _plain(words, i + 1) and lexicon.is_mass(noun) and _ends_phrase(words, i + 2)


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
    is_noun = _plain(words, i) and len(word) > 4 and 8 * lexicon.nouns[word] >= max(96, lexicon.words[word])
    return [words[i] + "s"] if is_noun and lexicon.words[word + "s"] <= 3 and lexicon.is_mass(word) else None


def swap_preposition(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word = low(words, i)
    if not _plain(words, i) or word not in PREPOSITIONS:
        return None
    if low(words, i + 1) in _TIMES and word in ("in", "on", "at"):
        return [" " + rng.choice([other for other in ("in", "on", "at") if other != word])]
    before = low(words, i - 1)
    if lexicon.company(before, word) < 0.45 and lexicon.takes(before, word) < 0.2:
        return None
    return [" " + rng.choice([other for other in PREPOSITIONS[:8] if other != word])]


def drop_preposition(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if not _plain(words, i) or word not in PREPOSITIONS or not low(words, i + 1).isalpha():
        return None
    least = 0.12 if base_of(before, lexicon) is not None else 0.3
    return [] if lexicon.company(before, word) >= 0.6 or lexicon.takes(before, word) >= least else None


def add_preposition(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``discuss about the plan``, ``told to me``, ``on next Friday``: where no preposition belongs."""
    before, word = low(words, i - 1), low(words, i)
    if not _plain(words, i) or not before.isalpha() or before in PREPOSITIONS:
        return None
    if word in ("next", "last", "here", "there", "home", "today", "abroad", "downtown"):
        return [" " + rng.choice(["in", "on", "at", "to"]), words[i]]
    if before in _BE | _HAVE or base_of(before, lexicon) is None or word not in DETERMINERS | _OBJECTS:
        return None
    rare = [p for p in _EXTRA if lexicon.words[before] >= 30 and lexicon.takes(before, p) < 0.01]
    return [" " + rng.choice(rare), words[i]] if rare else None


def change_infinitive(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``enjoy to read`` and ``decided staying``; replaces two words."""
    before, word, after = low(words, i - 1), low(words, i), low(words, i + 1)
    if not _plain(words, i) or i + 1 >= len(words):
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
    return [" to", words[i]] if modal and _plain(words, i) and lexicon.is_verb(low(words, i)) else None


def drop_small(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """Drop a copula, an auxiliary or the ``to`` of an infinitive."""
    word, before, after = low(words, i), low(words, i - 1), low(words, i + 1)
    if not _plain(words, i) or not after.isalpha():
        return None
    is_infinitive = word == "to" and lexicon.is_verb(after)
    is_copula = word in _BE - {"being"} and (before.isalpha() and before not in PREPOSITIONS)
    is_auxiliary = word in _HAVE and after in ("been", "become", *(form[2] for form in FORMS_OF.values()))
    return [] if is_infinitive or is_copula or is_auxiliary else None


def swap_number_of_verb(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    word, before = low(words, i), low(words, i - 1)
    if not _plain(words, i) or not before.isalpha() or before in ("if", "though", "wish"):
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
    if not _plain(words, i):
        return None
    base = base_of(word, lexicon)
    if base is None:
        return None
    forms = _forms(base, lexicon)
    takes_ing = word.endswith("ing") and (before in _BE or before in _BEFORE_ING)
    takes_participle = before in _HAVE | _BE and not word.endswith("ing") and word != base
    is_asked = low(words, i - 2) in _AUXILIARIES and before in _SUBJECTS and word == base
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
    is_behind = before in _BE or (first in _BE and before in _SUBJECTS | _MIDDLE | {"not"})
    base = base_of(word, lexicon) if word.endswith("ing") and len(word) > 4 else None
    if not _plain(words, i) or base is None or not is_behind:
        return None
    others = [form for form in _forms(base, lexicon) if form != word]
    return [" " + (base if rng.random() < 0.75 or not others else rng.choice(others))]


def put_progressive(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``is wanting``: a stative verb, which has no progressive."""
    word, before = low(words, i), low(words, i - 1)
    base = base_of(word, lexicon) if _plain(words, i) else None
    if base not in _STATIVE or before not in _SUBJECTS - {"that", "there"} or word.endswith("ing"):
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
    fits = before in _SUBJECTS | _ASK | {"this", "these", "those", "everyone"} or lexicon.is_noun(before)
    is_be = low(words, i) in ("is", "are", "was", "were", "am")
    return [] if is_be and fits and _plain(words, i) and _plain(words, i + 1) else None


def swap_demonstrative(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``this shoes``: before a noun that shows the number."""
    after = [low(words, k) for k in range(i + 1, i + (2 if low(words, i) in ("that", "those") else 3))]
    if not any(lexicon.is_noun(word) or _is_plural(word, lexicon) for word in after):
        return None
    return put_demonstrative(words, i, lexicon, rng)


def swap_good(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``speaks good``: at the end of a phrase, where an adverb belongs."""
    word, before = low(words, i), low(words, i - 1)
    fits = _plain(words, i) and before not in _BE | DETERMINERS and _ends_phrase(words, i + 1)
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


def change_tense(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """A present tense for a past one, if other words show that it is past."""
    word, before = low(words, i), low(words, i - 1)
    if not _plain(words, i) or before in _HAVE | _BE | DETERMINERS | BASE_FORM_AFTER or not before.isalpha():
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
    if not _plain(words, i) or row is None or word == row[0] or row[0] in ("be", "have", "do", "get"):
        return None
    return [" " + past(row[0])] if lexicon.words[past(row[0])] < FREQUENT_COUNT else None


def swap_number_of_noun(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """A noun in the wrong number, if a word before it or the verb after it shows its number."""
    word = low(words, i)
    near = [low(words, k) for k in range(max(0, i - 3), i)]
    if not _plain(words, i) or len(word) < 4 or lexicon.is_verb(word):
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
    return not word.isalpha() or word in PREPOSITIONS or word in _BE or word in ("and", "that", "which", "who", "has")


def put_misspelling(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    bare = words[i].strip()
    if len(bare) < 4 or not bare.isalpha() or not bare[1:].islower() or lexicon.words[bare.lower()] < 5:
        return None
    wrong = misspell(bare.lower(), lexicon, rng)
    return [like(wrong, words[i])] if wrong else None


def put_cut(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    found = cut(low(words, i), lexicon, rng) if _plain(words, i) else None
    return [" " + found[0], " " + found[1]] if found else None


def change_ending(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """Another part of speech of the same word family: ``quick`` for ``quickly``."""
    word = low(words, i)
    if not _plain(words, i) or len(word) < 5:
        return None
    found = []
    for longer, shorter in _ENDINGS:
        if word.endswith(longer):
            found.append(word[: len(word) - len(longer)] + shorter)
        if shorter and word.endswith(shorter):
            found.append(word[: len(word) - len(shorter)] + longer)
    found += [word + "ly", word + "ness", word + "ment"]
    known = [other for other in found if len(other) > 3 and lexicon.words[other] >= FREQUENT_COUNT]
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
    return [",", words[i]] if fits and _plain(words, i) and low(words, i - 1).isalpha() else None


def repeat_comparison(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``more bigger``, ``the most easiest``."""
    word = low(words, i)
    if not _plain(words, i) or low(words, i - 1) in ("more", "most", "much"):
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
    if not (_plain(words, i) and _plain(words, i + 1)) or low(words, i + 1) not in _MIDDLE:
        return None
    return [words[i + 1], words[i]] if low(words, i) in _BE | _HAVE | BASE_FORM_AFTER - {"to"} else None


def repeat_subject(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``The people they are``: a pronoun that repeats the subject."""
    word, before = low(words, i), low(words, i - 1)
    if word not in ("is", "are", "was", "were", "has", "have", "can", "will") or not _plain(words, i):
        return None
    if not before.isalpha() or before in _SUBJECTS or before in ("and", "or", "but", "not") or not _plain(words, i - 1):
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
    if not _plain(words, i) or len(word) < 4:
        return None
    if word.endswith("ly"):
        for stem in (word[:-2], word[:-3] + "y", word[:-2] + "le", word[:-4]):
            if len(stem) > 3 and lexicon.words[stem] >= FREQUENT_COUNT:
                return [" " + stem]
        return None
    longer = word[:-1] + "ily" if word.endswith("y") else word + "ly"
    return [" " + longer] if lexicon.words[longer] >= FREQUENT_COUNT and _ends_phrase(words, i + 1) else None


def lose_question(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    return ["."] if i == len(words) - 1 and words[i] == "?" and low(words, 0) in _ASK else None


def put_number_there(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
    """``There is many``."""
    return swap_number_of_verb(words, i, lexicon, rng) if low(words, i - 1) == "there" else None


def put_one_of(rows: list[list[str]]) -> Put:
    """Swaps within word groups. Those rare in prose and frequent in learners' mistakes are kinds of their own."""
    others = {word: [o for row in rows if word in row for o in row if o != word] for row in rows for word in row}

    def put(words: Words, i: int, lexicon: Lexicon, rng: random.Random) -> Words | None:
        found = others.get(low(words, i))
        if not found or not words[i].strip().replace("'", "").isalpha():
            return None
        return split_like(rng.choice(found), words[i])

    return put


put_swap = put_one_of(SWAPS)
put_quantity = put_one_of(QUANTITIES)
put_pronoun = put_one_of(PRONOUNS)
put_demonstrative = put_one_of(DEMONSTRATIVES)
put_amount = put_one_of(AMOUNTS)
put_homophone = put_one_of(HOMOPHONES)
APOSTROPHE_TABLE = put_table({"doesn't": ["don't"], "isn't": ["aren't"], "wasn't": ["weren't"], "don't": ["doesn't"]})
