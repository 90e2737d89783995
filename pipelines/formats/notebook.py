"""Jupyter notebooks: Markdown cells are text; code, outputs and metadata are kept byte for byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from json import JSONDecodeError, decoder
from typing import BinaryIO

from ..documents import Edit, FormatError, Part, Refusal, Segment
from ..edits.diff import apply
from .anchors import linked
from .jsonl import DECODER, after_space, dumped, escapes, halves
from .markdown import BORDER, blocks
from .neighbours import in_context
from .reading import BOM, changed, check_encoding, encode, lines_of
from .whole import whole


@dataclass(frozen=True, slots=True)
class _Raw:
    """A stretch of the file, and the strings of one cell in it."""

    text: str
    strings: tuple[tuple[int, int, str], ...] = ()  # start and end of each JSON string, and its value


class NotebookFormat:
    """Each part is a Markdown cell with everything before it; its text is that of the cell."""

    def __init__(self, *, encoding: str = "utf-8") -> None:
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        text, at = whole(stream, self.encoding), 0
        links = linked(text)
        for strings in _markdown_cells(text):
            end = strings[-1][1]
            raw = _Raw(text[at:end], tuple((first - at, last - at, value) for first, last, value in strings))
            yield replace(_part("".join(value for _, _, value in strings), raw, links), encoding=self.encoding)
            at = end
        yield Part("", carried=_Raw(text[at:]))

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        raw = part.carried
        if not isinstance(raw, _Raw):
            raise TypeError(f"a part of another format: {part!r}")
        if not edits:
            return encode(raw.text, self.encoding)
        changed(part.text, edits)  # raises for edits that must not be written
        escape, out, at = escapes(raw.text), [], 0
        for first, last, new in _rewritten(raw.strings, edits):
            out += [raw.text[at:first], dumped(new, raw.text[first:last], escape=escape)]
            at = last
        return encode("".join([*out, raw.text[at:]]), self.encoding)


def _rewritten(strings: Sequence[tuple[int, int, str]], edits: Sequence[Edit]) -> Iterator[tuple[int, int, str]]:
    """Yield the strings that edits change, with their new values. A replacement across several goes into the first."""
    place, next_edit = 0, 0
    for number, (first, last, value) in enumerate(strings):
        end = place + len(value)
        inside = []
        while next_edit < len(edits) and (edits[next_edit].start < end or number == len(strings) - 1):
            edit = edits[next_edit]
            new = edit.replacement if edit.start >= place else ""
            inside.append(Edit(max(edit.start, place) - place, min(edit.end, end) - place, new))
            if edit.end > end:
                break  # continues in the next string
            next_edit += 1
        if inside:
            yield first, last, apply(value, inside)
        place = end


def _part(text: str, raw: _Raw, links: frozenset[str]) -> Part:
    for first, last, value in raw.strings:
        if (refusal := halves(value, raw.text[first:last])) is not None:
            return Part(text, refused=(refusal,), carried=raw)
    segments: list[Segment] = []
    refused: list[Refusal] = []
    at = 0
    for part in in_context(blocks(lines_of(text)), BORDER, links):
        segments += [segment.moved(at) for segment in part.segments]
        refused += [refusal.moved(at) for refusal in part.refused]
        at += len(part.text)
    if segments:  # a sentence may go on after a cell of code
        segments[0] = replace(segments[0], begins=False)
        segments[-1] = replace(segments[-1], ends=False)
    return Part(text, tuple(segments), tuple(refused), raw)


def _markdown_cells(text: str) -> Iterator[list[tuple[int, int, str]]]:
    """Yield for each Markdown cell the spans and values of its strings."""
    try:
        begin = 1 if text.startswith(BOM) else 0
        _, end = DECODER.raw_decode(text, after_space(text, begin))
        if text[end:].strip():
            raise JSONDecodeError("more text after the notebook", text, end)
        for start, cell in _cells(text, begin):
            if isinstance(cell, dict) and cell.get("cell_type") in ("markdown", "heading"):
                strings = list(_source(text, start))
                if strings:
                    yield strings
    except (JSONDecodeError, IndexError, RecursionError) as error:
        raise FormatError(f"no notebook: {error}") from None


def _cells(text: str, at: int) -> Iterator[tuple[int, object]]:
    """Yield the cells of a notebook with their positions. Those of nbformat 3 and older are in worksheets."""
    if "worksheets" not in (name for name, _ in _fields(text, at)):
        yield from _members(text, "cells", at)
        return
    for sheet, _ in _members(text, "worksheets", at):
        yield from _members(text, "cells", sheet)


def _members(text: str, key: str, at: int) -> Iterator[tuple[int, object]]:
    """Yield the values of the list `key` in the object at `at`, with their positions."""
    for name, start in _fields(text, at):
        if name != key:
            continue
        if text[start] != "[":
            raise JSONDecodeError(f"{key!r} is not a list", text, start)
        at = after_space(text, start + 1)
        while text[at] != "]":
            value, end = DECODER.raw_decode(text, at)
            yield at, value
            at = after_space(text, end)
            if text[at] == ",":
                at = after_space(text, at + 1)
            elif text[at] != "]":
                raise JSONDecodeError("no ','", text, at)
        return
    raise JSONDecodeError(f"no {key!r} in it", text, 0)


def _fields(text: str, at: int) -> Iterator[tuple[str, int]]:
    """Yield the keys of an object, with the positions of their values."""
    at = after_space(text, at)
    if text[at] != "{":
        raise JSONDecodeError("no object", text, at)
    at = after_space(text, at + 1)
    while text[at] == '"':
        key, at = decoder.scanstring(text, at + 1, True)  # type: ignore[attr-defined]
        at = after_space(text, at)
        if text[at] != ":":
            raise JSONDecodeError("no ':'", text, at)
        at = after_space(text, at + 1)
        yield str(key), at
        _, end = DECODER.raw_decode(text, at)
        at = after_space(text, end)
        if text[at] == ",":
            at = after_space(text, at + 1)


def _source(text: str, cell: int) -> Iterator[tuple[int, int, str]]:
    """Yield the strings of a cell's source: one string, or a list of lines."""
    for name, start in _fields(text, cell):
        if name != "source":
            continue
        at = after_space(text, start + 1) if text[start] == "[" else start
        while text[at] == '"':
            value, end = decoder.scanstring(text, at + 1, True)  # type: ignore[attr-defined]
            yield at, end, str(value)
            if text[start] != "[":
                return
            at = after_space(text, end)
            if text[at] == ",":
                at = after_space(text, at + 1)
        return
