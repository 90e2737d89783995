"""The bytes that a token stands for, read from its name in the vocabulary."""

from __future__ import annotations

import re

_SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]

# Byte-level vocabularies write the bytes that are no visible characters of Latin-1 as characters from U+0100 on; those
# of single bytes (ByT5) write each byte as its own character.
_BYTES = {chr(byte): byte for byte in range(256)} | {chr(0x100 + number): byte for number, byte in enumerate(_HIDDEN)}


def piece_bytes(piece: object) -> bytes | None:
    """The bytes of a token by its name: "<0xC3>", a name in a byte-level vocabulary, or bytes themselves; None if it is
    none of these."""
    if isinstance(piece, bytes):
        return piece
    if not isinstance(piece, str):
        return None
    if match := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece):
        return bytes.fromhex(match[1])
    return bytes(_BYTES[sign] for sign in piece) if all(sign in _BYTES for sign in piece) else None
