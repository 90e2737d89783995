"""Grammars (llguidance's form of Lark) of tool calls and of what a model thinks before it answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Literal

from copyspec.engine.logits.json_schemas import JSON_STYLE, closed, followed
from copyspec.text.replies.calls import BareCalls, CallSyntax, Frame, JsonCalls, NamedCalls, PythonCalls, TaggedCalls
from copyspec.text.replies.marks import BEFORE, PIECE, marked, shown
from copyspec.text.replies.reader import Reply
from copyspec.text.replies.tools import DEFINITIONS, Tool, parameters_of, properties_of, resolved, tool_name, types_of

Forced = Literal["whole", "opened"]
"""A call that the output must be: with its opening, or from its value on."""

BODY = "body"
"""Name of a grammar that another one includes."""

_RULES = "SPACE: /[ \\n]{0,2}/\nTEXT: /(?s:.*)/\n"
_HARMONY_MESSAGES = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokenizer, as grammars need it."""

    id_of: Callable[[str], int | None]
    """The id of an added token by its string; None if it is none."""
    special: Collection[int]
    """The added tokens that llguidance does not match with text."""
    ends: Collection[int]
    """The tokens that end an output."""
    control: Collection[int] = ()
    """The tokens that texts of outputs leave out."""

    def symbol(self, piece: str) -> str:
        """A control token, or text that is perhaps one token of its own."""
        token = self.id_of(shown(piece))
        if piece.startswith(BEFORE) and token is not None:
            return f"<[{token}]>"
        text = _quoted(shown(piece))
        return f"({text} | <[{token}]>)" if token in self.special else text

    def written(self, text: str) -> str:
        """The symbols of a marked text."""
        symbols, end = [], 0
        for match in PIECE.finditer(text):
            if self.id_of(shown(match[0])) is not None:
                symbols += [_quoted(text[end : match.start()])] if match.start() > end else []
                symbols.append(self.symbol(match[0]))
                end = match.end()
        symbols += [_quoted(text[end:])] if text[end:] else []
        return " ".join(symbols) or '""'

    def any_but(self, *others: int) -> str:
        """Any token but these and those that end the output."""
        return f"<[^{','.join(map(str, sorted({*others, *self.ends})))}]>"

    def up_to(self, name: str, piece: str, *, is_text: bool = False) -> tuple[str, str]:
        """A symbol for any text up to a tag, with the tag, and the rules that it needs; their names begin with
        `name`. `is_text`: without control tokens."""
        token, control = self.id_of(shown(piece)), self.control if is_text else ()
        if token is not None and (piece.startswith(BEFORE) or token in self.special):
            return f"{self.any_but(token, *control)}* <[{token}]>", ""
        passed = sorted(set(self.special) - set(self.ends) - set(control))
        others = f"{name}_passed* " if passed else ""
        rules = f"{name}_end[lazy]: TEXT {_quoted(shown(piece))}\n"
        rules += f"{name}_passed: TEXT? <[{','.join(map(str, passed))}]>\n" if passed else ""
        return f"{others}{name}_end", rules


HARMONY = NamedCalls(
    Frame(opening=f"{marked('<|channel|>')}commentary to=functions."),
    between=f"{marked('<|constrain|>')}json{marked('<|message|>')}",
)
"""Calls in OpenAI's harmony format."""


def behind_thought(grammar: str, reply: Reply, tokens: Tokens, *, is_call: bool = False) -> str:
    """The grammar of an output that thinks first, and then follows `grammar`, which is an answer's or, with `is_call`,
    a call's; the same where nothing is thought."""
    before, rules = _thought(reply, tokens, is_call)
    return preceded(grammar, before, rules + _RULES) if before else grammar


def preceded(grammar: str, before: str, rules: str = "") -> str:
    """The grammar of what matches `before`, in the parser's language, and then `grammar`."""
    return _around(f"start: {before} @{BODY}\n{rules}", grammar)


def either(answer: str, call: str) -> str:
    """The grammar of an output that is an answer or a call."""
    return _around(f"start: @{BODY} | @call\n", answer, {"name": "call", "lark_grammar": call})


def _around(outer: str, grammar: str, *others: Mapping[str, str]) -> str:
    """The grammar `outer`, which includes `grammar` as BODY, and others by their names."""
    is_json = grammar.lstrip().startswith("{")
    inner, *included = json.loads(grammar)["grammars"] if is_json else [{"lark_grammar": grammar}]
    name = f"{BODY}_{len(included)}"
    start = {"name": "start", "lark_grammar": outer.replace(f"@{BODY}", f"@{name}")}
    return json.dumps({"grammars": [start, {**inner, "name": name}, *others, *included]})


def _thought(reply: Reply, tokens: Tokens, is_call: bool) -> tuple[str, str]:
    if reply.format.is_harmony:
        ids = [tokens.id_of(token) for token in _HARMONY_MESSAGES]
        if None in ids:
            return "", ""
        channel, message, end, start, constrain = ids
        thought = f'<[{channel}]> "analysis" <[{message}]> {tokens.any_but(end)}* <[{end}]> <[{start}]> "assistant"'  # type: ignore[arg-type]
        final = "" if is_call else f' <[{channel}]> "final" (<[{constrain}]> "json")? <[{message}]>'
        return f"({thought})*{final}", ""
    thoughts = reply.format.thoughts
    if thoughts is None or not (reply.is_thinking or reply.may_think):
        return "", ""
    symbol, rules = tokens.up_to("thought", thoughts.closing)
    if reply.is_thinking:
        return f"{symbol} SPACE", rules
    return f"({tokens.written(thoughts.opening)} {symbol} SPACE)?", rules


def call_grammar(
    syntax: CallSyntax | None,
    tools: Sequence[Tool],
    tokens: Tokens,
    forced: Forced | None = None,
) -> str | None:
    """The grammar of an output in which each call that the model begins matches one of the tools; with `forced`, of an
    output that is one such call, whole, or from its value on. None if calls in this syntax cannot be told from text.

    Raises ValueError for schemas that cannot be followed.
    """
    if not tools:
        return None
    syntax = syntax or JsonCalls()
    rules: list[str] = []
    values = _values(syntax, tools, tokens, rules, is_one=forced is not None)
    frame, gap = syntax.frame, " SPACE " if isinstance(syntax, (JsonCalls, PythonCalls)) else " "
    if forced:
        before = (frame.section, frame.opening) if forced == "whole" else ()
        opening = " SPACE ".join(tokens.written(part) for part in before if part)
        ending = f" SPACE {tokens.written(frame.end)}" if frame.end else ""
        return f"start: {opening}{gap if opening else ''}{values}{ending}\n{''.join(rules)}{_RULES}"
    if not frame.starts or isinstance(syntax, PythonCalls) or syntax is HARMONY:
        return None
    first, *others = [piece for part in (frame.section, frame.opening) for piece in PIECE.findall(part)]
    text, more = tokens.up_to("free", first)
    opened = " ".join([text, *(f"SPACE {tokens.symbol(piece)}" for piece in others)])
    again = f" (SPACE {tokens.written(frame.opening)}{gap}{values})*" if frame.section else ""
    ending = f" SPACE {tokens.written(frame.end)}" if frame.end else ""
    token = tokens.id_of(shown(first))
    is_token = token is not None and (first.startswith(BEFORE) or token in tokens.special)
    rest = f"{tokens.any_but(token)}*" if is_token and token is not None else _rest(tokens)
    return f"start: (called)* {rest}\ncalled: {opened}{gap}{values}{again}{ending}\n{more}{''.join(rules)}{_RULES}"


def _rest(tokens: Tokens) -> str:
    passed = sorted(set(tokens.special) - set(tokens.ends))
    return f"(TEXT? <[{','.join(map(str, passed))}]>)* TEXT?" if passed else "TEXT?"


def _values(syntax: CallSyntax, tools: Sequence[Tool], tokens: Tokens, rules: list[str], *, is_one: bool) -> str:
    """The symbol of a call's value, with what closes it; its rules are appended to `rules`. `is_one`: lists hold one
    call."""
    closing = tokens.written(syntax.frame.closing) if syntax.frame.closing else ""
    closes = f" SPACE {closing}" if closing else ""
    if isinstance(syntax, JsonCalls):
        schema = call_schema(tools, syntax.name, syntax.arguments)
        if syntax.is_list:
            definitions = {name: schema.pop(name) for name in DEFINITIONS if name in schema}
            length = {"minItems": 1, **({"maxItems": 1} if is_one else {})}
            schema = {"type": "array", "items": schema, **length, **definitions}
        rules.append(f"value: %json {_followed(schema)}\n")
        return f"value{closes}"
    calls = []
    for number, tool in enumerate(tools):
        name, parameters = str(tool_name(tool)), parameters_of(tool)
        if isinstance(syntax, NamedCalls):
            rules.append(f"arguments_{number}: %json {_followed(closed(parameters))}\n")
            before = f"{_quoted(syntax.before)} " if syntax.before else ""
            between = "".join(f"{_between(piece, tokens)} SPACE " for piece in PIECE.findall(syntax.between))
            calls.append(f"{before}{_quoted(name)} SPACE {between}arguments_{number}{closes}")
        elif isinstance(syntax, TaggedCalls):
            calls.append(_tagged(syntax, name, parameters, number, tokens, rules) + closes)
        else:
            calls.append(_python(name, parameters, number, rules))
    rules.append("value: " + "\n    | ".join(calls) + "\n")
    if isinstance(syntax, PythonCalls):
        more = "" if is_one else '("," SPACE value)* '
        return f'"[" value {more}"]"' if syntax.is_list else "value"
    return "value"


def call_schema(tools: Sequence[Tool], name: str, arguments: str) -> dict[str, object]:
    """The JSON schema of a call of one of the tools, with these keys (`JsonCalls`). Arguments that a tool does not
    declare are not allowed."""
    calls: list[dict[str, object]] = []
    definitions: dict[str, dict[str, object]] = {}
    for number, tool in enumerate(tools):
        parameters = _renamed(closed(parameters_of(tool)), f"{number}_" if len(tools) > 1 else "")
        for keyword in DEFINITIONS:  # references to them begin at the root
            inner = parameters.get(keyword) if isinstance(parameters, dict) else None
            if isinstance(inner, dict):
                definitions[keyword] = {**definitions.get(keyword, {}), **inner}
        if name:
            properties: dict[str, object] = {name: {"const": tool_name(tool)}, arguments: parameters}
        else:
            properties = {str(tool_name(tool)): parameters}
        calls.append(
            {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **definitions}


def _renamed(schema: object, prefix: str) -> object:
    """A tool's schema whose definitions have names of their own: another tool may have others of the same names."""
    if isinstance(schema, list):
        return [_renamed(part, prefix) for part in schema]
    if not isinstance(schema, dict) or not prefix:
        return schema
    made: dict[str, object] = {}
    for key, value in schema.items():
        if key in DEFINITIONS and isinstance(value, dict):
            made[key] = {f"{prefix}{name}": _renamed(part, prefix) for name, part in value.items()}
        elif key == "$ref" and isinstance(value, str):
            made[key] = re.sub(r"^(#/(?:\$defs|definitions)/)", rf"\g<1>{prefix}", value)
        else:
            made[key] = _renamed(value, prefix)
    return made


def can_be_listed(syntax: CallSyntax | None, tools: Sequence[Tool]) -> bool:
    """Whether the grammar of a syntax that lists arguments knows those of the tools: their schemas are plain objects
    with properties, or have none."""
    if isinstance(syntax, BareCalls):  # whose values are not JSON
        return False
    if not isinstance(syntax, (TaggedCalls, PythonCalls)):
        return True
    for tool in tools:
        schema, name = parameters_of(tool), str(tool_name(tool))
        properties = schema.get("properties")
        is_plain = isinstance(properties, Mapping) and all(isinstance(part, Mapping) for part in properties.values())
        if not is_plain or schema.get("additionalProperties") not in (None, False) or "$ref" in schema:
            return False
        keys = [*name.split("."), *map(str, properties)] if isinstance(properties, Mapping) else []
        if isinstance(syntax, PythonCalls) and not all(key.isidentifier() and not iskeyword(key) for key in keys):
            return False
    return True


def _between(piece: str, tokens: Tokens) -> str:
    """A piece of what stands between the name of a tool and its arguments."""
    if piece == NamedCalls.ID:
        return r"/\w{1,32}/"
    return "/:[0-9]{1,4}/" if re.fullmatch(r":\d+", piece) else tokens.symbol(piece)


def _tagged(
    syntax: TaggedCalls, name: str, parameters: Mapping[str, object], number: int, tokens: Tokens, rules: list[str]
) -> str:
    """A call with its arguments between tags, in the order of the schema."""
    before, pad = (_quoted(pad) + " " if pad else "" for pad in syntax.pads)
    symbols = [_quoted(name), tokens.written(syntax.head)] if syntax.head else [_quoted(name)]
    for place, (key, schema, is_required) in enumerate(_arguments(parameters)):
        rule = f"argument_{number}_{place}"
        named = resolved(schema, schema)
        values = named.get("enum", [named.get("const")]) if isinstance(named, dict) else None
        is_text = "string" in types_of(schema) or not types_of(schema)
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            value = f"({' | '.join(map(_quoted, values))}) {pad}{tokens.written(syntax.value_closing)}"
            more = ""
        elif is_text:
            value, more = tokens.up_to(rule, syntax.value_closing, is_text=True)
        else:
            closing = f"{pad or 'SPACE '}{tokens.written(syntax.value_closing)}"
            value, more = f"{rule}_json {closing}", f"{rule}_json: %json {_followed(closed(schema))}\n"
        key_closing = syntax.data_closing if syntax.data_closing and not is_text else syntax.key_closing
        opened = f"{tokens.written(syntax.key_opening)} {_quoted(key)} {tokens.written(key_closing)}"
        rules.append(f"{rule}: {opened} {before}{value}\n{more}")
        symbols.append(f"SPACE {rule}{'' if is_required else '?'}")
    return " ".join(symbols)


def _python(name: str, parameters: Mapping[str, object], number: int, rules: list[str]) -> str:
    """A call with keywords, in the order of the schema; all are required where none is."""
    arguments = list(_arguments(parameters))
    must = any(is_required for _, _, is_required in arguments)
    symbols: list[str] = []
    for place, (key, schema, is_required) in enumerate(sorted(arguments, key=lambda argument: not argument[2])):
        rule = f"keyword_{number}_{place}"
        rules.append(f"{rule}: {_quoted(key + '=')} %json {_followed(closed(schema))}\n")
        comma = '", " ' if symbols else ""
        symbols.append(f"{comma}{rule}" if is_required or not must else f"({comma}{rule})?")
    return f"{_quoted(name + '(')} {' '.join(symbols)} {_quoted(')')}"


def _arguments(parameters: Mapping[str, object]) -> Iterator[tuple[str, object, bool]]:
    """The arguments of a tool: name, schema, and whether it is required."""
    required = parameters.get("required")
    for key, schema in properties_of(parameters).items():
        yield key, schema, isinstance(required, list) and key in required


def _followed(schema: object) -> str:
    """A schema as a grammar includes it."""
    data = followed(schema)
    return json.dumps({"x-guidance": JSON_STYLE, **data} if isinstance(data, dict) else data)


def _quoted(text: str) -> str:
    """A text as a grammar's string, which holds every character but one as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
