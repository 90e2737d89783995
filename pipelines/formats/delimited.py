"""CSV and TSV: one column is text; quoting, delimiters and all other bytes are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from copyspec.common.checks import plain_value, shown

from ..documents import Edit, FormatError, FormatOptionError, Part, Refusal, Segment
from ..edits.diff import apply
from .neighbours import is_ended
from .reading import BOM, changed, check_encoding, encode, is_blank, read_lines
from .segments import merged_spans
from .text import segments_of

_DELIMITERS = ",;\t|"
_SEPARATOR = re.compile(rf"{BOM}?sep=([^\w\"\r\n])(?:\r\n|\n|\r)?", re.I)  # the first line, in files for Excel
_RECORD_LIMIT = 1 << 20
"""Maximum characters of a record with a quoted cell; above it, the quote is taken as never closed."""
_SHOWN = 300  # characters of the column names in an error
_DIGITS = 18  # of a column's number, which is more than any row has cells
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*"')
_IGNORED = " \u00a0\ufeff"
_EVALUATED = ("=", "＝")
_FORMULA_STARTS = "=+-@\t\r\n＝＋－＠"
"""Characters with which a formula may begin in a spreadsheet (OWASP, CSV injection)."""
_FORMULA_SIGNS = "=+@|＝＋＠"
"""Characters that no correction may insert: with another program's delimiters they may begin a cell."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A record, and the span of the cell with the text in it, quotes included."""

    record: str
    start: int = 0
    end: int = 0
    delimiter: str = ""


class DelimitedFormat:
    """Each part is a record; its text is the value of one cell, and the cell's paragraphs are the segments."""

    def __init__(self, column: str | int | None, *, delimiter: str | None = None, encoding: str = "utf-8") -> None:
        """`column`: a name in the first row, or a number from 1; with a number every row is data. `delimiter`: None is
        the most frequent of comma, semicolon, tab and bar in the first row, outside of quotes."""
        plain = plain_value(column)  # numbers of numpy, too
        if not (plain is None or isinstance(plain, (str, int))) or isinstance(plain, bool):
            raise TypeError(f"column must be a name in the first row, or a number from 1; got {shown(plain)}")
        self.column = plain
        self.delimiter = delimiter
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        lines = read_lines(stream, self.encoding)
        first = next(lines, "")
        separator = _SEPARATOR.fullmatch(first)
        if separator is not None:
            yield Part("", carried=_Cell(first))
            first = next(lines, "")
        if not first:
            return
        likely = max(_DELIMITERS, key=_QUOTED.sub("", first).count)
        delimiter = self.delimiter or (separator[1] if separator else likely)
        reader = _Reader(delimiter)
        index: int | None = None
        names: list[str] = []
        widest, is_there = 0, False
        for record in reader.records(first, lines):
            cells = reader.cells(record)
            if index is None:
                names = [_value(record[start:end]) for start, end in cells]
                index, is_header = self._index(names)
                if is_header:
                    is_there = True
                    yield Part("", carried=_Cell(record))
                    continue
            if not is_blank(record):
                widest, is_there = max(widest, len(cells)), is_there or index < len(cells)
            if is_blank(record) or index >= len(cells):
                yield Part("", carried=_Cell(record))
                continue
            start, end = cells[index]
            text = _value(record[start:end])
            is_quoted = bool(_QUOTED.fullmatch(record, start, end))
            segments, refused = _segments(text, delimiter, is_quoted=is_quoted, is_unsure=reader.is_unsure)
            yield Part(text, segments, refused, _Cell(record, start, end, delimiter), self.encoding)
        if widest and not is_there:  # known at the end only: the first row may be a title, with fewer cells
            raise FormatOptionError(
                f"no column {self.column!r}: rows have up to {widest}, and the first has {_listed(names)}"
            )

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        cell = part.carried
        if not isinstance(cell, _Cell):
            raise TypeError(f"a part of another format: {part!r}")
        if not edits:
            return encode(cell.record, self.encoding)
        text = changed(part.text, edits)
        if begins_formula(text) and not begins_formula(part.text):
            raise FormatError(f"a correction would make a formula of a cell: {text[:40]!r}")
        was_quoted = bool(_QUOTED.fullmatch(cell.record, cell.start, cell.end))
        is_split = any(char in text for char in (cell.delimiter, "\r", "\n"))
        if was_quoted or is_split or text.count('"') != part.text.count('"'):
            text = '"' + text.replace('"', '""') + '"'
        return encode(apply(cell.record, [Edit(cell.start, cell.end, text)]), self.encoding)

    def _index(self, names: list[str]) -> tuple[int, bool]:
        """The index of the column, and whether the first row holds names."""
        if isinstance(self.column, str) and self.column in names:
            return names.index(self.column), True
        if isinstance(self.column, int) or (self.column and self.column.isdecimal()):
            # A str may have more digits than `int` reads, and no row has as many cells as its first ones say.
            number = int(self.column[:_DIGITS] if isinstance(self.column, str) else self.column)
            if number < 1:
                raise FormatOptionError(f"column={self.column!r}: columns are counted from 1")
            return number - 1, False
        listed = _listed(names)
        if self.column is None:
            raise FormatOptionError(
                f"name the column that holds the text (--column): one of {listed}, or a number from 1"
            )
        raise FormatOptionError(f"no column {self.column!r}: the first row has {listed}")


def _listed(names: list[str]) -> str:
    listed = ", ".join(map(repr, names))
    return listed if len(listed) <= _SHOWN else f"{listed[:_SHOWN]}..."


class _Reader:
    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        mark = re.escape(delimiter)
        # A quote that does not open the cell, or is not followed by a delimiter when closed, is an ordinary character.
        self.cell = re.compile(rf'("[^"]*(?:""[^"]*)*"(?=[{mark}\r\n]|\Z)|[^{mark}\r\n]*)({mark})?')
        self.opens = re.compile(rf'(?:\A{BOM}?|{mark})"')
        self.is_unsure = False  # the record may be the inside of a quoted cell, of which no end was found

    def records(self, first: str, lines: Iterator[str]) -> Iterator[str]:
        """Yield lines, joined while a quoted cell continues."""
        record, quotes = first, first.count('"')
        while True:
            joined: list[str] = []
            size = len(record)
            may_go_on = bool(self.opens.search(record))
            while quotes % 2 and may_go_on and size < _RECORD_LIMIT:
                line = next(lines, None)
                if line is None:
                    break
                joined.append(line)
                quotes += line.count('"')
                size += len(line)
            following = next(lines, None)
            is_unclosed = quotes % 2 == 1 and may_go_on
            is_cut = following is not None and not (joined or [record])[-1].endswith(("\n", "\r"))
            self.is_unsure |= is_cut or (is_unclosed and size >= _RECORD_LIMIT)
            if is_unclosed and joined:
                # The quote was never closed, so it did not begin a quoted cell, or one above the limit.
                yield record
                yield from joined
            else:
                yield "".join([record, *joined])
            if following is None:
                return
            record, quotes = following, following.count('"')

    def cells(self, record: str) -> list[tuple[int, int]]:
        cells: list[tuple[int, int]] = []
        at = 1 if record.startswith(BOM) else 0
        while True:
            match = self.cell.match(record, at)
            if not match:
                return cells
            cells.append(match.span(1))
            at = match.end()
            if not match[2]:
                return cells


def begins_formula(text: str) -> bool:
    """Whether a spreadsheet may evaluate the cell instead of showing it."""
    return text.lstrip(_IGNORED)[:1] in _FORMULA_STARTS and bool(text.strip())


def _segments(
    text: str, delimiter: str, *, is_quoted: bool, is_unsure: bool
) -> tuple[tuple[Segment, ...], tuple[Refusal, ...]]:
    """The paragraphs of a cell. None may become a formula; existing formulas are kept.

    Quotes in an unquoted cell are protected too: adding or removing one would shift the cells after it. So would quotes
    around what may be the inside of a quoted cell (`is_unsure`), which a new delimiter would require.
    """
    value = text.lstrip(_IGNORED)
    if value.startswith(_EVALUATED):
        return (), (Refusal("formula", f"{value[:40]!r} is a formula"),)
    forbidden = _FORMULA_SIGNS
    quotes: list[tuple[int, int]] = []
    if not is_quoted:
        quotes = [(match.start(), match.end()) for match in re.finditer('"', text)]
        forbidden += '"' + (delimiter if quotes or is_unsure else "")
    segments, refused = segments_of(text)
    cell_segments = []
    for segment in segments:
        inside = [span for span in quotes if segment.start <= span[0] < segment.end]
        is_sentence = is_ended(text[segment.start : segment.end])
        cell_segments.append(
            replace(
                segment,
                protected=merged_spans(segment.protected, inside),
                forbidden=segment.forbidden + forbidden,
                begins=segment.begins and is_sentence,
                ends=segment.ends and is_sentence,
                not_first="" if text[: segment.start].strip(_IGNORED) else _FORMULA_STARTS,
            )
        )
    return tuple(cell_segments), refused


def _value(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell
