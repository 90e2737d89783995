"""Characters that no correction brings: what is no text, what nobody sees, letters of other scripts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Set
from functools import lru_cache

from .language import script

REPLACED = "\ufffd"  # where bytes made no character

_TYPOGRAPHIC = frozenset("‘’‚“”„«»‹›–—―−…·•′″€£§°№")
"""Beyond ASCII and letters, what a writer of a text may want."""

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def strange(new: str, beside: Iterable[str]) -> str | None:
    """A character of `new` that `beside`, the text around it or its `characters`, lacks and that no correction brings.

    A model that writes one has lost its way: U+FFFD, controls, marks of direction and other characters that are not
    seen, letters of a script that the text does not have, symbols outside ASCII.
    """
    known = beside if isinstance(beside, frozenset) else frozenset(beside)
    if new.isascii() and new.isprintable() and (not any(map(str.isalpha, new)) or _has_latin(known)):
        return None
    scripts = _scripts(known)
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


@lru_cache(maxsize=8)  # the segments of a part are asked about one after the other
def characters(text: str) -> frozenset[str]:
    """The characters of a text."""
    return frozenset(text)


def named(char: str) -> str:
    """A character for people."""
    return f"U+{ord(char):04X} ({unicodedata.name(char, 'without a name')})"


def _is_form(char: str, known: Set[str]) -> bool:
    """Whether it is another form of what the text has: full-width marks and their like."""
    return set(unicodedata.normalize("NFKC", char)) <= known


def _scripts(text: Iterable[str]) -> set[str]:
    return {script(char) for char in set(text) if char.isalpha()}


def _has_latin(text: Iterable[str]) -> bool:
    return any("a" <= char <= "z" or "A" <= char <= "Z" for char in text)
