"""A text in a terminal, coloured by where it was copied from: whole, or while it grows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from copyspec.views.provenance import Provenance

if TYPE_CHECKING:
    from rich.console import RenderableType

# Light backgrounds under dark letters can be read on any terminal; in the order of the page's colours.
_PAPERS = (
    "#cfe2fb", "#fbe3c4", "#c9f2d2", "#fbd0ea", "#e0d2fb", "#c6f1f1",
    "#f6efb4", "#fbd1cf", "#dcf3bd", "#f6d0f8", "#d3d5fb", "#f8dace",
)  # fmt: skip
_INK = "#1b1c1e"

TAIL_LINES = 8
"""Lines of a growing text that may still be drawn anew; those above them are left to the terminal."""

_QUOTED = 48  # characters of a copied part in a list
_CONTROLS = {code: "\ufffd" for code in (*range(9), *range(11, 32), *range(0x7F, 0xA0))}


def printable(text: str) -> str:
    """Without control characters, which would reach the terminal; as long as before."""
    return text.translate(_CONTROLS)


def style_of(number: int, console: Console) -> Style:
    """Of what was copied from source `number`, counted from 1. Where there are no colours it is underlined."""
    if console.no_color or console.color_system is None:
        return Style(underline=True)
    return Style(color=_INK, bgcolor=_PAPERS[(number - 1) % len(_PAPERS)])


def coloured(found: Provenance, console: Console, order: Sequence[str] = ()) -> Text:
    """The text, its copied parts in the colours of their sources. `order` as in `legend`."""
    numbers = _numbers(found, order)
    text = Text(end="")
    for start, end, piece in found.stretches():
        style = None if piece is None else style_of(numbers[piece.place.source], console)
        text.append(printable(found.text[start:end]), style)
    return text


def legend(found: Provenance, console: Console, order: Sequence[str] = ()) -> Iterator[Text]:
    """A line for each source that something was copied from: its number and colour, share, name and characters.

    `order`: names of sources that have their numbers already. Without colours the copied parts are listed, too.
    """
    counts = found.copied_characters()
    length = max(1, len(found.text))
    numbers = _numbers(found, order)
    for source in sorted((each for each in numbers if counts[each]), key=numbers.__getitem__):
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f" {numbers[source]} ", style_of(numbers[source], console))
        line.append(f" {counts[source] / length:4.0%}  {printable(found.sources[source].name)}")
        yield line
    yield Text(f" –  {1 - sum(counts) / length:4.0%}  written by the model itself")
    if console.is_terminal and not console.no_color:
        return
    for piece in found.pieces:
        place = piece.place
        quoted = found.text[piece.start : min(piece.end, piece.start + _QUOTED)]
        more = "..." if piece.end - piece.start > _QUOTED else ""
        where = f"{piece.start}-{piece.end} from {numbers[place.source]}, {place.start}-{place.end}"
        yield Text(f"{where}: {' '.join(printable(quoted).split())}{more}", no_wrap=True, overflow="ellipsis")


def _numbers(found: Provenance, order: Sequence[str]) -> dict[int, int]:
    """The number of each source: by its name's place in `order`, the others behind."""
    ranked = found.ranked()
    known = [source for name in order for source in ranked if found.sources[source].name == name]
    ordered = dict.fromkeys([*known, *ranked])
    return {source: number for number, source in enumerate(ordered, 1)}


class GrowingText:
    """A text that grows piece by piece, in lines as wide as the terminal. What landed last is bold."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.order: list[str] = []
        """Names of the sources, numbered as they came."""
        self._text = Text(end="")  # of the lines that may be drawn anew
        self._landed = 0  # characters of it before the last piece

    def land(self, pieces: Sequence[tuple[str, str | None]]) -> None:
        """Adds what one pass brought: texts with the names of their sources."""
        self._landed = len(self._text)
        for text, name in pieces:
            if name is not None and name not in self.order:
                self.order.append(name)
            style = None if name is None else style_of(self.order.index(name) + 1, self._console)
            self._text.append(printable(text), style)

    def settled(self) -> list[Text]:
        """Lines above the last TAIL_LINES: they are taken off, to be printed once and for all."""
        lines = list(line_ends(self._text.plain, self._console.width))
        count = max(0, len(lines) - TAIL_LINES)
        taken, start = [], 0
        for end in lines[:count]:
            taken.append(_cut(self._text, start, end))
            start = end
        self._text = self._text[start:]
        self._landed = max(0, self._landed - start)
        return taken

    def tail(self, status: str = "") -> RenderableType:
        """The lines that are left, and below them a line on how the run goes."""
        from rich.console import Group

        shown = self._text.copy()
        shown.stylize("bold", self._landed)
        lines, start = [], 0
        for end in line_ends(shown.plain, self._console.width):
            lines.append(_cut(shown, start, end))
            start = end
        if status:
            lines.append(Text(status[: self._console.width], style="dim", no_wrap=True))
        return Group(*lines)

    def finish(self, found: Provenance) -> None:
        """Colours what is left as the whole text has it: the beginning of a copy is known to be one only later."""
        whole = coloured(found, self._console, self.order)
        if len(self._text) and whole.plain.endswith(self._text.plain):
            self._text = whole[len(whole) - len(self._text) :]
        self._landed = len(self._text)


def _cut(text: Text, start: int, end: int) -> Text:
    line = text[start:end]
    if spaces := len(line) - len(line.plain.rstrip()):
        line.right_crop(spaces)
    line.no_wrap, line.end = True, "\n"
    return line


def line_ends(text: str, width: int) -> Iterator[int]:
    """Where each line of `text` ends, none wider than `width` cells; broken between words where that is possible."""
    column = start = 0
    for found in re.finditer(r"\n|[^\S\n]+|\S+", text):
        word, at = found[0], found.start()
        if word == "\n":
            yield found.end()
            column, start = 0, found.end()
            continue
        size = cell_len(word)
        if word.isspace():  # at the end of a line there is always room for it
            column += size
            continue
        if column and column + size > width:
            yield at
            column, start = 0, at
        while column + size > width:  # a word wider than a line
            fits = _fitting(word, width - column)
            at += fits
            yield at
            word, column, start = word[fits:], 0, at
            size = cell_len(word)
        column += size
    if start < len(text):
        yield len(text)


def _fitting(word: str, width: int) -> int:
    """How many of its characters fit into so many cells; one at least."""
    used = 0
    for count, character in enumerate(word):
        used += cell_len(character)
        if used > width:
            return max(1, count)
    return len(word)
