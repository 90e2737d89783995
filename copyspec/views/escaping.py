"""Escapes untrusted text for HTML and for terminals, so that it is displayed and never interpreted."""

from __future__ import annotations

import json
import re
from html import escape

_NOT_HTML = {
    **{code: 0xFFFD for code in (*range(32), *range(0x7F, 0xA0)) if code not in (9, 10, 12, 13)},
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}

_LONE_RETURN = re.compile(r"\r(?!\n)")  # a line end that HTML would not show


_SIGNS = {
    **{code: 0x2400 + code for code in range(32) if code not in (9, 10)},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys((0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),  # order and line ends
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}


def visible(text: str) -> str:
    """Replace what a terminal would act on by visible signs: control characters except tabs and line feeds, and those
    that turn the order of letters. The length stays the same."""
    return text if text.isascii() and text.isprintable() else text.translate(_SIGNS)


def clean(text: str) -> str:
    """Replace characters that HTML does not allow. Length and line ends stay the same."""
    return text.translate(_NOT_HTML)


def safe(text: str) -> str:
    """Escape for the content of an element. The length stays the same: "\\r\\n" is not merged into one character."""
    return escape(_LONE_RETURN.sub("\n", clean(text)), quote=False).replace("\r", "&#13;")


def safe_json(value: object) -> str:
    """Serialise for a script element of type application/json."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
