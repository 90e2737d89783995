"""Finds values in JSON files, and writes strings into them with the escapes and invalid bytes of those they replace."""

from __future__ import annotations

import json
import re
from json.decoder import JSONDecoder

from ..documents import Refusal

DECODER = JSONDecoder(parse_int=lambda digits: 0, parse_float=lambda digits: 0.0)
"""Skips numbers without converting them: one with a million digits takes minutes, or is refused by the interpreter."""

_SPACE = re.compile(r"[ \t\r\n]*")
_HALVES = re.compile("[\ud800-\udfff]")


def after_space(text: str, at: int) -> int:
    """The position after the white space at `at`."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def halves(text: str, source: str) -> Refusal | None:
    """Why the string `text`, read from the JSON `source`, cannot be written again: one half of a character stands for
    a byte that is not text, and another comes from an escape, and nothing tells them apart."""
    count = len(_HALVES.findall(source))
    if count in (0, len(_HALVES.findall(text))):
        return None
    return Refusal("encoding", "holds bytes that are not text beside escapes such as \\udc80: convert it to UTF-8")


def escapes(text: str) -> bool:
    """Whether to escape characters outside of ASCII in JSON: if `text`, where it is written, does so, or if its other
    characters are bytes in another encoding."""
    return "\\u" in text if text.isascii() else _HALVES.sub("", text).isascii()


def dumped(value: object, source: str, *, escape: bool) -> str:
    """`value` as JSON that replaces `source`. Halves of characters are escaped unless they are bytes of the source.

    `escape`: whether to escape all characters outside of ASCII.
    """
    if _HALVES.search(source):
        return json.dumps(value, ensure_ascii=False)
    return _HALVES.sub(_escape, json.dumps(value, ensure_ascii=escape))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
