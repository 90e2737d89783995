"""Writes strings into JSON files, with the escapes and invalid bytes of the strings they replace."""

from __future__ import annotations

import json
import re

from ..documents import Refusal

_HALVES = re.compile("[\ud800-\udfff]")


def halves(text: str, source: str) -> Refusal | None:
    """Why the string `text`, read from the JSON `source`, cannot be written again: one half of a character stands for
    a byte that is not text, and another comes from an escape, and nothing tells them apart."""
    count = len(_HALVES.findall(source))
    if count in (0, len(_HALVES.findall(text))):
        return None
    return Refusal("encoding", "holds bytes that are not text beside escapes such as \\udc80: convert it to UTF-8")


def dumped(value: object, source: str, *, escape: bool) -> str:
    """`value` as JSON that replaces `source`. Halves of characters are escaped unless they are bytes of the source.

    `escape`: whether to escape all characters outside of ASCII.
    """
    if _HALVES.search(source):
        return json.dumps(value, ensure_ascii=False)
    return _HALVES.sub(_escape, json.dumps(value, ensure_ascii=escape))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
