"""JSON lines: one field of each record is text; its correction and the edits are added as fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecodeError, JSONDecoder
from typing import BinaryIO

from ..documents import Edit, FormatError, FormatOptionError, Part, Refusal
from ..edits.diff import apply
from .reading import BOM, changed, check_encoding, encode, is_blank, read_lines
from .text import segments_of

# Of the edits in a record only numbers that can be positions are converted.
_EDITS_DECODER = JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) < 10 else -1, parse_float=lambda digits: None
)
_ADDED = ("corrected", "edits")
_RECORD_LIMIT = 8 << 20
"""Maximum characters of a record: a long book. Decoded, it may take thirty times the memory."""


@dataclass(frozen=True, slots=True)
class _Record:
    line: str
    field: str | None = None  # None: nothing to write
    values: tuple[tuple[str, int, int], ...] = ()  # key, and start and end of its value in the line

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """Start and end of each key's value; the last one if a key is repeated."""
        return {key: (start, end) for key, start, end in self.values}

    def source(self, key: str | None) -> str:
        """The JSON of a key's value."""
        start, end = self.places[str(key)]
        return self.line[start:end]


class JSONLinesFormat:
    """Each part is a record; its text is the value of one field, and the paragraphs of the value are the segments.

    A corrected record gets two more fields, `corrected` (the whole text) and `edits` (a list of `start`, `end`, `orig`,
    `corr`, in characters of the value); the rest of the line is kept. Unchanged records get them only with
    `every_record`. With `in_place` the field itself is replaced and nothing is added. A record that has one of the two
    fields already is refused, unless copyspec wrote them for the same text: nothing of the user's is overwritten.
    """

    def __init__(
        self, field: str = "text", *, in_place: bool = False, every_record: bool = False, encoding: str = "utf-8"
    ) -> None:
        """Raises ValueError for a field that would be overwritten, unless `in_place`."""
        if field in _ADDED and not in_place:
            raise ValueError(
                f"field={field!r} is where corrections are written: rename it in the file, or overwrite it with "
                "in_place=True (gec --untracked)"
            )
        self.field = field
        self.in_place = in_place
        self.every_record = every_record
        self.encoding = check_encoding(encoding)

    def read(self, stream: BinaryIO) -> Iterator[Part]:
        is_first, number = True, 1
        for line in _lines(read_lines(stream, self.encoding)):
            if is_blank(line.lstrip(BOM)):
                yield Part("", carried=_Record(line))
            else:
                yield self._part(line, number, is_first=is_first)
                is_first = False
            number += line.endswith(("\n", "\r"))

    def write(self, part: Part, edits: Sequence[Edit]) -> bytes:
        record = part.carried
        if not isinstance(record, _Record):
            raise TypeError(f"a part of another format: {part!r}")
        if record.field is None or not (edits or (self.every_record and not self.in_place)):
            return encode(record.line, self.encoding)
        corrected = changed(part.text, edits)
        if self.in_place:
            fields: dict[str, object] = {record.field: corrected}
        else:
            fields = {"corrected": corrected, "edits": [_edit_fields(part.text, edit) for edit in edits]}
        try:
            return encode(_with_fields(record, fields, escape=escapes(record.line)), self.encoding)
        except FormatError:
            return encode(_with_fields(record, fields, escape=True), self.encoding)

    def _part(self, line: str, number: int, *, is_first: bool) -> Part:
        try:
            record, text = _scan(line, self.field)
        except (JSONDecodeError, IndexError, RecursionError) as error:
            if is_first:
                raise FormatError(f"the first record is not a JSON object ({error}): {line[:80]!r}") from None
            what = f"line {number} is not a JSON object: {line[:80]!r}"
            return Part("", refused=(Refusal("json", what),), carried=_Record(line))
        if not isinstance(text, str):
            others = [repr(key) for key, _, _ in record.values if key != self.field]
            keys = ", ".join(others) or ("no other field" if record.values else "no fields")
            kind = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}.get(
                type(text), "a number"
            )
            holds = f", which holds {kind}" if self.field in record.places else ""
            what = f"has no text in field {self.field!r}{holds}; it has {keys}"
            if is_first:
                raise FormatOptionError(f"the first record {what}{': name the field' if others else ''}")
            return Part("", refused=(Refusal("field", f"line {number} {what}"),), carried=_Record(line))
        refusal = halves(text, record.source(self.field))
        if refusal is None and not self.in_place:
            refusal = _taken(record, text, number)
        if refusal is not None:
            return Part("", refused=(refusal,), carried=_Record(line))
        segments, refused = segments_of(text)
        return Part(text, segments, refused, record)


def _lines(pieces: Iterator[str]) -> Iterator[str]:
    """Join the pieces in which long lines come, up to _RECORD_LIMIT."""
    line = ""
    for piece in pieces:
        line += piece
        if piece.endswith(("\n", "\r")) or len(line) > _RECORD_LIMIT:
            yield line
            line = ""
    if line:
        yield line


def _scan(line: str, field: str) -> tuple[_Record, object]:
    """The positions of the values in a line's object, and the value of `field`; the last one if a key is repeated."""
    at = after_space(line, 1 if line.startswith(BOM) else 0)
    if line[at] != "{":
        raise JSONDecodeError("no object", line, at)
    values: list[tuple[str, int, int]] = []
    text: object = None
    at = after_space(line, at + 1)
    while line[at] != "}":
        if values:
            at = after_space(line, _after(line, at, ","))
        key, at = DECODER.raw_decode(line, at)
        if not isinstance(key, str):
            raise JSONDecodeError("no key", line, at)
        start = after_space(line, _after(line, after_space(line, at), ":"))
        value, end = DECODER.raw_decode(line, start)
        values.append((key, start, end))
        text = value if key == field else text
        at = after_space(line, end)
    if line[at + 1 :].strip():
        raise JSONDecodeError("more text after the object", line, at + 1)
    return _Record(line, field, tuple(values)), text


def _after(line: str, at: int, char: str) -> int:
    if line[at] != char:
        raise JSONDecodeError(f"no {char!r}", line, at)
    return at + 1


def _taken(record: _Record, text: str, number: int) -> Refusal | None:
    """The refusal of a record whose added fields are not what copyspec wrote for `text`; None if they are, or for a
    record without them."""
    fields = [key for key in _ADDED if key in record.places]
    if not fields:
        return None
    if len(fields) == len(_ADDED):
        corrected, edits = (_EDITS_DECODER.decode(record.source(key)) for key in _ADDED)
        if _corrected(text, edits) == corrected:
            return None
    what = f"line {number} holds {' and '.join(map(repr, fields))} that copyspec did not write for its {record.field!r}"
    return Refusal("taken", f"{what}: rename them, or overwrite the text with in_place=True (gec --untracked)")


def _corrected(text: str, edits: object) -> object:
    """The text with the edits of a record made; None if they are not edits of this text."""
    made = []
    for fields in edits if isinstance(edits, list) else [None]:
        start, end, corr = map(fields.get, ("start", "end", "corr")) if isinstance(fields, dict) else (None, None, None)
        if type(start) is not int or type(end) is not int or not isinstance(corr, str):
            return None
        edit = Edit(start, end, corr)
        if fields != _edit_fields(text, edit):
            return None
        made.append(edit)
    try:
        return apply(text, made)
    except ValueError:
        return None


def _with_fields(record: _Record, fields: dict[str, object], *, escape: bool) -> str:
    """Replace the values of existing keys, and add new fields after them."""
    places, source = record.places, record.source(record.field)
    written = {key: dumped(value, source, escape=escape) for key, value in fields.items()}
    added = "".join(f", {json.dumps(key)}: {value}" for key, value in written.items() if key not in places)
    last = max(end for _, end in places.values())
    splices = [(*places[key], value) for key, value in written.items() if key in places]
    return apply(record.line, [*(Edit(*splice) for splice in sorted(splices)), Edit(last, last, added)])


def _edit_fields(text: str, edit: Edit) -> dict[str, object]:
    return {"start": edit.start, "end": edit.end, "orig": text[edit.start : edit.end], "corr": edit.replacement}


DECODER = JSONDecoder(parse_int=lambda digits: 0, parse_float=lambda digits: 0.0)
"""Skips numbers without converting them: one with a million digits takes minutes, or is refused by the interpreter."""

_SPACE = re.compile(r"[ \t\r\n]*")
_HALVES = re.compile("[\ud800-\udfff]")


def after_space(text: str, at: int) -> int:
    """The position after the white space at `at`."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def halves(text: str, source: str) -> Refusal | None:
    """Why the string `text`, read from the JSON `source`, cannot be written again: one half of a character stands for
    a byte that is not text, and another comes from an escape, and nothing tells them apart."""
    count = len(_HALVES.findall(source))
    if count in (0, len(_HALVES.findall(text))):
        return None
    return Refusal("encoding", "holds bytes that are not text beside escapes such as \\udc80: convert it to UTF-8")


def escapes(text: str) -> bool:
    """Whether to escape characters outside of ASCII in JSON: if `text`, where it is written, does so, or if its other
    characters are bytes in another encoding."""
    return "\\u" in text if text.isascii() else _HALVES.sub("", text).isascii()


def dumped(value: object, source: str, *, escape: bool) -> str:
    """`value` as JSON that replaces `source`. Halves of characters are escaped unless they are bytes of the source.

    `escape`: whether to escape all characters outside of ASCII.
    """
    if _HALVES.search(source):
        return json.dumps(value, ensure_ascii=False)
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(value, ensure_ascii=escape))
