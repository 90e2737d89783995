"""Detects characters that a correction must not add: invisible ones, non-text, letters of other scripts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from string import ascii_letters

from copyspec.text.sentence_marks import SENTENCE_ENDS

from ..edits.diff import NO_TEXT
from .languages import script

_LATIN = frozenset(ascii_letters)
REPLACED = "\ufffd"  # stands for undecodable bytes

_TYPOGRAPHIC = frozenset("‘’‚“”„«»‹›–—―−…·•′″€£§°№¿¡")
"""Characters beside ASCII and letters that a correction may add."""

_NON_LATIN_MARKS = frozenset(f"{SENTENCE_ENDS}،؛՜՝՞־׳״、，；：（）「」『』《》【】")
"""Marks of other scripts than Latin, which a correction may add to a text with letters of one."""

_JOINERS = frozenset("\u200c\u200d")
_JOINING = frozenset({"ARABIC", "DEVANAGARI", "BENGALI", "GUJARATI", "KANNADA", "MALAYALAM", "SINHALA", "TELUGU"})
"""Scripts in whose words zero-width joiners are letters (Persian, Urdu, Hindi ...)."""

_JAPANESE = frozenset({"HIRAGANA", "KATAKANA", "CJK", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"})
"""Scripts that a Japanese text mixes; the last two are those of "ー" and "々"."""


def strange(new: str, beside: Iterable[str]) -> str | None:
    """Return a character of `new` that neither occurs in `beside` (the surrounding text, or its `characters`) nor is
    typical of corrections; None if there is none.

    Such characters show that the model's output is broken: U+FFFD, control, direction and other invisible characters,
    letters of a script that the text does not use, symbols outside ASCII.
    """
    known = beside if isinstance(beside, frozenset) else frozenset(beside)
    if new.isascii() and new.isprintable() and (not any(map(str.isalpha, new)) or known & _LATIN):
        return None
    scripts = _scripts(known)
    for char in new:
        if char in known or char in _TYPOGRAPHIC or char in " \t\r\n":
            continue
        if (char in _NON_LATIN_MARKS and scripts - {"LATIN"}) or (char in _JOINERS and scripts & _JOINING):
            continue
        category = unicodedata.category(char)
        if char == REPLACED or category in NO_TEXT:
            return char
        if category[0] in "LM":
            if category[0] == "L" and script(char) not in scripts:
                return char
        elif not char.isascii() and not set(unicodedata.normalize("NFKC", char)) <= known:  # full-width, for example
            return char
    return None


@lru_cache(maxsize=8)  # the segments of a part are checked one after the other
def characters(text: str) -> frozenset[str]:
    """Return the set of characters of a text."""
    return frozenset(text)


def named(char: str) -> str:
    """Describe a character by code point and name."""
    return f"U+{ord(char):04X} ({unicodedata.name(char, 'without a name')})"


def _scripts(text: Iterable[str]) -> set[str]:
    """The scripts whose letters a text may hold: those of its letters, and all of Japanese if it has kana."""
    scripts = {script(char) for char in set(text) if char.isalpha()}
    return scripts | _JAPANESE if scripts & {"HIRAGANA", "KATAKANA"} else scripts
