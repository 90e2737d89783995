"""A redline as one HTML page: deleted, inserted and, if known, copied text. Nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from copyspec.views.escaping import safe
from copyspec.views.page import asset, page

from ..documents import Edit

_TOP = """<h1>{title}</h1>
<p>Deleted text is <del>struck through</del>, inserted text is <ins>underlined</ins>{copied}.
<a href="#e1">First change</a> · <a href="#end">Summary</a></p>
<main class="text">"""
_GAP = '\n<span class="gap">[...]</span>\n'
_BREAK = re.compile(r"\n[ \t]*\r?\n\s*")
_BOTTOM = """</main>
<p id="end">{count}.</p>
"""


@dataclass(frozen=True, slots=True)
class Redline:
    """One part of a page."""

    text: str
    edits: Sequence[Edit] = ()  # ascending
    copied: Sequence[tuple[int, int]] = ()  # spans of `text` that the model copied, in characters, ascending
    heading: str = ""  # of the file that begins with this part


def redline_html(
    parts: Iterable[Redline],
    *,
    title: str,
    lang: str = "en",
    show_copied: bool = False,
    only_changed: bool = False,
    decisions: Iterable[str] | None = None,
) -> Iterator[str]:
    """Yield the page in pieces, to be written as UTF-8, in bounded memory. Each change has an anchor: `#e1`, `#e2`.

    Undecodable bytes and control characters are shown as U+FFFD. `show_copied`: mark `Redline.copied`. `only_changed`:
    leave out paragraphs without a change. `decisions`: a decisions file for these changes, in their order, as JSON in
    pieces; the page then gets a button for each change, and one that saves the file.
    """
    style = asset("page.css") + asset("redline.css")
    script = asset("decisions.js") if decisions is not None else ""
    body = chain(_body(parts, title, show_copied, only_changed), _data(decisions) if decisions is not None else ())
    return page(body, title=title, style=style, script=script, lang=lang)


def _data(decisions: Iterable[str]) -> Iterator[str]:
    yield '<script type="application/json" id="decisions">'
    for piece in decisions:
        yield piece.replace("<", "\\u003c")  # in JSON, "<" only occurs in strings
    yield "</script>\n"


def _body(parts: Iterable[Redline], title: str, show_copied: bool, only_changed: bool) -> Iterator[str]:
    copied = ', copied text is <span class="copied">shaded</span>' if show_copied else ""
    yield _TOP.format(title=safe(title), copied=copied)
    count, gap = 0, ""  # `gap`: what stands for the paragraphs left out before the next change
    for part in parts:
        if part.heading:
            yield f"<h2>{safe(part.heading)}</h2>\n"
            gap = ""
        at = 0
        for number, edit in enumerate(part.edits):
            count += 1
            start = _paragraph_start(part.text, at, edit.start) if only_changed else at
            if start > at:
                yield _kept(part, at, _paragraph_end(part.text, at, start) if number else at, show_copied)
                gap = _GAP
            if gap:
                yield gap
                gap = ""
            yield _kept(part, start, edit.start, show_copied)
            yield _change(part.text[edit.start : edit.end], edit.replacement, count)
            at = edit.end
        end = len(part.text)
        if only_changed:
            end = _paragraph_end(part.text, at, end) if part.edits else 0
            gap = _GAP if part.text[end:].strip() else gap
        yield _kept(part, at, end, show_copied)
    yield _BOTTOM.format(count=f"{count} change{'' if count == 1 else 's'}")


def _paragraph_start(text: str, start: int, end: int) -> int:
    """Where the paragraph around text[end] begins, at `start` at the earliest."""
    breaks = list(_BREAK.finditer(text, start, end))
    return breaks[-1].end() if breaks else start


def _paragraph_end(text: str, start: int, end: int) -> int:
    """Where the paragraph around text[start] ends, at `end` at the latest."""
    match = _BREAK.search(text, start, end)
    return match.start() if match else end


def _change(removed: str, added: str, number: int) -> str:
    anchor = f' id="e{number}"'
    pieces = []
    if removed:
        pieces.append(
            f'<del{anchor}><span class="said">[deleted: </span>{safe(removed)}<span class="said">]</span></del>'
        )
        anchor = ""
    if added:
        pieces.append(
            f'<ins{anchor}><span class="said">[inserted: </span>{safe(added)}<span class="said">]</span></ins>'
        )
    return "".join(pieces)


def _kept(part: Redline, start: int, end: int, show_copied: bool) -> str:
    pieces, at = [], start
    for first, last in part.copied if show_copied else ():
        first, last = max(first, at), min(last, end)
        if first < last:
            pieces += [safe(part.text[at:first]), f'<span class="copied">{safe(part.text[first:last])}</span>']
            at = last
    return "".join([*pieces, safe(part.text[at:end])])
