"""Whether an output may, or must, be a call of a tool, and how that is brought about."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from copyspec.common.checks import brief
from copyspec.engine.logits.call_grammars import call_schema, can_be_listed
from copyspec.engine.logits.json_schemas import why_no_schema
from copyspec.text.codec import Codec, Encoded
from copyspec.text.replies.calls import JsonCalls, NamedCalls, PythonCalls, TaggedCalls
from copyspec.text.replies.marks import shown
from copyspec.text.replies.tools import Tool, tool_name, tool_names

if TYPE_CHECKING:
    from copyspec.engine.asking.call_options import CallOptions
    from copyspec.text.replies.reader import Reply

logger = logging.getLogger(__name__)

_FREE = (None, "auto", "none", False)
_ANY = ("any", "required", True)


@dataclass(frozen=True, slots=True)
class Calling:
    """How one output may call tools."""

    wanted: Sequence[Tool] = ()
    """Those that it may call."""
    is_forced: bool = False
    by_grammar: bool = False
    """Whether a grammar holds its calls to the tools' schemas."""
    beginning: str = ""
    """Marked text that begins a call which must be one. It goes into the prompt, where no thought may come first."""


NO_CALLS = Calling()


def chosen(choice: object, tools: Sequence[Tool]) -> Sequence[Tool]:
    """The tools one of which must be called; empty if none must. `choice`: None or "auto", "any", "required" or True,
    the name of a tool, or OpenAI's `{"type": "function", "function": {"name": ...}}`. Raises ValueError for an unknown
    tool."""
    if isinstance(choice, Mapping):
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, Mapping) else choice.get("name", choice)
    if choice in _FREE:
        return ()
    if not tools:
        raise ValueError(f"tool_choice={brief(choice)} needs tools")
    if choice in _ANY:
        return tools
    named = [tool for tool in tools if tool_name(tool) == choice]
    if not named:
        raise ValueError(f"tool_choice={brief(choice)} is none of the tools: {', '.join(tool_names(tools))}")
    return named


def calling(reply: Reply | None, options: CallOptions) -> Calling:
    """How the output of one prompt may call tools. Raises ValueError if it cannot be as the options say."""
    tools = reply.tools if reply is not None else ()
    forced = chosen(options.tool_choice, tools)
    if reply is None or not tools:
        return NO_CALLS
    wanted = forced or tools
    choice = Calling(wanted, bool(forced))
    if options.is_constrained and (forced or options.strict):
        reason = f"tool_choice={brief(options.tool_choice)}" if forced else "strict=True"
        raise ValueError(
            f"{reason} constrains the output to a call, and another constraint is given: leave one of both out"
        )
    if options.is_constrained and options.tool_choice in ("none", False):
        return choice
    why = _why_no_grammar(reply, wanted, options)
    if why is None:
        opening = _opening(reply) if forced and not _may_think(reply) else ""
        return replace(choice, by_grammar=True, beginning=opening)
    if options.strict:
        raise ValueError(f"strict=True, and the tools' schemas cannot constrain the call: {why}")
    if options.is_constrained:
        raise ValueError(
            "the whole answer is held to a constraint, and a call cannot be allowed beside it: "
            f'{why}; leave tools out, or tool_choice="none"'
        )
    if options.strict is None:
        logger.info("tool calls are not constrained by the tools' schemas: %s", why)
    if not forced:
        return choice
    if not (beginning := _beginning(reply, wanted)):
        logger.warning(
            "tool_choice=%s is not enforced: the model thinks before it calls, and no grammar holds it to a call",
            brief(options.tool_choice),
        )
    return replace(choice, beginning=beginning)


def _why_no_grammar(reply: Reply, tools: Sequence[Tool], options: CallOptions) -> str | None:
    """Why no grammar can hold calls to the tools' schemas; None if one can."""
    if options.strict is False:
        return "strict=False"
    why = why_no_schema(call_schema(tools, "name", "arguments"), strict=bool(options.strict))
    if why is None and not can_be_listed(reply.format.calls, tools):
        return "its syntax writes arguments otherwise than as JSON, and no grammar for these is known"
    if why is None and options.is_constrained and reply.format.is_harmony:
        return "calls and answers of its format begin in channels of their own"
    return why


def begun(encoded: Encoded, calls: Calling, codec: Codec) -> Encoded:
    """The prompt with the beginning of the call that the output must be."""
    if not calls.beginning or encoded.reply is None:
        return encoded
    ids = codec.encode_rendered(shown(calls.beginning)).ids
    return replace(encoded, ids=[*encoded.ids, *ids], reply=replace(encoded.reply, beginning=calls.beginning))


def _may_think(reply: Reply) -> bool:
    return reply.format.is_harmony or (reply.format.thoughts is not None and (reply.is_thinking or reply.may_think))


def _opening(reply: Reply) -> str:
    """What stands before the value of the first call."""
    syntax = reply.format.calls or JsonCalls()
    opening = "\n".join(filter(None, (syntax.frame.section, syntax.frame.opening)))
    return f"{opening}\n" if opening and isinstance(syntax, JsonCalls) and not syntax.is_list else opening


def _beginning(reply: Reply, tools: Sequence[Tool]) -> str:
    """How a call of one of these tools begins, as far as that is certain."""
    if reply.is_thinking or reply.format.is_harmony:
        return ""
    syntax, opening = reply.format.calls or JsonCalls(), _opening(reply)
    names = tool_names(tools)
    name = names[0] if len(names) == 1 else None
    if isinstance(syntax, JsonCalls):
        bracket = "[" if syntax.is_list else ""
        if not syntax.name:
            return f'{opening}{bracket}{{"' + (f'{name}": ' if name else "")
        begins = f'{opening}{bracket}{{"{syntax.name}": "'
        return begins + (f'{name}", "{syntax.arguments}": ' if name else "")
    if isinstance(syntax, NamedCalls):
        return f"{opening}{syntax.before}{name or ''}"
    if isinstance(syntax, TaggedCalls):
        return f"{opening}{name}{syntax.head}" if name else opening
    return f"{opening}[" if isinstance(syntax, PythonCalls) and syntax.is_list else opening
