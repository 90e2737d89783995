"""Finds which headings the links of a text name by their words: if these changed, the links would lead nowhere."""

from __future__ import annotations

import re
from unicodedata import normalize
from urllib.parse import unquote

_LINK = re.compile(
    r"(?=[#\"<x`:{\[])(?:"  # first characters of all alternatives, to skip most of the text quickly
    r"#(?:\d+\.)*([\w%-][^\s()<>\[\]\"`|]{1,200})|\"#(?:\d+\.)*([^\"|]{1,200})\|outline\""  # Markdown, OpenDocument
    r"|<<#?([^<>,]{1,200})|\bxref:([^\s\[\]#]{1,200})\["  # AsciiDoc
    r"|`([^`<>]{1,200})`_|<([^<>`]{1,200})_>`_"  # reStructuredText
    r"|[:{][\w:]{0,20}(?:ref|any)[:}]`(?:[^`<>]{0,200}<)?(?:[^`<>:]{0,100}:)?([^`<>:]{1,200})>?`"  # roles
    r"|(?<!\w)\[([^\[\]]{1,200})\](?!\())"  # labels of references
)
_ELSEWHERE = re.compile(
    r"(?<=[\w./])#([\w%-][^\s()<>\[\]\"'`|,]{0,200})"
    r"|[:{]ref[:}]`(?:[^`<>]{0,200}<)?[^`<>:]{1,100}:([^`<>:]{1,200})>?`"
)
_UNDERLINE = re.compile(r"_(?!\w)")
_WORD = re.compile(r"[a-zA-Z][\w.-]*\Z")
_TARGET = re.compile(r"\]\([^()\s]{0,400}\)|<[^<>]{0,200}>|&\w{1,40};")
_NO_LETTERS = re.compile(r"[\W_]+")
_WORD_CHARS = 80
_NUMBERED = re.compile(r"[-_]\d+\Z")  # the second heading of the same words


def linked(text: str) -> frozenset[str]:
    """The keys of all headings that a link of `text` may name."""
    names = [unquote(next(filter(None, match.groups()))) for match in _LINK.finditer(text)]
    for match in _UNDERLINE.finditer(text):  # `word_` of reStructuredText
        names += _WORD.findall(text, max(0, match.start() - _WORD_CHARS), match.start())
    return frozenset(key for name in names for spelling in (name, _NUMBERED.sub("", name)) if (key := _key(spelling)))


def linked_elsewhere(text: str) -> frozenset[str]:
    """The keys of all headings of other files that a link of `text` may name, by a path and what follows it."""
    names = [unquote(match[1] or match[2]) for match in _ELSEWHERE.finditer(text)]
    return frozenset(key for name in names for spelling in (name, _NUMBERED.sub("", name)) if (key := _key(spelling)))


def is_named(heading: str, links: frozenset[str]) -> bool:
    """Whether one of the `links` names a heading. Some anchors leave out the number that it begins with."""
    key = _key(_TARGET.sub("", heading)) if links else ""
    return key in links or key.lstrip("0123456789") in links


def _key(text: str) -> str:
    """What all ways to make an anchor of a heading have in common: its letters and digits, without accents."""
    return _NO_LETTERS.sub("", normalize("NFKD", text)).casefold()
