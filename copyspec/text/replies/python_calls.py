"""Calls that are written as Python writes them, with literals as arguments."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword

from copyspec.text.replies.tools import Tool, properties, tool_names
from copyspec.text.replies.values import CallError, as_json, literal

_PLACEHOLDER = "a_name_that_is_none_in_python_"


def python_calls(text: str, tools: Sequence[Tool]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The names and arguments of the calls of an expression. Names that Python does not allow, such as `get-weather` or
    the argument `from`, are replaced while it is parsed. Raises CallError."""
    names: dict[str, str] = {}
    for name in tool_names(tools):
        if not _is_name(name.replace(".", "_")):
            names[other := f"{_PLACEHOLDER}{len(names)}_"] = name
            text = re.sub(rf"(^|[\[,\s]){re.escape(name)}\(", rf"\g<1>{other}(", text)
        for argument in properties(name, tools):
            if not _is_name(argument) and argument not in names.values():
                names[other := f"{_PLACEHOLDER}{len(names)}_"] = argument
                text = re.sub(rf"([(,]\s*){re.escape(argument)}(?=\s*=)", rf"\g<1>{other}", text)
    for call in _plain_calls(text):
        written = json.dumps(call)
        for other, name in names.items():  # also where a text of an argument looks like a call
            written = written.replace(other, json.dumps(name)[1:-1])
        name, arguments = json.loads(written)
        yield name, arguments


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


_STRING = re.compile(
    r"""("{3}|'{3})(?:[^\\]|\\.)*?(?:\1|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|'(?:[^'\\]|\\.)*(?:'|\\?\Z)|(?<![\w.])0+(?=[1-9])""",
    re.DOTALL,
)
"""A string, or the zeros that a number begins with."""


def _mended(text: str) -> str:
    """Calls without what Python does not read: line ends inside strings as they are, and zeros before numbers."""
    return _STRING.sub(
        lambda match: match[0] if match[1] else match[0].strip("0").replace("\r", "\\r").replace("\n", "\\n"), text
    )


def _plain_calls(text: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        try:
            body = ast.parse(text, mode="exec").body
        except SyntaxError:
            body = ast.parse(_mended(text), mode="exec").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise CallError("no call") from None
    nodes = [statement.value if isinstance(statement, ast.Expr) else statement for statement in body]
    if len(nodes) == 1 and isinstance(nodes[0], (ast.List, ast.Tuple)):
        nodes = list(nodes[0].elts)
    if not nodes:
        raise CallError("no call")
    for node in nodes:
        if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
            raise CallError("no call with named arguments")
        try:
            values = {str(keyword.arg): as_json(literal(keyword.value)) for keyword in node.keywords}
            name = ast.unparse(node.func)
        except (TypeError, ValueError, RecursionError, MemoryError):
            raise CallError("an argument that is no literal") from None
        yield name, values
