"""Reads and rewrites documents that are zip archives of XML (.docx, .odt), in bounded memory; other files are copied
as is."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from itertools import pairwise
from xml.parsers import expat

from ..documents import FormatError

_SIZE_LIMIT = 64 << 20
"""Maximum bytes of unpacked XML, counted while unpacking, since headers may lie. Written documents are smaller."""
_RATIO_LIMIT, _RATIO_FREE = 100, 8 << 20
"""Maximum unpacked bytes per byte of the file, above _RATIO_FREE; Word's own XML compresses ten to twenty times."""
_CHUNK = 1 << 16
_UTF8 = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml(?![^>]*encoding\s*=\s*[\"'](?!utf-8|us-ascii))|<[^?])", re.I)
"""Begins XML in UTF-8."""
_IS_UTF8 = 1 << 11  # flag of a name (APPNOTE 4.4.4); `zipfile` reads others as cp437, and writes UTF-8
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods of documents (ECMA-376 part 2, annex C); others cannot be unpacked in small steps."""
_BROKEN = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    RuntimeError,
    NotImplementedError,
    EOFError,
    OSError,
    ValueError,
    IndexError,
)


def unpacked(data: bytes, choose: Callable[[list[str]], list[str]], kind: str, hint: str) -> dict[str, bytes]:
    """Return the files of an archive that `choose` selects from their names, in its order. Raises FormatError if the
    data is not an archive. `kind` and `hint`, for the message: what it should be, and what it may be instead."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise FormatError("the archive holds two files of the same name, which no word processor writes")
            left = limit = min(_SIZE_LIMIT, max(_RATIO_FREE, _RATIO_LIMIT * len(data)))
            files = {}
            for name in choose(names):
                files[name] = _file(archive, name, left, limit)
                left -= len(files[name])
            return files
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"not a readable {kind}: {error}; {hint}") from None


def repacked(data: bytes, new: dict[str, bytes]) -> bytes:
    """Return the archive with some files replaced. The bytes of the others are copied without unpacking them."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as copy:
            copy.comment = archive.comment
            listed = sorted(archive.infolist(), key=lambda info: info.header_offset)
            borders = [*(info.header_offset for info in listed), archive.start_dir]
            for info, (start, end) in zip(listed, pairwise(borders), strict=True):
                if not (info.filename.isascii() or info.flag_bits & _IS_UTF8):
                    raise FormatError(
                        f"the name {info.filename!r} in the archive is not marked as UTF-8, and would change: save the "
                        "document in a word processor first"
                    )
                if info.filename in new:
                    copy.writestr(info, new[info.filename], compress_type=info.compress_type)
                    continue
                if not 0 <= start + info.compress_size <= end <= len(data):
                    raise FormatError(
                        f"files of the archive overlap at {info.filename!r}: no word processor writes that"
                    )
                info.header_offset = out.tell()
                out.write(data[start:end])
                copy.filelist.append(info)
                copy.start_dir = out.tell()
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"the document cannot be packed again: {error}") from None
    return out.getvalue()


def xml_parser(xml: bytes) -> expat.XMLParserType:
    """A parser for `parse`; its handlers get names with their namespaces. Raises FormatError for XML that is not UTF-8,
    in which corrections are written."""
    if not _UTF8.match(xml):
        raise FormatError("the document's XML is not UTF-8, or encrypted: save it without a password")
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = _refused
    return parser


def parse(parser: expat.XMLParserType, xml: bytes) -> None:
    """Parse XML. Raises FormatError if it is malformed or has a document type."""
    try:
        parser.Parse(xml, True)
    except expat.ExpatError as error:
        raise FormatError(f"the document's XML is malformed: {error}") from None


def _refused(*_: object) -> None:
    """Refuse a document type, which can define entities that grow without bounds or refer to other files."""
    raise FormatError("the document's XML has a document type, which no word processor writes")


def _file(archive: zipfile.ZipFile, name: str, left: int, limit: int) -> bytes:
    """Unpack a file step by step. Raises FormatError if it is longer than what is left of the limit."""
    info = archive.getinfo(name)
    if info.compress_type not in _PACKINGS:
        raise FormatError(f"{name!r} is packed by method {info.compress_type}: documents are deflated or stored")
    pieces, size = [], 0
    with archive.open(info) as file:
        while piece := file.read(_CHUNK):
            size += len(piece)
            if size > left:
                raise FormatError(
                    f"the text up to {name!r} unpacks to more than {limit >> 20} MB: a document's text is "
                    f"{_SIZE_LIMIT >> 20} MB at most, and {_RATIO_LIMIT} times its file where that is more than "
                    f"{_RATIO_FREE >> 20} MB"
                )
            pieces.append(piece)
    return b"".join(pieces)
