"""Builds a self-contained HTML page: no network access, and no script but its own."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from html import escape
from importlib.resources import files

from copyspec.views.escaping import clean

COLOURS = 12
"""Number of distinguishable colours: the classes `c0` to `c11` of page.css."""

_HEAD = """<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{script_source}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""
_FOOT = "{script}</body>\n</html>\n"


def page(body: Iterable[str], *, title: str, style: str, script: str = "", lang: str = "en") -> Iterator[str]:
    """The page in pieces, to be written as UTF-8. `body` is HTML; `title` is text.

    The content security policy allows only `script`, by its hash, so that a script injected into the body cannot run.
    """
    source = ""
    if script:
        digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
        source = f"; script-src 'sha256-{digest}'"
    yield _HEAD.format(lang=escape(lang), title=escape(clean(title)), style=style, script_source=source)
    yield from body
    yield _FOOT.format(script=f"<script>{script}</script>\n" if script else "")


@cache
def asset(name: str) -> str:
    """The content of a style sheet or script in the `assets` folder."""
    return (files("copyspec.views") / "assets" / name).read_text(encoding="utf-8")


def framed(document: str, *, title: str, height: int = 480) -> str:
    """Embed a whole page in a sandboxed frame, as notebooks need it: neither page can affect the other."""
    return (
        f'<iframe sandbox="allow-scripts" title="{escape(title)}" srcdoc="{escape(document)}" '
        f'style="width: 100%; height: {height}px; border: 1px solid #8886; border-radius: 6px"></iframe>'
    )
