"""Characters that no correction brings: what is no text, what nobody sees, letters of other scripts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from .language import script

REPLACED = "\ufffd"  # where bytes made no character

_TYPOGRAPHIC = frozenset("‘’‚“”„«»‹›–—―−…·•′″€£§°№")
"""Beyond ASCII and letters, what a writer of a text may want."""

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def strange(new: str, beside: str) -> str | None:
    """A character of `new` that `beside`, the text around it, has not and that no correction brings.

    A model that writes one has lost its way: U+FFFD, controls, marks of direction and other characters that are not
    seen, letters of a script that the text does not have, symbols outside ASCII.
    """
    if new.isascii() and new.isprintable() and (not any(map(str.isalpha, new)) or _has_latin(beside)):
        return None
    known = set(beside)
    scripts = _scripts(beside)
    for char in new:
        if char in known or char in _TYPOGRAPHIC or char in " \t\r\n":
            continue
        category = unicodedata.category(char)
        if char == REPLACED or category in _UNSEEN:
            return char
        if category[0] in "LM":
            if category[0] == "L" and script(char) not in scripts:
                return char
        elif not char.isascii() and not _is_form(char, known):
            return char
    return None


def named(char: str) -> str:
    """A character for people."""
    return f"U+{ord(char):04X} ({unicodedata.name(char, 'without a name')})"


def _is_form(char: str, known: set[str]) -> bool:
    """Whether it is another form of what the text has: full-width marks and their like."""
    return set(unicodedata.normalize("NFKC", char)) <= known


def _scripts(text: Iterable[str]) -> set[str]:
    return {script(char) for char in set(text) if char.isalpha()}


def _has_latin(text: str) -> bool:
    return any("a" <= char <= "z" or "A" <= char <= "Z" for char in text)
