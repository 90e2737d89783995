"""Checks the header of a GGUF file before a library reads it: its lengths, its layers, and where its tensors are.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The readers of gguf and transformers trust the
header: a length may keep them busy forever, and an offset may lead to any bytes of the file.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from copyspec.models.errors import FileError
from copyspec.models.files import MAX_PIECE, MAX_REPEATS, MAX_TEMPLATE

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_BYTES = 64 << 20  # of the header; one with a vocabulary of 260,000 tokens and its merges has about 20 MB
_MAX_NAME = 65_535  # bytes of a key, by the format; names of tensors are shorter
_MAX_STRING = 16 << 20  # bytes of a setting
_MAX_ITEMS = 1_500_000  # of all lists together: the largest vocabularies have 260,000 tokens and twice as many merges
_MAX_SETTINGS, _MAX_TENSORS = 10_000, 100_000  # known files have up to a hundred, and some thousands
"""The libraries make several objects of each, and a list of each byte of a setting."""
_ALIGNMENT = 32  # of tensors, where the header names no other
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_ARCHITECTURE = re.compile(rb"[A-Za-z0-9_-]+")  # it is the first part of keys
_LAYERS = re.compile(r"[^.]+\.block_count")
_TOKENIZER, _TEMPLATE = "tokenizer.", "tokenizer.chat_template"  # other lists have an item for each layer at most
_LAYER = re.compile(r"(enc\.|dec\.)?blk\.(\d{1,9})\.")

Value = bool | int | float | bytes | None
"""A setting of the header; None stands for a list."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    kind: int  # of its numbers, a GGMLQuantizationType
    offset: int  # from the beginning of the tensors


def read_header(file: Path) -> dict[str, Value]:
    """The settings in the header.

    Raises FileError if the header is damaged, if its number of layers is not that of the layers in the file, or if the
    tensors do not follow each other to the end of the file.
    """
    size = os.stat(file).st_size
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            reader = _Reader(content)
            settings, tensors = reader.settings(), reader.tensors()
        except (struct.error, OverflowError, UnicodeDecodeError) as error:
            raise FileError("its header is damaged or cut off") from error
        end = reader.place
    parts = settings.get("split.count")
    if type(parts) is int and parts > 1:
        raise FileError(f"it is one of {parts} parts; join them with llama.cpp's llama-gguf-split --merge")
    architecture = settings.get("general.architecture")
    if not isinstance(architecture, bytes) or not _ARCHITECTURE.fullmatch(architecture):
        raise FileError("its header has no general.architecture")
    _check_layers(settings, tensors)
    template = settings.get(_TEMPLATE)
    if isinstance(template, bytes) and len(template) > MAX_TEMPLATE:
        raise FileError(f"its {_TEMPLATE} has more than {MAX_TEMPLATE >> 20} MB")
    _check_places(tensors, end, size, settings.get("general.alignment", _ALIGNMENT))
    return settings


class _Reader:
    """Reads the header from the beginning. Raises struct.error at the end of the file."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self.place = content, len(MAGIC)
        (version,) = struct.unpack_from("<I", content, self.place)
        self._order = "<" if version & 0xFFFF else ">"  # files for machines that begin with the highest byte
        if (version := self._number("I")) not in _VERSIONS:
            raise FileError(f"it has version {version} of the format; {_VERSIONS[0]} and {_VERSIONS[1]} can be read")
        self._tensors, self._settings = self._number("Q"), self._number("Q")
        self._items, self._longest = 0, 0  # of all lists so far; the most that the next may have

    def settings(self) -> dict[str, Value]:
        settings = dict[str, Value]()
        for _ in range(self._settings):
            name = self._name()
            if name in settings:
                raise FileError(f"its header has {name[:100]!r} twice")
            if len(settings) == _MAX_SETTINGS:
                raise FileError(f"its header has more than {_MAX_SETTINGS:,} settings")
            self._longest = _MAX_ITEMS if name.startswith(_TOKENIZER) else MAX_REPEATS
            settings[name] = self._value(self._number("I"))
        return settings

    def tensors(self) -> list[_Tensor]:
        tensors: list[_Tensor] = []
        for _ in range(self._tensors):
            name, dimensions = self._name(), self._number("I")
            if len(tensors) == _MAX_TENSORS:
                raise FileError(f"its header has more than {_MAX_TENSORS:,} tensors")
            if dimensions > _MAX_DIMENSIONS:
                raise FileError(f"its tensor {name[:100]!r} has {dimensions} dimensions")
            shape = tuple(self._number("Q") for _ in range(dimensions))
            tensors.append(_Tensor(name, shape, self._number("I"), self._number("Q")))
        return tensors

    def _value(self, kind: int, depth: int = 0) -> Value:
        if depth > _MAX_DIMENSIONS:
            raise FileError("its header has lists in lists in lists")
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            (value,) = struct.unpack_from(self._order + _SCALARS[kind], self._content, self.place)
            self.place += struct.calcsize(_SCALARS[kind])
            return value  # type: ignore[no-any-return]
        if kind != _ARRAY:
            raise FileError(f"its header has a value of the unknown type {kind}")
        inner, length = self._number("I"), self._number("Q")
        self._items += length
        if length > len(self._content):
            raise struct.error
        if length > self._longest or self._items > _MAX_ITEMS:
            raise FileError(f"its header has a list of {length:,} items, more than it may have")
        if inner in (_STRING, _ARRAY):
            for _ in range(length):
                value = self._value(inner, depth + 1)
                if isinstance(value, bytes) and len(value) > MAX_PIECE:  # a token
                    raise FileError(f"its header has a list with a text of {len(value):,} bytes")
        elif inner in _SCALARS:
            self._skip(length * struct.calcsize(_SCALARS[inner]))
        else:
            raise FileError(f"its header has a list of the unknown type {inner}")
        return None

    def _number(self, kind: str) -> int:
        (value,) = struct.unpack_from(self._order + kind, self._content, self.place)
        self.place += struct.calcsize(kind)
        if self.place > _MAX_BYTES:
            raise FileError(f"its header has more than {_MAX_BYTES >> 20} MB")
        return int(value)

    def _name(self) -> str:
        return self._string(_MAX_NAME).decode()

    def _string(self, limit: int = _MAX_STRING) -> bytes:
        length = self._number("Q")
        if limit < length <= len(self._content):  # more is damage
            raise FileError(f"its header has a text of {length:,} bytes, more than {limit:,}")
        start = self.place
        self._skip(length)
        return self._content[start : self.place]

    def _skip(self, length: int) -> None:
        self.place += length
        if self.place > len(self._content):
            raise struct.error


def _check_layers(settings: dict[str, Value], tensors: list[_Tensor]) -> None:
    """transformers leaves out layers beyond the number in the header, and makes up missing ones with random weights, a
    billion of them if it is told so. It reads that number from the key of any architecture it knows."""
    stacks = dict[str, set[int]]()  # an encoder and a decoder count their layers apart
    for tensor in tensors:
        if match := _LAYER.match(tensor.name):
            stacks.setdefault(match[1] or "", set()).add(int(match[2]))
    for stack in stacks.values():
        if len(stack) > MAX_REPEATS:
            raise FileError(f"it holds {len(stack):,} layers, more than {MAX_REPEATS:,}")
        gap = next(number for number in range(len(stack) + 1) if number not in stack)
        if gap < len(stack):
            raise FileError(f"it holds layer {max(stack)}, but not layer {gap}")
    counts = [len(stack) for stack in stacks.values()] or [0]
    for key in filter(_LAYERS.fullmatch, settings):
        named = settings[key]
        if type(named) is not int or named not in counts:
            count = named if type(named) is int else "no number of"
            raise FileError(f"its header says that it has {count} layers, and it holds {counts[0]} ({key[:100]})")


def _check_places(tensors: list[_Tensor], end: int, size: int, alignment: Value) -> None:
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise FileError("its general.alignment is not a power of two")
    place = start = _aligned(end, alignment)
    for tensor, length in _lengths(tensors):
        if start + tensor.offset != place:
            raise FileError(
                f"its header places {tensor.name[:100]!r} at {tensor.offset}, and the tensor before ends at "
                f"{place - start}: it is damaged"
            )
        place = _aligned(end := place + length, alignment)
    if not end <= size <= place:  # the last tensor may be of a type that is too short
        raise FileError(f"its tensors end at {end:,}, and the file at {size:,} bytes: it is damaged or cut off")


def _lengths(tensors: list[_Tensor]) -> Iterator[tuple[_Tensor, int]]:
    """Yield the tensors and their lengths in bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    sizes = {int(kind): GGML_QUANT_SIZES[kind] for kind in GGMLQuantizationType if kind in GGML_QUANT_SIZES}
    seen = set[str]()
    for tensor in tensors:
        if tensor.kind not in sizes:
            raise FileError(f"its tensor {tensor.name[:100]!r} has the unknown type {tensor.kind}")
        if tensor.name in seen:
            raise FileError(f"it holds {tensor.name[:100]!r} twice")
        seen.add(tensor.name)
        block, length = sizes[tensor.kind]
        numbers = math.prod(tensor.shape)
        if numbers == 0 or not tensor.shape or tensor.shape[0] % block:
            raise FileError(
                f"its tensor {tensor.name[:100]!r} has the shape {list(tensor.shape)}, which it cannot have"
            )
        yield tensor, numbers // block * length


def _aligned(place: int, alignment: int) -> int:
    return -(-place // alignment) * alignment
