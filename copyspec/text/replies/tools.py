"""What tools declare, in OpenAI's format: their names, and the JSON schemas of their arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Tool = Mapping[str, object]
"""A tool in OpenAI's format, as chat templates take it."""

MAX_DEPTH = 64  # of lists and objects in an argument, and of references in a schema
DEFINITIONS = ("$defs", "definitions")  # of a schema, which its parts refer to
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (float,), "null": (type(None),),
    "object": (dict,), "array": (list, tuple),
}  # fmt: skip


def tool_names(tools: Sequence[Tool]) -> list[str]:
    """The names of the tools."""
    return [name for tool in tools if (name := tool_name(tool)) is not None]


def tool_name(tool: Tool) -> str | None:
    """The name of a tool; None if it has none."""
    function = tool.get("function")
    return str(function["name"]) if isinstance(function, Mapping) and "name" in function else None


def named_tool(text: str, tools: Sequence[Tool]) -> str | None:
    """The tool whose name comes first in the text of a call that cannot be read."""
    places = {
        name: match.start() for name in tool_names(tools) if (match := re.search(rf"\b{re.escape(name)}\b", text))
    }
    return min(places, key=lambda name: places[name], default=None)


def parameters_of(tool: Tool) -> Mapping[str, object]:
    """The JSON schema of a tool's arguments."""
    function = tool.get("function")
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(schema, Mapping) or not schema:
        return {"type": "object", "properties": {}}
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}  # whatever else it allows


def completed(tool: Tool) -> Tool:
    """The tool with every field that templates may read, and callers may leave out: descriptions, and parameters."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    parameters = parameters_of(tool)
    declared = parameters.get("properties")
    fields = {
        key: {"description": "", **schema} if isinstance(schema, Mapping) else schema
        for key, schema in (declared.items() if isinstance(declared, Mapping) else ())
    }
    return {**tool, "function": {"description": "", **function, "parameters": {**parameters, "properties": fields}}}


def properties(name: str, tools: Sequence[Tool]) -> Mapping[str, object]:
    """The JSON schemas of the arguments of the tool with this name; empty if they are not known."""
    schema = next((parameters_of(tool) for tool in tools if tool_name(tool) == name), {})
    return properties_of(schema)


def properties_of(parameters: Mapping[str, object]) -> dict[str, object]:
    """The JSON schemas of a tool's arguments by name, each with the definitions that it may refer to."""
    declared = parameters.get("properties")
    definitions = {name: parameters[name] for name in DEFINITIONS if name in parameters}
    return {
        str(key): {**schema, **definitions} if isinstance(schema, Mapping) else schema
        for key, schema in (declared.items() if isinstance(declared, Mapping) else ())
    }


def resolved(schema: object, root: object) -> object:
    """What a schema says itself, or the definition in `root` that it refers to, alone or in an `allOf`."""
    for _ in range(MAX_DEPTH):
        parts = schema.get("allOf") if isinstance(schema, Mapping) and "$ref" not in schema else None
        if isinstance(parts, list) and len(parts) == 1:
            schema = parts[0]
            continue
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        named = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
        if named is None:
            return schema
        definitions = root.get(named[1]) if isinstance(root, Mapping) else None
        schema = definitions.get(named[2]) if isinstance(definitions, Mapping) else None
    return None


def types_of(schema: object, root: object = None, depth: int = 0) -> set[str]:
    """The JSON types that a schema names; empty if it names none. `root`: the schema that it is a part of."""
    root = schema if root is None else root
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth == MAX_DEPTH:
        return set()
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else set[str]()
    kinds |= {name for name in kind if isinstance(name, str)} if isinstance(kind, list) else set()
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        for option in options if isinstance(options, list) else ():
            kinds |= types_of(option, root, depth + 1)
    if not kinds and isinstance(parts := schema.get("allOf"), list):  # of several
        kinds = next(filter(None, (types_of(part, root, depth + 1) for part in parts)), kinds)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not kinds and isinstance(values, list):
        kinds = {name for value in values for name, types in _TYPES.items() if type(value) in types}
    return kinds
