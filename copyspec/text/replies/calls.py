"""The ways in which models write tool calls, each learned from a template (`learning.py`) and read from outputs.

| syntax | a call of `look(city="Rome", days=2)` | models |
|---|---|---|
| `JsonCalls` | `<tool_call>{"name": "look", "arguments": {"city": "Rome", ...}}</tool_call>` | Hermes, Qwen, Llama |
| `NamedCalls` | `[TOOL_CALLS]look[ARGS]{"city": "Rome", "days": 2}` | Mistral, DeepSeek, Kimi |
| `TaggedCalls` | `<function=look><parameter=city>Rome</parameter>...</function>` | Qwen-Coder, GLM, MiniMax |
| `BareCalls` | `call:look{city:<|"|>Rome<|"|>,days:2}` | Gemma 4 |
| `PythonCalls` | `[look(city="Rome", days=2)]` | Llama 4, LFM2, OLMo |
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from copyspec.text.replies.marks import is_tag, pieces, shown, unmarked
from copyspec.text.replies.python_calls import python_calls
from copyspec.text.replies.tools import MAX_DEPTH, Tool, named_tool, properties, tool_names
from copyspec.text.replies.values import (
    DECODER,
    FENCE,
    NOTHING,
    SPACE,
    CallError,
    CutCallError,
    after,
    arguments_of,
    json_value,
    typed,
)

NAME = re.compile(r"[\w.\-/]+")
_SEPARATOR = re.compile(r"[\s,]*")
_WORD = re.compile(r"[^\s,:{}\[\]]+")
_NOTHING_MORE = re.compile("")
_BESIDE = {"id", "index", "tool_call_id", "type"}  # keys of a call that hold no arguments
_JSON_CALL = re.compile(r"(?:\[\s*)?\{")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model has written."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """The text of a call that cannot be read."""

    text: str
    error: str
    name: str | None = None  # of the tool, if that can be read


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around calls, in marked text."""

    section: str = ""  # once, before the first call
    opening: str = ""  # before each call
    closing: str = ""  # after each call
    end: str = ""  # once, after the last call

    @property
    def starts(self) -> tuple[str, ...]:
        """The pieces with which calls may begin: the first of the section's and of a call's opening, and the last of
        the latter, which some models write alone."""
        openings = pieces(self.opening)
        places = dict.fromkeys([*pieces(self.section)[:1], *openings[:1], *openings[-1:]])
        return tuple(piece for piece in places if is_tag(piece))  # words may be those of an answer


@dataclass(frozen=True, slots=True)
class CallSyntax(ABC):
    """How one model writes calls."""

    frame: Frame = field(default_factory=Frame)

    @abstractmethod
    def read(self, text: str, at: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        """The calls of the value at `at`, after a call's opening, and where it ends. Raises CallError."""

    def read_all(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall], list[InvalidCall]]:
        """The text between the calls of a text that begins with one, the calls, and those that cannot be read."""
        opening = _optional(self.frame.opening) if self.frame.opening else _NOTHING_MORE
        closing = pieces(self.frame.closing)
        glue = [piece for part in (self.frame.section, self.frame.closing, self.frame.end) for piece in pieces(part)]
        calls: list[ToolCall] = []
        invalid: list[InvalidCall] = []
        between: list[str] = []
        at = 0
        while (at := _skip(text, at, glue)) < len(text):
            opened = opening.match(text, at)
            if opened is None or (opened.end() == at and not self._begins(text, at, tools)):
                start = self.start(text, at + 1)
                between.append(text[at:start])
                at = start
                continue
            try:
                read, end = self.read(text, opened.end(), tools)
                calls += read
            except CallError as error:
                end = self.start(text, opened.end())
                if error.is_cut:
                    end = len(text)
                elif closing and (closed := text.find(closing[0], opened.end(), end)) >= 0:
                    end = closed
                body = shown(text[opened.end() : end]).strip()
                invalid.append(InvalidCall(body, str(error), named_tool(body, tools)))
            at = max(end, opened.end())
        return "".join(between), calls, invalid

    def _begins(self, text: str, at: int, tools: Sequence[Tool]) -> bool:
        """Whether a call that has no opening of its own begins here."""
        if self.frame.opening or not self.frame.section:
            return False
        try:
            return self.read(text, at, tools)[1] > at
        except CallError:
            return False

    def start(self, text: str, at: int = 0) -> int:
        """Where the next call begins; the length of the text if there is none."""
        places = [place for start in self.frame.starts if (place := text.find(start, at)) >= 0]
        return min(places, default=len(text))


@dataclass(frozen=True, slots=True)
class JsonCalls(CallSyntax):
    """Calls as JSON objects with a name and arguments, or lists of them."""

    name: str = "name"
    """The key of the tool's name; empty: that name is the only key, and its value the arguments."""
    arguments: str = "arguments"
    is_list: bool = False

    def read(self, text: str, at: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        value, end = json_value(text, at)
        calls = [self._call(item) for item in (value if isinstance(value, list) else [value])]
        if not calls:
            raise CallError("an empty list")
        return calls, end

    def _call(self, value: object) -> ToolCall:
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):  # as APIs write it
            value = value["function"]
        if not isinstance(value, Mapping):
            raise CallError("no JSON object with a name and arguments")
        if not self.name and len(value) == 1:
            ((name, arguments),) = value.items()
            return ToolCall(str(name), arguments_of(arguments))
        name = next((value[key] for key in (self.name, "name", "tool_name") if isinstance(value.get(key), str)), None)
        if name is None:
            raise CallError("no JSON object with a name and arguments")
        keys = (self.arguments, "arguments", "parameters", "args", "input")
        key = next((key for key in keys if key in value), None)
        if key is None and len(value) > 1 and (more := value.keys() - _BESIDE - {self.name, "name", "tool_name"}):
            raise CallError(f"no arguments, but {sorted(map(str, more))[0]!r}")
        return ToolCall(name, arguments_of(value[key] if key is not None else {}))


@dataclass(frozen=True, slots=True)
class NamedCalls(CallSyntax):
    """Calls as the name of the tool, and a JSON object of its arguments."""

    before: str = ""  # text before the name that is no part of it
    between: str = ""  # what stands between name and arguments, with an id of nine characters as `ID`
    ID: ClassVar[str] = "abcde0001"  # Mistral's templates want nine letters or digits

    def read(self, text: str, at: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        at = after(SPACE, text, at)
        if self.before and text.startswith(self.before, at):
            at += len(self.before)
        named = NAME.match(text, at)
        if named is None:
            raise CallError("no name of a tool")
        between = "".join(rf"(?:{self._pattern(piece)}\s*)?" for piece in pieces(self.between))
        value, end = self._arguments(text, after(re.compile(rf"\s*{between}"), text, named.end()))
        return [ToolCall(named[0], arguments_of(value))], end

    def _arguments(self, text: str, at: int) -> tuple[object, int]:
        """The arguments at `at`, and where they end. Raises CallError."""
        return json_value(text, at)

    def _pattern(self, piece: str) -> str:
        """A piece between name and arguments, for any id and number of the call."""
        return r"\w+" if piece == self.ID else re.sub(r":\d+", r":\\d+", re.escape(piece))


@dataclass(frozen=True, slots=True)
class BareCalls(NamedCalls):
    """Calls as the name of the tool, and an object of its arguments whose keys have no quotes."""

    quote: str = '"'  # on either side of a text, which has no escapes

    def read(self, text: str, at: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        calls, end = NamedCalls.read(self, text, at, tools)
        return [_as_declared(call, tools) for call in calls], end  # some models quote numbers

    def _arguments(self, text: str, at: int) -> tuple[object, int]:
        return self._value(text, at, 0)

    def _value(self, text: str, at: int, depth: int) -> tuple[object, int]:
        at = after(SPACE, text, at)
        if text.startswith(self.quote, at):
            start = at + len(self.quote)
            end = text.find(self.quote, start)
            if end < 0:
                raise CutCallError("it is not complete: a limit may have cut it")
            return shown(text[start:end]), end + len(self.quote)
        if text[at : at + 1] in ("{", "[") and depth < MAX_DEPTH:
            return self._items(text, at + 1, "]" if text[at] == "[" else "}", depth + 1)
        word = _WORD.match(text, at)
        if word is None:
            raise (CutCallError if at == len(text) else CallError)("no value of an argument")
        if word[0].lower() in NOTHING:
            return NOTHING[word[0].lower()], word.end()
        try:
            return DECODER.decode(word[0]), word.end()
        except (ValueError, RecursionError):
            return word[0], word.end()

    def _items(self, text: str, at: int, closing: str, depth: int) -> tuple[object, int]:
        """The items of a list or an object, after its bracket."""
        items: list[object] = []
        keys: list[str] = []
        while not text.startswith(closing, at := after(_SEPARATOR, text, at)):
            if closing == "}":
                key, at = self._value(text, at, MAX_DEPTH)
                at = after(SPACE, text, at)
                if not text.startswith(":", at):
                    raise (CutCallError if at == len(text) else CallError)("no value of an argument")
                keys.append(key if isinstance(key, str) else str(key))
                at += 1
            value, at = self._value(text, at, depth)
            items.append(value)
        return (items if closing == "]" else dict(zip(keys, items, strict=True))), at + 1


@dataclass(frozen=True, slots=True)
class TaggedCalls(CallSyntax):
    """Calls as the name of the tool, and its arguments as text between tags; `look` is named, `city` is a key:
    `look` head (key_opening `city` key_closing value value_closing)* and the frame's closing."""

    head: str = ""
    key_opening: str = ""
    key_closing: str = ""
    value_closing: str = ""
    pads: tuple[str, str] = ("", "")  # the line ends on either side of a value, if it has them
    data_closing: str = ""  # instead of `key_closing` before a value that is no string, if that is told apart

    def read(self, text: str, at: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        at = after(SPACE, text, at)
        named = NAME.match(text, at)
        if named is None:
            raise CallError("no name of a tool")
        name, at = named[0], after(re.compile(_loose(self.head)), text, named.end())
        types = properties(name, tools)
        values: dict[str, object] = {}
        closing = [*pieces(self.frame.closing), *pieces(self.frame.end)]  # of which models leave out some
        closings = filter(None, (self.key_closing, self.data_closing))
        opening, middle = re.compile(_loose(self.key_opening)), re.compile("|".join(map(_loose, closings)))
        while True:
            at = after(SPACE, text, at)
            opened = opening.match(text, at) if text[at:] else None
            if opened is None or opened.end() == at:
                break
            separated = middle.search(text, opened.end())
            if separated is None:
                raise CallError("the name of an argument does not end")
            end, behind = self._value_end(text, separated.end(), closing, [key for key in types if key not in values])
            value = text[separated.end() : end]
            value = value.removeprefix(self.pads[0]).removesuffix(self.pads[1])
            key = text[opened.end() : separated.start()].strip()
            is_data = bool(self.data_closing) and separated[0].split() == self.data_closing.split()
            values[key] = typed(_without_cdata(shown(value)), types.get(key, _DATA if is_data else None))
            at = behind
        if closing and not text.startswith(tuple(closing), at):
            raise CallError("the call does not end")
        return [ToolCall(name, values)], at

    def _value_end(self, text: str, at: int, closing: Sequence[str], left: Sequence[str]) -> tuple[int, int]:
        """Where a value ends, and what follows it: its closing tag, after which comes another key or the call's end.
        The tag may be text of the value, too. Models leave it out: then a line that begins with another key, of those
        that are `left`, ends the value, or the call's end."""
        opening, last = _loose(self.key_opening), "|".join(map(re.escape, closing))
        ends = rf"{_loose(self.value_closing)}(?=\s*(?:{'|'.join(filter(None, (opening, last)))}|\Z))"
        start = text.find(_CDATA[1], at) if _CDATA[0].match(text, at) else at
        match = re.compile(ends).search(text, max(at, start))
        end = match.start() if match is not None else self.start(text, at)
        if left and start == at and self.value_closing not in text[at:end]:
            keys = rf"{opening}\s*(?:{'|'.join(map(re.escape, left))})\s*{_loose(self.key_closing)}"
            others = re.compile(rf"(?=\n({keys}))").finditer(text, at, end)
            later = {other: text.find(other, end) for other in {other[1] for other in others}}  # and text of the value
            firsts = [place for other in later if later[other] < 0 if (place := text.find(f"\n{other}", at)) >= 0]
            if firsts:
                match = re.compile("").match(text, min(firsts))
        if match is None and closing:
            match = re.compile(rf"(?=\n?{re.escape(closing[0])}\s*(?:{last}|\Z))").search(text, at)
        if match is None:
            raise CallError("the value of an argument does not end")
        return match.start(), match.end()


@dataclass(frozen=True, slots=True)
class PythonCalls(CallSyntax):
    """Calls as Python writes them, one or a list."""

    is_list: bool = False

    def read(self, text: str, at: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        at = after(SPACE, text, at)
        if _JSON_CALL.match(text, at):  # as some models call where calls in Python are not shown to them
            return JsonCalls().read(text, at, tools)
        closing = pieces(self.frame.closing)
        ends = [place for place in _places(text, closing[0], at)] if closing else []
        for end in [*ends, len(text)]:  # the closing tag may be text of an argument, too
            try:
                calls = [
                    _as_declared(ToolCall(*call), tools) for call in python_calls(shown(text[at:end]).strip(), tools)
                ]
                return calls, end
            except CallError as error:
                last = error
        raise last


_CDATA = re.compile(r"\s*<!\[CDATA\["), "]]>"
"""XML's signs around a text that holds signs of XML, as MiniCPM is told to write it."""
_DATA: Mapping[str, object] = {"type": ["object", "array", "number", "boolean", "null"]}


def _without_cdata(text: str) -> str:
    opening, closing = _CDATA
    opened = opening.match(text)
    return text[opened.end() : text.rstrip().rfind(closing)] if opened and text.rstrip().endswith(closing) else text


_AGAIN = re.compile(r"\s*;?\s*(?=[{\[])")  # another call, as Llama 3 separates them


PREFIX = "functools"
"""The word that Phi-4-mini writes before a list of calls."""
_BARE: Sequence[tuple[CallSyntax, re.Pattern[str]]] = (
    (JsonCalls(), re.compile(r"[{\[]")),
    (PythonCalls(), re.compile(r"\[?[\w.\-]+\(")),
    (NamedCalls(), re.compile(r"[\w.\-]+\s*\n\s*\{")),  # GLM-4
)
"""The ways to write calls without tags, and how they begin."""
_CALLED = re.compile(r"\(|\s*\n\s*\{|\s*\Z")
"""What follows the name of a tool in the latter two, or may."""


def bare_calls(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """The calls of an output that is nothing else, as JSON, of which several may follow each other, or as Python,
    perhaps in a fence; empty if it is anything else than calls of the tools."""
    body = text.strip().removeprefix(PREFIX)
    if (fence := FENCE.match(body)) is not None and body.endswith("```"):
        body = body[fence.end() : -3].strip()
    names = tool_names(tools)
    for syntax, begins in _BARE:
        if not begins.match(body):
            continue
        try:
            calls, end = syntax.read(body, 0, tools)
            while (again := _AGAIN.match(body, end)) is not None:
                following, end = syntax.read(body, again.end(), tools)
                calls += following
        except CallError:
            continue
        if not body[end:].strip(" \n;") and all(call.name in names for call in calls):
            return calls
    return []


def _as_declared(call: ToolCall, tools: Sequence[Tool]) -> ToolCall:
    """The call with its arguments as the tool declares them: some models write numbers as strings."""
    types = properties(call.name, tools)
    values = {
        key: typed(value, types.get(key)) if isinstance(value, str) else value for key, value in call.arguments.items()
    }
    return ToolCall(call.name, values)


def _loose(text: str) -> str:
    """A pattern of a text in which white space may be any, or none."""
    return r"\s*".join(map(re.escape, text.split()))


def _optional(opening: str) -> re.Pattern[str]:
    """A pattern of a call's opening, of which all but the last piece may be left out."""
    *leading, last = pieces(opening) or [""]
    return re.compile("".join(rf"(?:{re.escape(piece)}\s*)?" for piece in leading) + re.escape(last))


def _skip(text: str, at: int, glue: Sequence[str]) -> int:
    """The next place that holds neither white space, nor a comma, nor one of the pieces between calls."""
    while True:
        start = at
        at = after(SPACE, text, at)
        at += text.startswith(",", at)
        for piece in glue:
            if text.startswith(piece, at):
                at += len(piece)
        if at == start:
            return at


def _places(text: str, part: str, at: int) -> Iterator[int]:
    while (at := text.find(part, at)) >= 0:
        yield at
        at += 1


def could_be_bare(text: str, names: Sequence[str] = ()) -> bool:
    """Whether an output that begins like this may turn out to be a call without tags around it. `names`: of tools that
    may be called by what an output begins with."""
    begun = unmarked(text).lstrip()
    if not begun or begun[0] in "{[`" or f"{PREFIX}[".startswith(begun) or begun.startswith(f"{PREFIX}["):
        return True
    return any(
        name.startswith(begun) or (begun.startswith(name) and _CALLED.match(begun, len(name)) is not None)
        for name in names
    )
