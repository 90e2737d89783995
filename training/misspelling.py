"""Misspellings by typing errors and by sound, and words split in two."""

from __future__ import annotations

import random
import re

from training.lexicon import Lexicon

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEAR = {
    letter: [
        other
        for r, other_row in enumerate(_ROWS)
        for c, other in enumerate(other_row)
        if other != letter and abs(r - row) <= 1 and abs(c - column) <= 1
    ]
    for row, letters in enumerate(_ROWS)
    for column, letter in enumerate(letters)
}
# pairs that sound alike, each replaced by the other
_SOUNDS = """
ie ei|ph f|ea ee|ai ay|ck k|c s|c k|tion sion|tion shun|able ible|ance ence|ant ent|er or|er re|ou ow|gh g|kn n|wr r
|wh w|ght t|qu kw|dge ge|sc s|mb m|ey y|ie y|y i|au o|oo u|ue ew|s z|x cks|ful full|ly ley|lly ly|ally aly|ough uff
|mn m|ch tch|sh ch|e ea|i ee|o oa|ious ous|cious shus|ture cher|ery ary|ise ize|th t|pt t|gu g|el le|al el|ain ane
"""
_ALIKE = [tuple(pair.split()) for pair in _SOUNDS.replace("\n", "").split("|")]
_DOUBLED = re.compile(r"([b-df-hj-np-tv-z])\1")
_SINGLE = re.compile(r"(?<=[aeiou])[b-df-hj-np-tv-z](?=[aeiou])")


def misspell(word: str, lexicon: Lexicon, rng: random.Random) -> str | None:
    """Misspell a lower-case word so that the result is not a word; None if no way was found."""
    for _ in range(6):
        wrong = rng.choices((_by_sound, _by_slip, _by_doubling, _by_vowel), (40, 25, 20, 15))[0](word, rng)
        if len(word) > 7 and rng.random() < 0.15:
            wrong = _by_sound(wrong, rng)
        if wrong != word and len(wrong) > 2 and not lexicon.known(wrong):
            return wrong
    return None


def _by_sound(word: str, rng: random.Random) -> str:
    ways = []
    for left, right in _ALIKE:
        for old, new in ((left, right), (right, left)):
            at = word.find(old, 1 if len(old) == 1 else 0)
            if at >= 0 and len(word) > 3:
                ways.append(word[:at] + new + word[at + len(old) :])
    if word.endswith("e") and len(word) > 4:
        ways.append(word[:-1])
    return rng.choice(ways) if ways else word


def _by_slip(word: str, rng: random.Random) -> str:
    i = rng.randrange(1, len(word))
    kind = rng.random()
    if kind < 0.35:  # two letters swapped
        return word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :] if i > 1 else word[:-2] + word[-1] + word[-2]
    if kind < 0.65:
        return word[:i] + word[i + 1 :]
    if kind < 0.8:
        return word[:i] + word[i] + word[i:]
    near = _NEAR.get(word[i], ["e"])
    return word[:i] + rng.choice(near) + word[i + rng.randrange(2) :]


def _by_doubling(word: str, rng: random.Random) -> str:
    """Write a doubled consonant once, or a single one twice."""
    doubled, single = list(_DOUBLED.finditer(word)), list(_SINGLE.finditer(word))
    if doubled and (not single or rng.random() < 0.7):
        match = rng.choice(doubled)
        return word[: match.start()] + word[match.start() + 1 :]
    if single:
        match = rng.choice(single)
        return word[: match.start()] + match.group() + word[match.start() :]
    return word


def _by_vowel(word: str, rng: random.Random) -> str:
    places = [i for i in range(1, len(word)) if word[i] in "aeiou"]
    if not places:
        return word
    i = rng.choice(places)
    return word[:i] + rng.choice("aeiou") + word[i + 1 :]


def cut(word: str, lexicon: Lexicon, rng: random.Random) -> tuple[str, str] | None:
    """Split a lower-case word into two words: ``some thing``; None if that is impossible."""
    places = [i for i in range(2, len(word) - 2) if lexicon.words[word[:i]] >= 200 and lexicon.words[word[i:]] >= 200]
    if not places:
        return None
    i = rng.choice(places)
    return word[:i], word[i:]
