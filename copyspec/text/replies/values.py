"""Values of calls' arguments, as models write them: JSON, or literals of Python."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from math import isfinite

from copyspec.text.replies.marks import BEFORE, shown
from copyspec.text.replies.tools import MAX_DEPTH, types_of

SPACE = re.compile(r"\s*")
FENCE = re.compile(r"```\w*[ \t]*\n?")
NOTHING = {"none": None, "null": None, "true": True, "false": False}


class CallError(ValueError):
    """A call that cannot be read."""

    is_cut = False
    """Whether the text ends inside it: all of the rest belongs to it."""


class CutCallError(CallError):
    """A call that is not complete."""

    is_cut = True


def json_value(text: str, at: int) -> tuple[object, int]:
    """The JSON value at `at`, after white space and the beginning of a fence, and where it ends, after that of the
    fence. Raises CallError."""
    at = after(FENCE, text, after(SPACE, text, at))
    at = after(SPACE, text, at)
    try:
        value, end = DECODER.raw_decode(text, at)
        if BEFORE in (body := text[at:end]):  # a string of the value holds a control token
            value = DECODER.decode(shown(body))
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") or not text[error.pos :].strip():
            raise CutCallError("it is not complete: a limit may have cut it") from None
        raise CallError("no JSON object with a name and arguments") from None
    except (ValueError, RecursionError):  # thousands of digits, or of nested brackets
        raise CallError("no JSON object with a name and arguments") from None
    closing = after(SPACE, text, end)
    return value, closing + 3 if text.startswith("```", closing) else end


DECODER = json.JSONDecoder(strict=False)  # models write line ends inside strings as they are


def arguments_of(value: object) -> Mapping[str, object]:
    """The arguments of a call, which some models write as JSON inside a string. Raises CallError."""
    if isinstance(value, str):
        try:
            value = DECODER.decode(value) if value.strip() else {}
        except (ValueError, RecursionError):
            raise CallError("arguments that are no JSON object") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CallError("arguments that are no JSON object")
    return {str(key): as_json(item) for key, item in value.items()}


def typed(text: str, schema: object) -> object:
    """An argument that was written as text, as its schema wants it."""
    kinds = types_of(schema)
    if not kinds or "string" in kinds:
        return None if text.strip() == "null" and "null" in kinds else text
    word = text.strip()
    if word.lower() in NOTHING:
        return NOTHING[word.lower()]
    for read in (DECODER.decode, ast.literal_eval):
        try:
            value = as_json(read(word))
            return int(value) if kinds == {"integer"} and isinstance(value, float) and value.is_integer() else value
        except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def as_json(value: object, depth: int = 0) -> object:
    """A value of JSON, with tuples as lists. Raises CallError for any other: a set, bytes, an infinite number."""
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value)):
        return value
    if depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        return [as_json(item, depth + 1) for item in value]
    if depth < MAX_DEPTH and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: as_json(item, depth + 1) for key, item in value.items()}
    raise CallError("an argument that is no JSON")


def literal(node: ast.expr) -> object:
    """The value of a literal, with JSON's constants, too."""
    if isinstance(node, ast.Name) and node.id.lower() in NOTHING:
        return NOTHING[node.id.lower()]
    if isinstance(node, ast.Dict):
        return {literal(key): literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [literal(item) for item in node.elts]
    return ast.literal_eval(node)


def after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where `pattern` ends that begins at `at`; `at` if it does not."""
    match = pattern.match(text, at)
    return at if match is None else match.end()
