"""Bytes to lines and back, nothing lost: bad bytes, byte order marks, line ends of every kind."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

from ..documents import Edit, FormatError, Part, Refusal, Segment
from ..edits.diff import apply, stray

LINE_LIMIT = 2 << 20
"""Characters. Longer lines come in pieces, so that memory is bounded; no line that a person wrote is as long."""

IDLE_CHARS = 16 << 10
"""Characters without anything to work on that make one part."""

_CHUNK = 64 << 10
_LINE_END = re.compile(r"\r\n|\n|\r")
_TOKENS = re.compile(
    # special tokens of models, whatever their tokenizer: <|endoftext|>, [INST], <<SYS>>, <0x0A>, [MASK]
    r"<[|｜][^<>\n]{1,80}[|｜]>|<</?\w{1,40}>>|\[/?[A-Z][A-Z_]{2,40}\d{0,4}\]"
    r"|</?[A-Za-z0-9_][^<>\n]{0,200}>"  # tags: <s>, <pad>, <extra_id_0>, <b>, <a href="x">
    # templates: {{x}}, {% x %}, {name}, ${x}, %(x)s
    r"|\{\{[^{}\n]{1,200}\}\}|\{%[^{}\n]{1,200}%\}|\$?\{[\w.:!-]{0,80}\}|%\(\w{1,80}\)[a-z]"
)
_TOKEN_STARTS = re.compile(r"[<\[{%]")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]*_]*\Z")
_LETTER = re.compile(r"[^\W\d_]")
_UNREADABLE = re.compile("[\ud800-\udfff]")
_LOSSLESS = ("utf-8", "ascii", "iso8859-1")
"""Encodings whose every byte comes back, as checked by hand; others are checked as they are read."""
_OTHER_MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_MARK = "\ufeff"
_LAYOUT = dict.fromkeys(map(ord, "\t\r\n"))


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
    check = None if codecs.lookup(encoding).name in _LOSSLESS else _Returning(encoding)
    pending, is_first = "", True
    while True:
        raw = stream.readline(_CHUNK)
        if is_first:
            _check_mark(raw)
            is_first = False
        text = decoder.decode(raw, final=not raw)
        if check is not None:
            check.feed(raw, text, is_whole=not decoder.getstate()[0])
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


class _Returning:
    """Checks that what was read comes back byte for byte: some encodings write a character in two ways, or keep a state
    from one line to the next."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._raw, self._text = b"", ""

    def feed(self, raw: bytes, text: str, *, is_whole: bool) -> None:
        """Raises FormatError where it does not. `is_whole`: no character is cut at the end of `raw`."""
        self._raw, self._text = self._raw + raw, self._text + text
        if not is_whole:
            return
        if self._text.encode(self._encoding, "surrogateescape") != self._raw:
            raise FormatError(f"{self._raw[:40]!r} does not come back in {self._encoding!r}: convert the file to UTF-8")
        self._raw, self._text = b"", ""


def changed(text: str, edits: Sequence[Edit]) -> str:
    """`text` with the edits made. Raises FormatError for one that brings a character that is no text: `writable` has
    left such edits out, and whoever passes it by cannot write a damaged file."""
    for edit in edits:
        was = text[edit.start : edit.end]
        if (char := stray(edit.replacement.translate(_LAYOUT), was)) is not None:
            raise FormatError(f"{edit.replacement!r} of a correction brings {char!r}, which is no text")
    return apply(text, edits)


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


def gathered(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts of a file of text, those without anything to work on joined: a file of empty lines has few parts."""
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
            yield part
    if idle:
        yield Part("".join(idle))


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
    end = start + len(piece.strip())
    return Segment(start, end, tokens(text, start, end), is_tokenized=is_tokenized)


def tokens(text: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Where special tokens, tags and placeholders stand in a stretch of `text`: a change would break them."""
    if not _TOKEN_STARTS.search(text, start, end):
        return ()
    return tuple(found.span() for found in _TOKENS.finditer(text, start, end))


def joined(*groups: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Stretches of several kinds in one ascending list, without overlaps."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(span for group in groups for span in group):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def as_label(text: str, segment: Segment) -> Segment:
    """The segment of a cell, as a label where it does not end like a sentence."""
    if _SENTENCE_END.search(text, max(segment.start, segment.end - 40), segment.end):
        return segment
    return replace(segment, is_label=True, forbidden=segment.forbidden + ".!?")


def _check_mark(raw: bytes) -> None:
    for mark, name in _OTHER_MARKS.items():
        if raw.startswith(mark):
            raise FormatError(f"the file is {name} (it begins with {mark!r}): convert it to UTF-8")
