"""Shows a text in a terminal, coloured by the sources it was copied from, complete or while it grows."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from copyspec.views.escaping import visible
from copyspec.views.provenance import Provenance

# Light backgrounds with dark letters are readable on any terminal; same order of colours as the HTML page.
_PAPERS = (
    "#cfe2fb", "#fbe3c4", "#c9f2d2", "#fbd0ea", "#e0d2fb", "#c6f1f1",
    "#f6efb4", "#fbd1cf", "#dcf3bd", "#f6d0f8", "#d3d5fb", "#f8dace",
)  # fmt: skip
_INK = "#1b1c1e"

TAIL_LINES = 8
"""Lines of a growing text that may be redrawn; earlier ones are printed for good."""

TAB = 8  # columns from one tab stop to the next, as rich expands tabs

_QUOTED = 48  # characters shown of each copied part in the list


class SafeConsole(Console):
    """A console that replaces the control characters in texts; its own colours and movements stay."""

    writing: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes the context in which it writes, for example one that explains errors."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def _write_buffer(self) -> None:
        with self.writing():
            super()._write_buffer()


def has_colours(console: Console) -> bool:
    """Whether it is a terminal that shows colours, and the user wants them."""
    return console.color_system is not None and not console.no_color


def style_of(number: int, console: Console) -> Style:
    """Style for text copied from source `number` (from 1): coloured, or underlined if there are no colours."""
    if not has_colours(console):
        return Style(underline=True)
    return Style(color=_INK, bgcolor=_PAPERS[(number - 1) % len(_PAPERS)])


def coloured(provenance: Provenance, console: Console, order: Sequence[str] = ()) -> Text:
    """The text with its copied parts in the colours of their sources. `order` as in `legend`."""
    numbers = _numbers(provenance, order)
    text = Text(end="")
    for start, end, piece in provenance.stretches():
        style = None if piece is None else style_of(numbers[piece.place.source], console)
        text.append(visible(provenance.text[start:end]), style)
    return text


def legend(
    provenance: Provenance, console: Console, order: Sequence[str] = (), *, listed: bool = False
) -> Iterator[Text]:
    """Yield one line per source that was copied from: number and colour, share and name.

    `order`: names of sources in the order of numbers already shown. `listed`: the copied parts follow, for a text shown
    without colours, at their places in it.
    """
    counts = provenance.copied_characters()
    length = max(1, len(provenance.text))
    numbers = _numbers(provenance, order)
    for source in sorted((number for number in numbers if counts[number]), key=numbers.__getitem__):
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f" {numbers[source]} ", style_of(numbers[source], console))
        line.append(f" {counts[source] / length:4.0%}  {visible(provenance.sources[source].name)}")
        yield line
    yield Text(f" –  {1 - sum(counts) / length:4.0%}  written by the model itself")
    if not listed:
        return
    for piece in provenance.pieces:
        place = piece.place
        quoted = provenance.text[piece.start : min(piece.end, piece.start + _QUOTED)]
        more = "..." if piece.end - piece.start > _QUOTED else ""
        where = f"{piece.start}-{piece.end} from {numbers[place.source]}, {place.start}-{place.end}"
        yield Text(f"{where}: {' '.join(visible(quoted).split())}{more}", no_wrap=True, overflow="ellipsis")


def _numbers(provenance: Provenance, order: Sequence[str]) -> dict[int, int]:
    """Numbers of the sources: first those named in `order`, then the rest."""
    ranked = provenance.ranked()
    known = [source for name in order for source in ranked if provenance.sources[source].name == name]
    ordered = dict.fromkeys([*known, *ranked])
    return {source: number for number, source in enumerate(ordered, 1)}


class GrowingText:
    """A text that grows piece by piece, wrapped to the terminal's width. The latest piece is bold."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.order: list[str] = []
        """Names of the sources in the order they appeared."""
        self._text = Text(end="")  # the lines that may be redrawn
        self._last_start = 0  # its length before the last piece

    def append(self, pieces: Sequence[tuple[str, str | None]]) -> None:
        """Add one pass's texts, each with the name of its source."""
        self._last_start = len(self._text)
        for text, name in pieces:
            if name is not None and name not in self.order:
                self.order.append(name)
            style = None if name is None else style_of(self.order.index(name) + 1, self._console)
            self._text.append(visible(text), style)

    def settled(self) -> list[Text]:
        """Remove and return the lines above the last TAIL_LINES, to be printed for good."""
        lines = list(line_ends(self._text.plain, self._console.width))
        count = max(0, len(lines) - TAIL_LINES)
        taken, start = [], 0
        for end in lines[:count]:
            taken.append(_cut(self._text, start, end))
            start = end
        self._text = self._text[start:]
        self._last_start = max(0, self._last_start - start)
        return taken

    def tail(self, status: str = "") -> RenderableType:
        """The remaining lines with a status line below."""
        shown = self._text.copy()
        shown.stylize("bold", self._last_start)
        lines, start = [], 0
        for end in line_ends(shown.plain, self._console.width):
            lines.append(_cut(shown, start, end))
            start = end
        if status:
            lines.append(Text(status[: self._console.width], style="dim", no_wrap=True))
        return Group(*lines)

    def finish(self, provenance: Provenance) -> None:
        """Recolour the remaining text as in the complete one: where a copy begins is only known later."""
        whole = coloured(provenance, self._console, self.order)
        if len(self._text) and whole.plain.endswith(self._text.plain):
            self._text = whole[len(whole) - len(self._text) :]
        self._last_start = len(self._text)


def _cut(text: Text, start: int, end: int) -> Text:
    line = text[start:end]
    if spaces := len(line) - len(line.plain.rstrip()):
        line.right_crop(spaces)
    line.no_wrap, line.end = True, "\n"
    return line


def line_ends(text: str, width: int) -> Iterator[int]:
    """Yield the end of each line of `text`, at most `width` cells wide, broken between words if possible."""
    column = start = 0
    for match in re.finditer(r"\n|[^\S\n]+|\S+", text):
        word, at = match[0], match.start()
        if word == "\n":
            yield match.end()
            column, start = 0, match.end()
            continue
        if word.isspace():  # trailing white space never needs room
            column = _after(word, column)
            continue
        size = cell_len(word)
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


def _after(spaces: str, column: int) -> int:
    """The column after white space, in which a tab leads to the next multiple of TAB."""
    for number, part in enumerate(spaces.split("\t")):
        if number:
            column += TAB - column % TAB
        column += cell_len(part)
    return column


def _fitting(word: str, width: int) -> int:
    """How many characters of `word` fit into `width` cells; at least one."""
    # Not the sum of the characters' widths: some widen the one before them.
    return bisect_right(range(2, len(word) + 1), width, key=lambda count: cell_len(word[:count])) + 1
