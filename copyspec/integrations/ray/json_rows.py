"""Rows of JSON lines that are written as they were read: only the columns of a task change."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from copyspec.checks import plain_value, shown

_MAX_DIGITS = 4_000  # of an integer; Python reads no longer ones
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)  # finds the ends of numbers without converting them

Row = dict[str, Any]


class LineRow(dict[str, Any]):
    """A row with the line that it was read from."""

    def __init__(self, line: str) -> None:
        """Raises ValueError unless the line is a JSON object with members, and RecursionError for one too deep."""
        row = json.loads(line, parse_int=_integer)
        if not isinstance(row, dict) or not row:
            raise ValueError(f"a line of JSON must be an object with columns, got {shown(row)}")
        super().__init__(row)
        self.line = line


def written(row: Row, changes: Mapping[str, object], without: str) -> str:
    """The row as a line of JSON with the values of `changes` and without a column. The others of a LineRow stay byte
    for byte: numbers of any precision, repeated names, white space."""
    if not isinstance(row, LineRow):
        return dumped({name: value for name, value in {**row, **changes}.items() if name != without})
    line, members = row.line, _members(row.line)
    begin, end = members[0][1], members[-1][3]
    text, separator, earlier = "", ", ", None
    for name, start, value, stop in members:
        if earlier is not None:
            separator = line[earlier:start]
        earlier = stop
        if name != without:
            text += (separator if text else "") + line[start:value]
            text += dumped(changes[name]) if name in changes else line[value:stop]
    for name, added in changes.items():
        if name not in row:
            text += f"{separator if text else ''}{json.dumps(name)}: {dumped(added)}"
    return line[:begin] + text + line[end:]


def dumped(value: object) -> str:
    """A value as JSON. What JSON lacks is written as in protobuf's mapping: bytes in base64, times as in ISO 8601,
    numbers that are not finite by name; decimal numbers as text, with all digits."""
    return json.dumps(_with_json_types(value), allow_nan=False)


def _with_json_types(value: object) -> object:
    value = plain_value(value)
    if isinstance(value, Mapping):
        return {str(key): _with_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_json_types(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _members(line: str) -> list[tuple[str, int, int, int]]:
    """Of each member of the object in `line`: its name, and where it begins, where its value does, and its end."""
    members: list[tuple[str, int, int, int]] = []
    at = _after_space(line, _after_space(line, 0) + 1)
    while line[at] != "}":
        if members:
            at = _after_space(line, at + 1)
        name, end = _DECODER.raw_decode(line, at)
        value = _after_space(line, _after_space(line, end) + 1)
        _, stop = _DECODER.raw_decode(line, value)
        members.append((name, at, value, stop))
        at = _after_space(line, stop)
    return members


def _after_space(line: str, at: int) -> int:
    space = _SPACE.match(line, at)
    assert space is not None
    return space.end()


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
