"""Documents that are zip archives (.docx, .odt): unpacked in bounded memory, packed again with all other bytes kept."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from itertools import pairwise

from ..documents import FormatError

_SIZE_LIMIT = 64 << 20
"""Bytes of XML after unpacking, counted as they come: a header may say less. No person writes more."""
_RATIO_LIMIT, _RATIO_FREE = 100, 8 << 20
"""Bytes after unpacking for each byte of the file, above so many: Word's own XML packs ten to twenty to one."""
_CHUNK = 1 << 16
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""What documents are packed with (ECMA-376 part 2, annex C); others do not unpack in small steps."""
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
    """The files of an archive that `choose` takes from their names, in its order. Raises FormatError for what is none.

    `kind`: what the archive should be, `hint`: what it may be instead; for people."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise FormatError("the archive holds two files of the same name, which no word processor writes")
            left = min(_SIZE_LIMIT, max(_RATIO_FREE, _RATIO_LIMIT * len(data)))
            found = {}
            for name in choose(names):
                found[name] = _file(archive, name, left)
                left -= len(found[name])
            return found
    except FormatError:
        raise
    except _BROKEN as error:
        raise FormatError(f"no {kind}: {error}; {hint}") from None


def repacked(data: bytes, new: dict[str, bytes]) -> bytes:
    """The archive with some of its files replaced. The others are not even unpacked: their bytes are copied."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as copy:
            copy.comment = archive.comment
            listed = sorted(archive.infolist(), key=lambda info: info.header_offset)
            borders = [*(info.header_offset for info in listed), archive.start_dir]
            for info, (start, end) in zip(listed, pairwise(borders), strict=True):
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


def _file(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A file of the archive, unpacked step by step. Raises FormatError where it is longer than `limit`."""
    info = archive.getinfo(name)
    if info.compress_type not in _PACKINGS:
        raise FormatError(f"{name!r} is packed by method {info.compress_type}: documents are deflated or stored")
    pieces, size = [], 0
    with archive.open(info) as file:
        while piece := file.read(_CHUNK):
            size += len(piece)
            if size > limit:
                raise FormatError(
                    f"{name!r} unpacks to more than {limit >> 20} MB: a document's text is {_SIZE_LIMIT >> 20} MB at "
                    f"most, and {_RATIO_LIMIT} times its file where that is more than {_RATIO_FREE >> 20} MB"
                )
            pieces.append(piece)
    return b"".join(pieces)
