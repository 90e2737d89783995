"""A redline as one HTML page: deleted, inserted and, if known, copied text. Nothing is loaded from elsewhere."""

from __future__ import annotations

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
_BOTTOM = """</main>
<p id="end">{count}.</p>
"""


@dataclass(frozen=True, slots=True)
class Redline:
    """One part of a page."""

    text: str
    edits: Sequence[Edit] = ()  # ascending
    copied: Sequence[tuple[int, int]] = ()  # spans of `text` that the model copied, in characters, ascending


def html(
    parts: Iterable[Redline],
    *,
    title: str,
    lang: str = "en",
    show_copied: bool = False,
    decisions: Iterable[str] | None = None,
) -> Iterator[str]:
    """Yield the page in pieces, to be written as UTF-8, in bounded memory. Each change has an anchor: `#e1`, `#e2`.

    Undecodable bytes and control characters are shown as U+FFFD. `show_copied`: mark `Redline.copied`. `decisions`: a
    decisions file for these changes, in their order, as JSON in pieces; the page then gets a button for each change,
    and one that saves the file.
    """
    style = asset("page.css") + asset("redline.css")
    script = asset("decisions.js") if decisions is not None else ""
    body = chain(_body(parts, title, show_copied), _data(decisions) if decisions is not None else ())
    return page(body, title=title, style=style, script=script, lang=lang)


def _data(decisions: Iterable[str]) -> Iterator[str]:
    yield '<script type="application/json" id="decisions">'
    for piece in decisions:
        yield piece.replace("<", "\\u003c")  # in JSON, "<" only occurs in strings
    yield "</script>\n"


def _body(parts: Iterable[Redline], title: str, show_copied: bool) -> Iterator[str]:
    copied = ', copied text is <span class="copied">shaded</span>' if show_copied else ""
    yield _TOP.format(title=safe(title), copied=copied)
    count = 0
    for part in parts:
        at = 0
        for edit in part.edits:
            count += 1
            yield _kept(part, at, edit.start, show_copied)
            yield _change(part.text[edit.start : edit.end], edit.replacement, count)
            at = edit.end
        yield _kept(part, at, len(part.text), show_copied)
    yield _BOTTOM.format(count=f"{count} change{'' if count == 1 else 's'}")


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
