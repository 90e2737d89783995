"""A redline as one HTML page: what was deleted, inserted and, where known, copied. No scripts, nothing loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ..documents import Edit

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --faint: #5b5b5b; --line: #d0d0d0;
  --del: #9b1c1c; --del-back: #fde8e8; --ins: #0f5f2c; --ins-back: #dcf5e3; --copied: #e9eefb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181b; --faint: #a8a8a8; --line: #3a3d42;
  --del: #ffb1b1; --del-back: #4a1d1f; --ins: #a5ecbb; --ins-back: #173c24; --copied: #1f2a44; } }
body { margin: 0 auto; padding: 2rem 1rem 6rem; max-width: 46rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.6 system-ui, sans-serif; }
h1 { font-size: 1.25rem; overflow-wrap: anywhere; }
p { color: var(--faint); }
.text { white-space: pre-wrap; overflow-wrap: anywhere; border-top: 1px solid var(--line); padding-top: 1rem; }
del { color: var(--del); background: var(--del-back); text-decoration: line-through; }
ins { color: var(--ins); background: var(--ins-back); text-decoration: underline; }
del, ins { border-radius: 2px; scroll-margin: 40vh; }
del:target, ins:target { outline: 2px solid currentcolor; }
.copied { background: var(--copied); }
.said { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
  user-select: none; }
@media print { del, ins, .copied { print-color-adjust: exact; } }
"""
_HEAD = """<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>Deleted text is <del>struck through</del>, inserted text is <ins>underlined</ins>{copied}.
<a href="#e1">First change</a> · <a href="#end">Summary</a></p>
<main class="text">"""
_FOOT = """</main>
<p id="end">{count}.</p>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Redline:
    """One part of a page."""

    text: str
    edits: Sequence[Edit] = ()  # ascending
    copied: Sequence[tuple[int, int]] = ()  # characters of `text` that the model copied, ascending


def html(parts: Iterable[Redline], *, title: str, lang: str = "en", show_copied: bool = False) -> Iterator[str]:
    """The page in pieces, to be written as UTF-8, in bounded memory. Each change has an anchor: `#e1`, `#e2`.

    Bad bytes and control characters are shown as U+FFFD. `show_copied` marks `Redline.copied`.
    """
    said = ', copied text is <span class="copied">shaded</span>' if show_copied else ""
    yield _HEAD.format(lang=escape(lang), title=escape(_clean(title)), style=_STYLE, copied=said)
    count = 0
    for part in parts:
        at = 0
        for edit in part.edits:
            count += 1
            yield _kept(part, at, edit.start, show_copied)
            yield _change(part.text[edit.start : edit.end], edit.replacement, count)
            at = edit.end
        yield _kept(part, at, len(part.text), show_copied)
    yield _FOOT.format(count=f"{count} change{'' if count == 1 else 's'}")


def _change(removed: str, added: str, number: int) -> str:
    anchor = f' id="e{number}"'
    pieces = []
    if removed:
        pieces.append(
            f'<del{anchor}><span class="said">[deleted: </span>{_safe(removed)}<span class="said">]</span></del>'
        )
        anchor = ""
    if added:
        pieces.append(
            f'<ins{anchor}><span class="said">[inserted: </span>{_safe(added)}<span class="said">]</span></ins>'
        )
    return "".join(pieces)


def _kept(part: Redline, start: int, end: int, show_copied: bool) -> str:
    pieces, at = [], start
    for first, last in part.copied if show_copied else ():
        first, last = max(first, at), min(last, end)
        if first < last:
            pieces += [_safe(part.text[at:first]), f'<span class="copied">{_safe(part.text[first:last])}</span>']
            at = last
    return "".join([*pieces, _safe(part.text[at:end])])


def _safe(text: str) -> str:
    return escape(_clean(text), quote=False)


def _clean(text: str) -> str:
    """Without characters that HTML does not allow; lines end as they did."""
    return text.translate(_NOT_HTML)


_NOT_HTML = {
    **{code: 0xFFFD for code in (*range(32), *range(0x7F, 0xA0)) if code not in (9, 10, 12, 13)},
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}
