"""Text of strangers as HTML: it is shown, and never read as markup or as a script."""

from __future__ import annotations

import json
import re
from html import escape

_NOT_HTML = {
    **{code: 0xFFFD for code in (*range(32), *range(0x7F, 0xA0)) if code not in (9, 10, 12, 13)},
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}

_LONE_RETURN = re.compile(r"\r(?!\n)")  # a line end, which HTML shows as nothing


def clean(text: str) -> str:
    """Without characters that HTML does not allow; as long as before, and lines end as they did."""
    return text.translate(_NOT_HTML)


def safe(text: str) -> str:
    """For the content of an element. As many characters as before: a parser would make one of "\\r\\n"."""
    return escape(_LONE_RETURN.sub("\n", clean(text)), quote=False).replace("\r", "&#13;")


def safe_json(value: object) -> str:
    """For the content of a script element of type application/json."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
