"""Learns from a chat template how its model writes thoughts and tool calls, by rendering a chat that has some.

Templates are rendered to marked text (`marks`), in which control tokens are told from the same characters as text. Its
pieces are the control tokens, tags and words. A frame is what stands around a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from copyspec.common.sequences import common_prefix
from copyspec.text.replies.calls import (
    BareCalls,
    CallSyntax,
    Frame,
    JsonCalls,
    NamedCalls,
    PythonCalls,
    TaggedCalls,
)
from copyspec.text.replies.marks import AFTER, BEFORE, PIECE, is_tag, pieces, shown
from copyspec.text.replies.values import arguments_of

Render = Callable[[Sequence[Mapping[str, object]], bool, bool], str]
"""Renders messages in marked text: with a tool or without, and with the assistant's turn opened or not. Raises any
error."""

THOUGHT_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought", "<channel|>"),
)
"""Tags around thoughts, for templates that cut them out of earlier turns, and so never render one."""

NAME, FIRST, SECOND = "lookup_place", "alpha_key", "beta_key"
WORD, NUMBER, NUMERAL = "Quixotville", 48151623, "48151623"
"""The call that is rendered: words that no template holds."""

PROBE: Mapping[str, object] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Looks a place up.",
        "parameters": {
            "type": "object",
            "properties": {
                FIRST: {"type": "string", "description": "A place."},
                SECOND: {"type": "integer", "description": "A number."},
            },
            "required": [FIRST, SECOND],
        },
    },
}
"""The tool of that call."""

_QUESTION = "Which place?"
_USER = {"role": "user", "content": _QUESTION}
_ANSWER, _THOUGHT = "Nephelokokkygia.", "Considerandum."
_ARGUMENTS = {FIRST: WORD, SECOND: NUMBER}
_IDS = ((NamedCalls.ID, "abcde0002"), (f"functions.{NAME}:0", f"functions.{NAME}:1"))
"""Of two calls; Kimi's templates write the latter in place of the name."""
_KIMI = (
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)  # fmt: skip
"""Kimi's tokens around calls and their parts, in order."""
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The tags around a thought, in marked text."""

    opening: str
    closing: str


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model writes what is not its answer."""

    thoughts: Thoughts | None = None
    calls: CallSyntax | None = None
    """None: unknown, or the template has no tools."""
    is_harmony: bool = False
    """Whether outputs consist of messages in channels, as gpt-oss writes them."""
    tags_are_text: bool = False
    """Whether the tags of these messages are plain text to the tokenizer, not control tokens."""

    def __bool__(self) -> bool:
        return bool(self.thoughts or self.calls or self.is_harmony)


def learn(template: str, tokens: Sequence[str], render: Render, mark: Callable[[str], str]) -> ReplyFormat:
    """How the model of this template writes thoughts and calls. `tokens`: the strings of added tokens; `mark`: makes
    marked text."""
    if "<|channel|>" in template and "<|message|>" in template:
        return ReplyFormat(is_harmony=True, tags_are_text=mark("<|channel|>") == "<|channel|>")
    thoughts = _rendered_thoughts(render) or _named_thoughts(template, tokens, mark)
    calls = _calls(render, thoughts) or _described(render, template, tokens, mark) if "tool" in template else None
    return ReplyFormat(thoughts, calls)


def _rendered_thoughts(render: Render) -> Thoughts | None:
    """The tags that the template itself writes around a thought."""
    for name in _THOUGHT_FIELDS:
        text = _try(render, [_USER, {"role": "assistant", "content": _ANSWER, name: _THOUGHT}])
        if text is None or _THOUGHT not in text or _ANSWER not in text:
            continue
        before, _, rest = text.partition(_THOUGHT)
        after = rest.partition(_ANSWER)[0]
        opening, closing = pieces(before)[-1:], pieces(after)[:1]
        if not opening or not closing or not is_tag(closing[0]):
            continue
        header = (_try(render, [_USER, {"role": "assistant", "content": _ANSWER}]) or "").partition(_ANSWER)[0]
        if pieces(header)[-1:] != opening:
            # A tag that stands before the answer, too, begins any message.
            if is_tag(opening[0]) and opening[0] not in pieces(after):
                return Thoughts(opening[0], closing[0])
            continue
        # The thought has no tag of its own: where the assistant's turn is opened, words may begin it.
        opened = _try(render, [_USER], opens=True) or ""
        if opened.startswith(header) and (words := opened[len(header) :].strip()):
            return Thoughts(words, closing[0])
    return None


def _named_thoughts(template: str, tokens: Sequence[str], mark: Callable[[str], str]) -> Thoughts | None:
    for opening, closing in THOUGHT_TAGS:
        if closing in template or (opening in tokens and closing in tokens):
            return Thoughts(mark(opening), mark(closing))
    return None


def _calls(render: Render, thoughts: Thoughts | None) -> CallSyntax | None:
    opened = _try(render, [_USER], opens=True)
    answered = _try(render, [_USER, {"role": "assistant", "content": _ANSWER}])
    if opened is None:
        return None
    header, turn_end = "", ""
    if answered is not None and _ANSWER in answered:
        before, _, turn_end = answered.rpartition(_ANSWER)
        header = before.rpartition(_QUESTION)[2]
    contents: tuple[Mapping[str, object], ...] = ({"content": ""}, {"content": None}, {})
    for ids, content, arguments in product(_IDS, contents, (_ARGUMENTS, json.dumps(_ARGUMENTS))):
        one, two = ([_call(call_id, arguments) for call_id in ids[:count]] for count in (1, 2))
        text = _try(render, [_USER, {"role": "assistant", **content, "tool_calls": one}])
        if text is None or not all(word in text for word in (NAME, FIRST, WORD, NUMERAL)):
            continue
        again = _try(render, [_USER, {"role": "assistant", **content, "tool_calls": two}])
        turn = _Turn(opened, header, turn_end, thoughts)
        syntax = _syntax(turn.body(text), None if again is None else turn.body(again))
        if syntax is not None:
            return syntax
    return None


_EXAMPLE = re.compile(
    r"""(?P<tag><[^<>\s]+>|\[[A-Z_/]+\])\s*(?P<list>\[)?\s*\{\{?\s*\\?"name\\?"[^{}]*?"(?P<arguments>arguments|parameters)\\?":"""
)
"""A call as JSON, behind a tag, as templates show it to the model."""


def _described(render: Render, template: str, tokens: Sequence[str], mark: Callable[[str], str]) -> CallSyntax | None:
    """The syntax that a template describes to the model, or that the tokenizer has control tokens for, if the template
    renders no calls itself."""
    text = shown(_try(render, [_USER], opens=True) or template)

    def has(*tags: str) -> bool:
        return all(tag in text or tag in template or tag in tokens for tag in tags)

    opening, closing = mark("<tool_call>"), mark("</tool_call>")
    if has("<tool_call>", "<function=", "<parameter="):  # Qwen3-Coder
        frame = Frame(opening=f"{opening}\n<function=", closing=f"</function>\n{closing}")
        return TaggedCalls(frame, ">", "<parameter=", ">", "</parameter>", ("\n", "\n"))
    if has("<tool_call>", "<arg_key>", "<arg_value>"):  # GLM
        tags = [mark(tag) for tag in ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")]
        return TaggedCalls(Frame(opening=opening, closing=closing), "", tags[0], f"{tags[1]}\n{tags[2]}", tags[3])
    if has(*_KIMI):
        section, opening, between, closing, end = map(mark, _KIMI)
        return NamedCalls(Frame(section, opening, closing, end), before="functions.", between=f":0{between}")
    shows = (match for match in _EXAMPLE.finditer(text) if NAME not in match[0])
    if (example := next(shows, None)) is not None:
        tag = example["tag"]
        ends = (tag.replace("<|", "<|/"), tag.replace("<", "</"))
        closed = next((end for end in ends if end != tag and has(end)), "")
        frame = Frame(opening=mark(tag), closing=mark(closed))
        return JsonCalls(frame, arguments=example["arguments"], is_list=bool(example["list"]))
    if has("<|tool_call_start|>", "<|tool_call_end|>"):  # LFM2
        return PythonCalls(Frame(opening=mark("<|tool_call_start|>"), closing=mark("<|tool_call_end|>")), is_list=True)
    if "<|tool_call|>" in text:  # Granite 3
        return JsonCalls(Frame(opening=mark("<|tool_call|>")), is_list=True)
    return None


def _call(identifier: str, arguments: object) -> Mapping[str, object]:
    return {"type": "function", "id": identifier, "function": {"name": NAME, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class _Turn:
    """What stands around the model's turn in a rendered chat."""

    opened: str  # the chat up to where the turn opens
    header: str  # between question and answer
    end: str  # after the answer
    thoughts: Thoughts | None

    def body(self, text: str) -> str:
        """What the model writes: from where its turn opens to where it ends, without a thought."""
        start = common_prefix(text, self.opened)
        # The texts may part inside a tag, or after the first letters of what is written.
        parted = text[:start] if start < len(self.opened) else ""
        begun = re.search(rf"[<\[{BEFORE}][^>\]{AFTER}\s]*\Z|[\w{{\"']+\Z", parted)
        body = text[begun.start() if begun is not None else start :]
        asked = body.rpartition(_QUESTION)  # the template may show tools elsewhere where a call follows
        if asked[1]:
            body = asked[2]
            for piece in pieces(self.header):
                body = body.lstrip().removeprefix(piece)
        written = list(PIECE.finditer(body))
        closed = common_prefix([piece[0] for piece in reversed(written)], pieces(self.end)[::-1])
        end = written[-closed].start() if closed else len(body)
        body = body[: max(body.rfind(NUMERAL), end)]
        if self.thoughts is not None and self.thoughts.closing in body:
            body = body.rpartition(self.thoughts.closing)[2]
        return body


def _syntax(body: str, again: str | None) -> CallSyntax | None:
    """The syntax of a body that is one call; `again`: of two."""
    return (
        _json_syntax(body, again)
        or _named_syntax(body, again)
        or _bare_syntax(body, again)
        or _python_syntax(body)
        or _tagged_syntax(body, again)
    )


def _json_syntax(body: str, again: str | None) -> JsonCalls | None:
    for start, end, value in _values(body):
        is_list = isinstance(value, list)
        item = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(item, Mapping) and isinstance(item.get("function"), Mapping):
            item = item["function"]
        if not isinstance(item, Mapping):
            continue
        name = next((key for key, text in item.items() if text == NAME), "")
        arguments = next((key for key, inner in item.items() if _are_arguments(inner)), None)
        if arguments is None or not (name or arguments == NAME):
            continue
        frame = _frame(body[:start], body[end:], None if is_list else _between(again, start, end, body))
        return JsonCalls(frame, name=str(name), arguments=str(arguments) if name else "", is_list=is_list)
    return None


def _named_syntax(body: str, again: str | None) -> NamedCalls | None:
    named = body.find(NAME)
    for start, end, value in _values(body):
        if named < 0 or start < named or not _are_arguments(value):
            continue
        frame, before = _named_frame(body, named, end, again)
        return NamedCalls(frame, before=before, between=body[named + len(NAME) : start].strip())
    return None


def _named_frame(body: str, named: int, end: int, again: str | None) -> tuple[Frame, str]:
    """What stands around a call that ends at `end`, and the word before its name, which stands at `named`."""
    opening = body[:named]
    before = re.search(r"[\w.:]+\Z", opening)
    prefix = before[0] if before is not None else ""
    between = _between(again, named - len(prefix), end, body)
    return _frame(opening[: len(opening) - len(prefix)], body[end:], between), prefix


def _bare_syntax(body: str, again: str | None) -> BareCalls | None:
    quoted, number = rf"{FIRST}:\s*(?P<quote>\S+?){WORD}(?P=quote)", rf"(?:(?P=quote))?{NUMERAL}(?:(?P=quote))?"
    match = re.search(rf"{NAME}\s*{{\s*{quoted},\s*{SECOND}:\s*{number}\s*}}", body)
    if match is None:
        return None
    frame, before = _named_frame(body, match.start(), match.end(), again)
    return BareCalls(frame, before=before, quote=match["quote"])


def _python_syntax(body: str) -> PythonCalls | None:
    match = re.search(rf"(\[?)\s*{NAME}\(.*?{NUMERAL}[\"']?\)(\]?)", body, re.DOTALL)
    if match is None or f"{FIRST}=" not in match[0]:
        return None
    return PythonCalls(_frame(body[: match.start()], body[match.end() :], None), is_list=bool(match[1]))


def _tagged_syntax(body: str, again: str | None) -> TaggedCalls | None:
    places = [body.find(word) for word in (NAME, FIRST, WORD, SECOND, NUMERAL)]
    if -1 in places or places != sorted(places):
        return None
    named, first, word, second, numeral = places
    head, middle = body[named + len(NAME) : first], body[first + len(FIRST) : word]
    between_keys, rest = body[word + len(WORD) : second], body[numeral + len(NUMERAL) :]
    shared = pieces(head)[-1:]
    data_middle = body[second + len(SECOND) : numeral]
    is_one = data_middle.split() == middle.split()
    if not shared or pieces(between_keys)[-1:] != shared or not (is_one or _unvalued(data_middle) == _unvalued(middle)):
        return None
    key_opening = shared[0]
    value_closing = between_keys[: between_keys.rfind(key_opening)].strip()
    if not value_closing or not middle.strip() or not rest.lstrip().startswith(value_closing):
        return None
    closing = rest[rest.find(value_closing) + len(value_closing) :]
    end = numeral + len(NUMERAL) + len(rest)
    frame = _frame(body[:named], closing, _between(again, named, end - len(closing), body))
    return TaggedCalls(
        frame,
        head=head[: head.rfind(key_opening)].strip(),
        key_opening=key_opening,
        key_closing=middle.strip(),
        value_closing=value_closing,
        pads=("\n" * middle.endswith("\n"), "\n" * between_keys.startswith("\n")),
        data_closing="" if is_one else data_middle.strip(),
    )


def _unvalued(text: str) -> list[str]:
    """The words of a tag without the values of its attributes, which may tell strings from other values."""
    return re.sub(r'="\w*"', "=", text).split()


def _values(body: str) -> list[tuple[int, int, object]]:
    """JSON objects and lists in a text, nested ones too, and strings that hold the arguments, each with its range."""
    values: list[tuple[int, int, object]] = []
    for match in re.finditer(r"[\[{\"]", body):
        try:
            value, end = json.JSONDecoder().raw_decode(body, match.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str) and not _are_arguments(value):
            continue
        values.append((match.start(), end, value))
    return values


def _are_arguments(value: object) -> bool:
    if value == _ARGUMENTS:
        return True
    try:
        return isinstance(value, str) and arguments_of(value) == _ARGUMENTS
    except ValueError:
        return False


def _between(again: str | None, start: int, end: int, body: str) -> str | None:
    """What stands between two calls: `again` has two of them, `body` one at [start, end)."""
    if again is None:
        return None
    # The second call has another id, or another number.
    second = again.rfind(NAME) - body.find(NAME, start) + start
    return again[end:second] if end <= second and again[:start] == body[:start] else None


def _frame(before: str, after: str, between: str | None) -> Frame:
    """The frame of calls, from the text before one call, after it, and between two calls."""
    openings, closings = pieces(before), pieces(after)
    middle = pieces(between) if between is not None else [*closings, *openings]
    num_opening = 0
    while num_opening < min(len(openings), len(middle)) and openings[-1 - num_opening] == middle[-1 - num_opening]:
        num_opening += 1
    num_closing = 0
    while num_closing < min(len(closings), len(middle) - num_opening) and closings[num_closing] == middle[num_closing]:
        num_closing += 1
    opening = _last(before, num_opening)
    closing = _first(after, num_closing)
    return Frame(
        before[: len(before) - len(opening)].strip(), opening.strip(), closing.strip(), after[len(closing) :].strip()
    )


def _last(text: str, count: int) -> str:
    """The end of a text from its last `count` pieces on."""
    matches = list(PIECE.finditer(text))
    return text[matches[-count].start() :] if count else ""


def _first(text: str, count: int) -> str:
    """The beginning of a text up to its first `count` pieces."""
    matches = list(PIECE.finditer(text))
    return text[: matches[count - 1].end()] if count else ""


def _try(render: Render, messages: Sequence[Mapping[str, object]], *, opens: bool = False) -> str | None:
    """What the template makes of these messages, with the tool; None if it rejects them."""
    for with_tool in (True, False):
        try:
            return render(messages, with_tool, opens)
        except Exception:  # a template is a program and may raise any error
            continue
    return None
