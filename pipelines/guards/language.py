"""Decides whether a text is English, by its words and letters."""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import cache

from .vocabulary import is_english, spelt

FEW = 2
"""From this many non-English words on, a text may be in another language; from as many known ones, English."""

# English words that are also common in other languages, and so are no evidence.
_SHARED = frozenset(
    """
    a al alle also am an angst as at auf avec bad bald be bei ben best bin bis but con da dan dans dare das day de del
    dem den der des dice die do donde du e eine el elle elles en er es est et far fast for four gas gift gut hat haben
    have he her hier hoy i in information international is it la las le les liver lo los man mais mal mar mare me met
    mi min mind mis mit more muss my nah name national no non not nun o of on one or pain pan pane par pas per plus
    pour pro qui rat red rot sa sale si sin so solo son sous sur tag tags tot tu ton un una und uno van vice via war
    was we weg week welt wen wert wie wild will wo ya zoo zu
    """.split()  # noqa: SIM905
) - frozenset("and four have he her my of the was we with".split())  # noqa: SIM905


def looks_english(text: str) -> bool | None:
    """Whether a text is English; None if its words do not tell."""
    latin = other = 0
    for char, times in Counter(text).items():
        if char.isalpha():
            if script(char) == "LATIN":
                latin += times
            else:
                other += times
    if other > latin:
        return False
    known = strange = names = 0
    for piece, times in Counter(text.split()).items():
        word, *more = spelt(piece) or [""]
        if more or not word[:1].isalpha() or (small := word.lower()) in _SHARED:
            continue  # addresses, numbers and code
        if len(small) == 1:
            continue
        if is_english(word):
            known += times
        elif word[0].isupper():
            names += times
        else:
            strange += times
    if strange >= FEW and strange > known:
        return False
    if not known and strange + names >= FEW:
        return False
    return True if known >= FEW and known > strange else None


@cache
def script(char: str) -> str:
    """Return the script of a letter, from its Unicode name."""
    name = unicodedata.name(char, "").partition(" ")[0]
    return "LATIN" if name in ("FULLWIDTH", "MODIFIER", "FEMININE", "MASCULINE", "MICRO") else name
