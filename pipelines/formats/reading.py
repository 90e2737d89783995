"""Bytes to lines and back, nothing lost: bad bytes, byte order marks, line ends of every kind."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

from ..documents import FormatError, Refusal, Segment

LINE_LIMIT = 2 << 20
"""Characters. Longer lines come in pieces, so that memory is bounded; no line that a person wrote is as long."""

_CHUNK = 64 << 10
_LINE_END = re.compile(r"\r\n|\n|\r")
_LETTER = re.compile(r"[^\W\d_]")
_UNREADABLE = re.compile("[\ud800-\udfff]")
_OTHER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_MARK = "\ufeff"


def check_encoding(encoding: str) -> str:
    """`encoding`; raises ValueError where Python has none of that name, or it is none that can be read by lines."""
    try:
        is_by_lines = "\r\n".encode(encoding) == b"\r\n"
    except LookupError:
        raise ValueError(f"unknown encoding {encoding!r}: name one of Python's, for example 'utf-8'") from None
    if not is_by_lines:
        raise ValueError(f"encoding {encoding!r} does not write line ends as single bytes: convert the file to UTF-8")
    return encoding


def read_lines(stream: BinaryIO, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file with their ends: CR LF, LF or CR, as they stand. Lines over `LINE_LIMIT` come in pieces.

    Unlike `str.splitlines` it knows no other line ends. Raises FormatError for UTF-16.
    """
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
    pending, is_first = "", True
    while True:
        raw = stream.readline(_CHUNK)
        if is_first:
            _check_mark(raw)
            is_first = False
        text = decoder.decode(raw, final=not raw)
        if not pending and text.endswith("\n") and "\r" not in text:
            yield text  # most lines are: `readline` has ended at this line feed
            continue
        searched = max(0, len(pending) - 1)  # a carriage return may have waited for its line feed
        pending += text
        at = 0
        for found in _LINE_END.finditer(pending, searched):
            if raw and found.end() == len(pending) and found[0] == "\r":
                break  # its line feed may come with the next chunk
            yield pending[at : found.end()]
            at = found.end()
        pending = pending[at:]
        if len(pending) > LINE_LIMIT:
            cut = pending.rfind(" ") + 1 or len(pending)
            yield pending[:cut]
            pending = pending[cut:]
        if not raw:
            break
    if pending:
        yield pending


def encode(text: str, encoding: str = "utf-8") -> bytes:
    """The bytes of `text`; raises FormatError where a character of a correction has no place in `encoding`."""
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        char = text[error.start]
        raise FormatError(f"{char!r} of a correction cannot be written in {encoding!r}: convert the file") from error


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text with their ends; `read_lines` for what is in memory."""
    at = 0
    for found in _LINE_END.finditer(text):
        yield text[at : found.end()]
        at = found.end()
    if at < len(text):
        yield text[at:]


def is_blank(line: str) -> bool:
    return not line.strip()


def segment_of(text: str, start: int, end: int, *, is_tokenized: bool = False) -> Segment | Refusal | None:
    """The segment in a stretch of `text`: without white space around it. None where there are no letters."""
    piece = text[start:end]
    if not _LETTER.search(piece):
        return None
    if found := _UNREADABLE.search(piece):
        byte = ord(found[0]) - 0xDC00
        what = f"the byte 0x{byte:02x}" if 0x80 <= byte <= 0xFF else f"half of a character ({found[0]!r})"
        return Refusal("encoding", f"holds {what}, which is no text: convert the file to UTF-8")
    if "\0" in piece:
        return Refusal("binary", "holds NUL characters")
    if start == 0 and piece.startswith(_MARK):
        start, piece = 1, piece[1:]
    start += len(piece) - len(piece.lstrip())
    return Segment(start, start + len(piece.strip()), is_tokenized=is_tokenized)


def _check_mark(raw: bytes) -> None:
    for mark, name in _OTHER_MARKS.items():
        if raw.startswith(mark):
            raise FormatError(f"the file is {name} (it begins with {mark!r}): convert it to UTF-8")
