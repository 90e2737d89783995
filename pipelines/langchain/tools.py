"""Tool calls: constrains a model to write them, and parses them from its output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from langchain_core.messages import InvalidToolCall, ToolCall
from langchain_core.messages.tool import invalid_tool_call, tool_call

from copyspec.engine.constraints import JSON_STYLE, closed

from .messages import CLOSE, OPEN, Tool

_CALL = re.compile(re.escape(OPEN) + r"\s*(.*?)\s*(?:" + re.escape(CLOSE) + r"|\Z)", re.DOTALL)
_BARE_BEGINNINGS = ("{", "[")


@dataclass(frozen=True, slots=True)
class Parsed:
    """The text and the tool calls of an output."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    invalid: tuple[InvalidToolCall, ...] = ()


def tool_names(tools: Sequence[Tool]) -> list[str]:
    """Return the names of the tools."""
    return [name for tool in tools if (name := tool_name(tool)) is not None]


def tool_name(tool: Tool) -> str | None:
    """Return the name of a tool; None if it has none."""
    function = tool.get("function")
    return str(function["name"]) if isinstance(function, Mapping) else None


@dataclass(frozen=True, slots=True)
class Forced:
    """The beginning of an answer that must be a call, and the JSON schema of the rest; None: unconstrained."""

    beginning: str = ""
    schema: Mapping[str, object] | None = None
    is_call: bool = False  # False: the model decides


def forced(choice: object, tools: Sequence[Tool], template: str, *, constrain: bool) -> Forced:
    """Return how `tool_choice` constrains the answer.

    `choice`, as `bind_tools` takes it: None or "auto", "any", "required" or True, the name of a tool, or OpenAI's
    `{"type": "function", "function": {"name": ...}}`. `constrain`: use the schemas of the tools. Raises ValueError for
    an unknown tool.
    """
    if choice in (None, "auto", "none", False):
        return Forced()
    wanted = _chosen(choice, tools)
    opening = f"{OPEN}\n" if OPEN in template else ""
    arguments = "arguments" if OPEN in template or '"parameters": dictionary' not in template else "parameters"
    if constrain:
        chosen = [tool for tool in tools if wanted in (None, tool_name(tool))]
        return Forced(opening, call_schema(chosen, arguments), True)
    return Forced(opening + (f'{{"name": "{wanted}", "{arguments}": ' if wanted else '{"name": "'), None, True)


def call_schema(tools: Sequence[Tool], arguments: str) -> dict[str, object]:
    """The JSON schema of a call of one of the tools. Arguments that a tool does not declare are not allowed."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool_name(tool)}, arguments: closed(_parameters(tool))},
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def call_grammar(tools: Sequence[Tool], template: str, special: Sequence[int]) -> str | None:
    """A grammar (llguidance's form of Lark) of any UTF-8 text with calls between tags, in which a call that the model
    begins must match one of the tools. `special`: ids of tokens that are not text. None if the template has no tags for
    calls, since then any answer may be a bare JSON object.
    """
    if OPEN not in template or not tools:
        return None
    schema = json.dumps({"x-guidance": JSON_STYLE, **call_schema(tools, "arguments")})
    other = "".join(f" | passed_{id}" for id in special)
    passed = "".join(f"passed_{id}: TEXT? <[{id}]>\n" for id in special)
    return (
        f"start: (called{other})* rest?\nrest: TEXT\ncalled: opened SPACE call SPACE {json.dumps(CLOSE)}\n"
        f"opened[lazy]: TEXT {json.dumps(OPEN)}\n{passed}TEXT: /(?s:.*)/\nSPACE: /[ \\n]{{0,2}}/\n"
        f"call: %json {schema}\n"
    )


def _parameters(tool: Tool) -> object:
    function = tool.get("function")
    found = function.get("parameters") if isinstance(function, Mapping) else None
    return found or {"type": "object", "properties": {}}


def _chosen(choice: object, tools: Sequence[Tool]) -> str | None:
    """The name of the tool that must be called; None: any of them."""
    names = tool_names(tools)
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else choice
    if choice in ("any", "required", True):
        wanted = names[0] if len(names) == 1 else None
    elif choice in names:
        wanted = str(choice)
    else:
        raise ValueError(f"tool_choice={choice!r} is none of the tools: {', '.join(names) or 'there are none'}")
    if not names:
        raise ValueError(f"tool_choice={choice!r} needs tools")
    return wanted


def may_begin_call(text: str) -> bool:
    """Whether `text` is or may become the beginning of a call, so that a stream must hold it back."""
    text = text.lstrip()
    return not text or text.startswith(_BARE_BEGINNINGS) or OPEN in text or OPEN.startswith(text)


def parse(text: str, tools: Sequence[Tool], *, is_rest: bool = False) -> Parsed:
    """Split an output into tool calls and text.

    Calls between tags are found anywhere; without tags the whole output must be a call of one of the tools, or a list
    of such calls. `is_rest`: some text before this one has been shown already.
    """
    if OPEN in text:
        calls: list[ToolCall] = []
        invalid: list[InvalidToolCall] = []
        for body in _CALL.findall(text):
            found = _read(body)
            if found:
                calls.extend(found)
            else:
                error = "no JSON object with a name and arguments"
                invalid.append(invalid_tool_call(name=None, args=body, id=_new_id(), error=error))
        left = _CALL.sub("", text).rstrip()
        if not is_rest and text.lstrip().startswith(OPEN):
            left = left.lstrip()
        return Parsed(left, tuple(calls), tuple(invalid))
    if not is_rest and text.lstrip().startswith(_BARE_BEGINNINGS):
        found = _read(text.strip())
        if found and all(call["name"] in tool_names(tools) for call in found):
            return Parsed("", tuple(found))
    return Parsed(text)


def _read(body: str) -> list[ToolCall]:
    """Parse the calls in the JSON value at the beginning of `body`; empty if it is anything else."""
    try:
        value, _ = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError):  # thousands of digits, or of nested brackets
        return []
    calls = [_call(each) for each in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if None not in calls else []


def _call(value: object) -> ToolCall | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as JSON inside a string
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return tool_call(name=value["name"], args=arguments, id=_new_id())


def _new_id() -> str:
    return f"call_{uuid4().hex[:24]}"
