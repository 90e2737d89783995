"""HTML page with a text coloured by the sources it was copied from, beside these sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from copyspec.views.escaping import clean, safe, safe_json
from copyspec.views.page import COLOURS, asset, page
from copyspec.views.provenance import CopiedPiece, Provenance, SourceText, TextPlace

_LINES = 4  # kinds of underline below copied text: sources beyond the number of colours get another one

_BLOCK = 2_000
"""Characters after which a block ends at the next line end; the browser does not lay out blocks off screen."""


def provenance_page(
    provenance: Provenance, *, title: str = "Where this text came from", facts: Sequence[str] = ()
) -> Iterator[str]:
    """The page in pieces. `facts`: short notes shown above the text."""
    view = _View.of(provenance)
    style = asset("page.css") + asset("provenance.css")
    body = _body(view, title, facts)
    return page(body, title=title, style=style, script=asset("provenance.js"))


@dataclass(frozen=True, slots=True)
class _View:
    """The data of the page, with number and colour of each source."""

    found: Provenance
    order: Sequence[int]  # sources in the order listed
    numbers: Sequence[int]  # [len(sources)], from 1
    shares: Sequence[float]  # [len(sources)], of the text's characters

    @classmethod
    def of(cls, provenance: Provenance) -> _View:
        order = provenance.ranked()
        numbers = [0] * len(order)
        for number, source in enumerate(order, 1):
            numbers[source] = number
        shares = [count / len(provenance.text) if provenance.text else 0.0 for count in provenance.copied_characters()]
        return cls(provenance, order, numbers, shares)

    def colour(self, source: int) -> str:
        """CSS classes for the source's colour."""
        at = self.numbers[source] - 1
        return f"c{at % COLOURS} l{at // COLOURS % _LINES}"


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Characters shown in one element, or as plain text. May be split into several parts."""

    text: str
    opening: str = ""  # tag name and attributes
    first: str = ""  # attributes of the first part only
    last: str = ""

    def part(self, start: int, end: int) -> str:
        inside = safe(self.text[start:end])
        if not self.opening:
            return inside
        first, last = self.first if start == 0 else "", self.last if end == len(self.text) else ""
        return f"<{self.opening}{first}{last}>{inside}</{self.opening.partition(' ')[0]}>"


def _body(view: _View, title: str, facts: Sequence[str]) -> Iterator[str]:
    provenance = view.found
    copied = sum(view.shares)
    used = sum(share > 0 for share in view.shares)
    summary = [f"{_percent(copied)} copied from {used} source{'' if used == 1 else 's'}", *facts]
    yield f"<header><h1>{safe(title)}</h1>\n<p>{' · '.join(map(safe, summary))}</p></header>\n"
    yield '<div class="columns">\n<main>\n<h2>Text</h2>\n<div id="text" class="text" dir="auto">'
    yield from _blocks(_linked(view))
    yield "</div>\n"
    yield '<p class="keys">Click a coloured part to see it in its source. Keys: <kbd>←</kbd> <kbd>→</kbd> from part to '
    yield "part, <kbd>Enter</kbd> to the source, <kbd>Esc</kbd> closes.</p>\n"
    yield '<div id="card" role="status" hidden></div>\n</main>\n<aside aria-label="Sources">\n<h2>Sources</h2>\n'
    own = 1 - copied
    yield f'<p class="own"><span class="key">–</span> written by the model itself <b>{_percent(own)}</b></p>\n'
    starts = _starts(provenance)
    for source in view.order:
        yield from _source(view, source, starts.get(source, ()))
    yield f'</aside>\n</div>\n<script type="application/json" id="data">{safe_json(_data(view))}</script>\n'


def _linked(view: _View) -> Iterator[_Stretch]:
    pieces = {piece.start: number for number, piece in enumerate(view.found.pieces)}
    for start, end, piece in view.found.stretches():
        text = view.found.text[start:end]
        if piece is None:
            yield _Stretch(text)
            continue
        source = piece.place.source
        target = f' href="#{_anchor(view, piece.place)}"' if view.found.sources[source].text is not None else ""
        opening = f'a class="{view.colour(source)}" data-p="{pieces[start]}"{target}'
        # Put the number on the line of the last word; after a line end it would stand alone on the next line.
        inside = text.rstrip() or text
        yield _Stretch(inside, opening, last=f' data-k="{view.numbers[source]}"')
        if len(inside) < len(text):
            yield _Stretch(text[len(inside) :], f'a class="{view.colour(source)}"')


def _anchor(view: _View, place: TextPlace) -> str:
    return f"s{view.numbers[place.source]}-{place.start}"


def _blocks(stretches: Iterable[_Stretch]) -> Iterator[str]:
    """Group stretches into blocks that end at line ends; a stretch that crosses a block is reopened in the next one."""
    size = 0
    yield '<div class="b">'
    for stretch in stretches:
        text, at = stretch.text, 0
        while cut := text.find("\n", at + max(0, _BLOCK - size)) + 1:
            yield stretch.part(at, cut) + '</div><div class="b">'
            at, size = cut, 0
        if at < len(text):
            yield stretch.part(at, len(text))
            size += len(text) - at
    yield "</div>"


def _starts(provenance: Provenance) -> dict[int, list[CopiedPiece]]:
    pieces: dict[int, list[CopiedPiece]] = {}
    for piece in provenance.pieces:
        pieces.setdefault(piece.place.source, []).append(piece)
    return pieces


def _source(view: _View, index: int, pieces: Sequence[CopiedPiece]) -> Iterator[str]:
    """The collapsible section of one source: its share of the text, and its own text."""
    source, number, share = view.found.sources[index], view.numbers[index], view.shares[index]
    name = f'<span class="key {view.colour(index)}">{number}</span> <bdi class="name">{safe(source.name)}</bdi>'
    colour = f"c{(number - 1) % COLOURS}"
    gave = f"<b>{_percent(share)}</b>" if pieces else '<span class="about">not copied from</span>'
    bar = f'<span class="bar" aria-hidden="true"><i class="{colour}" style="width:{share:.2%}"></i></span>'
    yield f'<details class="source" id="s{number}" name="source" data-source="{index}">'
    yield f"<summary>{name} {gave}{bar if pieces else ''}</summary>"
    if source.text is None:
        yield f'<p class="about">{escape(_kind(source))}; its text was not kept</p>'
    else:
        summary = f"{_kind(source)}, {_count(len(source.text), 'character')}, copied from {_count(len(pieces), 'time')}"
        yield f'<p class="about">{escape(summary)}</p>\n<div class="text doc" dir="auto">'
        yield from _blocks(_marked(view, index, source.text, pieces))
        yield "</div>"
    yield "</details>\n"


def _marked(view: _View, index: int, text: str, pieces: Sequence[CopiedPiece]) -> Iterator[_Stretch]:
    """A source's text with its copied parts marked, and an anchor where each piece begins."""
    borders = sorted({border for piece in pieces for border in (piece.place.start, piece.place.end)} | {len(text)})
    changes, begun = _depths(pieces), {piece.place.start for piece in pieces}
    at = depth = 0
    for border in borders:
        if at < border:
            anchor = f' id="{_anchor(view, TextPlace(index, at, border))}"' if at in begun else ""
            opening = f'mark class="{view.colour(index)}"' if depth else ""
            yield _Stretch(text[at:border], opening, first=anchor)
        depth += changes.get(border, 0)
        at = border


def _depths(pieces: Sequence[CopiedPiece]) -> dict[int, int]:
    """Change in the number of overlapping pieces at each character."""
    changes: dict[int, int] = {}
    for piece in pieces:
        changes[piece.place.start] = changes.get(piece.place.start, 0) + 1
        changes[piece.place.end] = changes.get(piece.place.end, 0) - 1
    return changes


def _data(view: _View) -> dict[str, object]:
    """Data for the script: places in characters, and in UTF-16 units as JavaScript counts them."""
    units = [_Units(source.text or "") for source in view.found.sources]

    def place(span: TextPlace) -> list[int]:
        unit = units[span.source]
        return [span.source, span.start, span.end, unit.of(span.start), unit.of(span.end)]

    return {
        "names": [clean(source.name) for source in view.found.sources],
        "numbers": list(view.numbers),
        "pieces": [[place(piece.place), *map(place, piece.ties)] for piece in view.found.pieces],
    }


class _Units:
    """Converts character offsets of a text into UTF-16 offsets."""

    def __init__(self, text: str) -> None:
        self._wide: list[int] | None = None
        if text and max(text) > "\uffff":
            self._wide = [0]
            for character in text:
                self._wide.append(self._wide[-1] + (2 if character > "\uffff" else 1))

    def of(self, character: int) -> int:
        return character if self._wide is None else self._wide[character]


def _kind(source: SourceText) -> str:
    names = {"edit": "the text being edited", "prompt": "the prompt", "output": "earlier in this text"}
    return names.get(source.kind, source.kind)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share == 0 or share >= 0.01 else "under 1%"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
