"""Decodes bytes to lines and back without losses, including invalid bytes, byte order marks and all line ends."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

from ..documents import Edit, FormatError, Part
from ..edits.diff import apply, stray

LINE_LIMIT = 2 << 20
"""Maximum characters of a line. Longer ones are returned in pieces, to bound the memory."""

IDLE_CHARS = 16 << 10
"""Maximum characters of a part that joins parts without segments, that is without text to correct."""

_CHUNK = 64 << 10
_LINE_END = re.compile(r"\r\n|\n|\r")
_LOSSLESS = ("utf-8", "ascii", "iso8859-1")
"""Encodings known to restore every byte; others are checked while reading."""
_UTF16_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
BOM = "\ufeff"  # a byte order mark
_FRONT_MATTER = {"---": ("---", "..."), "+++": ("+++",)}  # YAML and TOML: first line, last lines
FRONT_MATTER_KEY = re.compile(r"[\"']?[\w .-]{1,200}[\"']?[ \t]{0,200}[:=]|#|\{|- ")
"""How the second line of front matter begins. Otherwise the first line is a horizontal rule."""
_LAYOUT = dict.fromkeys(map(ord, "\t\r\n"))


def check_encoding(encoding: str) -> str:
    """Return `encoding`. Raises ValueError if Python does not know it, or it does not allow reading by lines
    and keeping bytes that are not text."""
    try:
        is_by_lines = "\r\n".encode(encoding) == b"\r\n"
    except LookupError:
        raise ValueError(f"unknown encoding {encoding!r}: name one of Python's, for example 'utf-8'") from None
    if codecs.lookup(encoding).name == "utf-8-sig":
        raise ValueError(f"encoding {encoding!r}: name 'utf-8', with which a byte order mark stays as it is")
    if not is_by_lines:
        raise ValueError(f"encoding {encoding!r} does not write line ends as single bytes: convert the file to UTF-8")
    try:
        codecs.getincrementaldecoder(encoding)("surrogateescape").decode(b"\xff\n", final=True)
    except (UnicodeError, LookupError):
        raise ValueError(
            f"encoding {encoding!r} cannot keep bytes that are not text: convert the file to UTF-8"
        ) from None
    return encoding


def read_lines(stream: BinaryIO, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file with their ends (CR LF, LF or CR). Lines over LINE_LIMIT come in pieces.

    Unlike `str.splitlines` no other characters end a line. Raises FormatError for UTF-16.
    """
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape")
    check = None if codecs.lookup(encoding).name in _LOSSLESS else _RoundTrip(encoding)
    pending, is_first = "", True
    while True:
        raw = stream.readline(_CHUNK)
        if is_first:
            _check_bom(raw)
            is_first = False
        text = decoder.decode(raw, final=not raw)
        if check is not None:
            check.feed(raw, text, is_whole=not decoder.getstate()[0])
        if not pending and text.endswith("\n") and "\r" not in text:
            yield text  # usual: `readline` ended at this line feed
            continue
        searched = max(0, len(pending) - 1)  # the last character may be a carriage return whose line feed comes now
        pending += text
        at = 0
        for match in _LINE_END.finditer(pending, searched):
            if raw and match.end() == len(pending) and match[0] == "\r":
                break  # its line feed may come with the next chunk
            yield pending[at : match.end()]
            at = match.end()
        pending = pending[at:]
        if len(pending) > LINE_LIMIT:
            cut = pending.rfind(" ") + 1 or len(pending)
            yield pending[:cut]
            pending = pending[cut:]
        if not raw:
            break
    if pending:
        yield pending


class _RoundTrip:
    """Checks that encoding the decoded text restores the bytes. Some encodings have two forms of a character, or a
    state that carries over between lines."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._raw, self._text = b"", ""

    def feed(self, raw: bytes, text: str, *, is_whole: bool) -> None:
        """Raise FormatError if the bytes are not restored. `is_whole`: no character is cut at the end of `raw`."""
        self._raw, self._text = self._raw + raw, self._text + text
        if not is_whole:
            return
        if self._text.encode(self._encoding, "surrogateescape") != self._raw:
            raise FormatError(f"{self._raw[:40]!r} does not come back in {self._encoding!r}: convert the file to UTF-8")
        self._raw, self._text = b"", ""


def changed(text: str, edits: Sequence[Edit]) -> str:
    """Apply the edits to `text`. Raises FormatError for one that inserts an invisible or invalid character: `writable`
    drops such edits, and this protects files from callers that do not use it."""
    for edit in edits:
        was = text[edit.start : edit.end]
        if (char := stray(edit.replacement.translate(_LAYOUT), was)) is not None:
            raise FormatError(f"{edit.replacement!r} of a correction adds {char!r}, which is not text")
    return apply(text, edits)


def encode(text: str, encoding: str = "utf-8") -> bytes:
    """Encode `text`. Raises FormatError if a correction holds a character that `encoding` lacks."""
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError as error:
        char = text[error.start]
        raise FormatError(f"{char!r} of a correction cannot be written in {encoding!r}: convert the file") from error


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a text with their ends, as `read_lines` does."""
    at = 0
    for match in _LINE_END.finditer(text):
        yield text[at : match.end()]
        at = match.end()
    if at < len(text):
        yield text[at:]


def body_start(text: str) -> int:
    """The position after a byte order mark and front matter, which are no part of the markup after them."""
    start = at = 1 if text.startswith(BOM) else 0
    closings: tuple[str, ...] | None = None
    for number, line in enumerate(lines_of(text[start:] if start else text)):
        at += len(line)
        if closings is not None and number > 1 and line.rstrip() in closings:
            return at
        if number == 0:
            closings = _FRONT_MATTER.get(line.rstrip())
        if closings is None or (number == 1 and not FRONT_MATTER_KEY.match(line)):
            break
    return start


def gathered(parts: Iterable[Part], encoding: str) -> Iterator[Part]:
    """Join successive parts without segments, so that a file of empty lines has few parts; note the encoding in the
    others."""
    idle: list[str] = []
    size = 0
    for part in parts:
        is_idle = not (part.segments or part.refused)
        if idle and (not is_idle or size + len(part.text) > IDLE_CHARS):
            yield Part("".join(idle))
            idle, size = [], 0
        if is_idle:
            idle.append(part.text)
            size += len(part.text)
        else:
            yield part if encoding == part.encoding else replace(part, encoding=encoding)
    if idle:
        yield Part("".join(idle))


def is_blank(line: str) -> bool:
    return not line.strip()


def _check_bom(raw: bytes) -> None:
    for mark, name in _UTF16_MARKS.items():
        if raw.startswith(mark):
            raise FormatError(f"the file is {name} (it begins with {mark!r}): convert it to UTF-8")
