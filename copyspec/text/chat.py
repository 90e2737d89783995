"""Renders chats through a tokenizer's chat template, with checks on the messages."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from copyspec.common.checks import brief, check_type, shown
from copyspec.text.replies.tools import completed, tool_names
from copyspec.text.templates import LimitError, bounded, names_read, text_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

Message = Mapping[str, object]
"""A mapping with `role` and `content`, as chat templates take it; content is text or a list of `{"type": "text",
...}`."""

# Noncharacters, reserved by Unicode for internal use.
_MARK, _MARK_MORE = "\ufdd0", "\ufdd1"


_OWN_VARIABLES = frozenset(
    {"conversation", "messages", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "padding"}
    | {"tokenize", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"}
    | {"tokenizer_kwargs", "processor_kwargs", "self", "template", "environment"}
)
"""What `apply_chat_template` takes itself, or the chat, its tools and its ends."""

_TOOLS_VARIABLES = ("tools", "xml_tools", "available_tools")  # SmolLM3 reads the second, Granite's first ones the last

MAX_DEPTH = 64  # of lists and mappings inside a message; tool calls have fewer than ten


class ChatError(ValueError):
    """The chat cannot be rendered; the message says what to give instead."""


def check_chat(messages: Sequence[object], where: str) -> list[Message]:
    """Check `messages` as a chat; raises ChatError naming the invalid message."""
    chat: list[Message] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatError(
                f"{where}[{i}] is not a chat message: {brief(message)}; write {{'role': 'user', 'content': 'text'}}"
            )
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            raise ChatError(f"{where}[{i}] has no content: {brief(message)}; write {{'role': ..., 'content': 'text'}}")
        if content is not None and not _is_content(content):
            raise ChatError(
                f"{where}[{i}] has content that is not text: {brief(content)}; write 'content': 'text', "
                "or [{'type': 'text', 'text': 'text'}] where the model's chat template reads such lists"
            )
        chat.append(message)
    return chat


def with_system(messages: Sequence[Message], system: str | None) -> list[Message]:
    """Put a system message before `messages`; raises ChatError if they begin with one already."""
    if system is None:
        return list(messages)
    if messages and messages[0]["role"] == "system":
        raise ChatError(
            f"system={brief(system)} is given, but the chat begins with a system message; keep one of the two"
        )
    return [{"role": "system", "content": system}, *messages]


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]] = (),
    variables: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Apply the chat template. A final assistant message is continued; otherwise the assistant's turn is opened.

    If the template rejects a system role, its text is put before the first user message. `tools`: JSON schemas of
    callable tools; `variables`: further variables of the template. Neither is escaped.
    """
    if not tokenizer.chat_template:
        raise ChatError(
            f"{_name(tokenizer)} has no chat template: give the prompt as a str (without system= and chat=True), "
            "or set tokenizer.chat_template"
        )
    if tools and not shows_tools(tokenizer):
        raise ChatError(
            f"tools are not supported by the chat template of {_name(tokenizer)}: use a model trained to call them, or "
            "call it without tools"
        )
    try:
        return apply(tokenizer, messages, tools, variables)
    except Exception as error:  # a template is a program and may raise any error
        if not isinstance(error, LimitError):
            for chat, called in _alternatives(messages, tools, error):
                try:
                    return apply(tokenizer, chat, called, variables)
                except Exception:
                    continue
        why = " ".join(str(error).split())[:500]
        if any(isinstance(message.get("content"), (list, tuple)) for message in messages):
            raise ChatError(
                f"the chat template of {_name(tokenizer)} reads no lists as content: give each message's as one str "
                f"({why})"
            ) from error
        why = why if isinstance(error, TemplateError) else f"{type(error).__name__}: {why}"
        if tools and _takes_tools(tokenizer, messages, variables):
            named = ", ".join(tool_names(tools))[:100]
            raise ChatError(f"the chat template of {_name(tokenizer)} rejects tools {named}: {why}") from error
        roles = ", ".join(str(message["role"]) for message in messages)[:100]
        raise ChatError(f"the chat template of {_name(tokenizer)} rejects roles {roles}: {why}") from error


def _alternatives(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]], error: Exception
) -> Iterator[tuple[Sequence[Message], Sequence[Mapping[str, object]]]]:
    """Other ways to write a chat and its tools, of the same meaning, for a template that has raised `error`."""
    folded = _fold_system(messages) if isinstance(error, (TemplateError, TypeError)) else None
    full = [completed(tool) for tool in tools]
    if full != list(tools):
        yield messages, full
    if folded is not None:
        yield folded, tools
        yield folded, full


def _takes_tools(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], variables: Mapping[str, object]
) -> bool:
    """Whether the template renders the chat with a tool that has no arguments."""
    try:
        apply(tokenizer, messages, [completed({"type": "function", "function": {"name": "f"}})], variables)
    except Exception:
        return False
    return True


def continues(messages: Sequence[Message]) -> bool:
    """Whether the chat ends with an assistant message that is to be continued."""
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and bool(last.get("content"))


def check_variables(name: str, variables: object) -> Mapping[str, object]:
    """Check the variables of a chat template, given as the option `name`. Raises TypeError or ValueError."""
    named = isinstance(variables, Mapping) and all(isinstance(variable, str) for variable in variables)
    check_type(named, name, variables, "a mapping of the chat template's variables, {'enable_thinking': False}")
    assert isinstance(variables, Mapping)
    for variable, value in variables.items():
        if variable in _OWN_VARIABLES or not variable.isidentifier():
            raise ValueError(
                f"{name} holds {brief(variable)}, which is no variable that chat templates leave to a call"
            )
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise TypeError(f"{name}[{variable!r}] must be JSON data; got {shown(value)}") from None
    return variables


def map_texts(messages: Sequence[Message], change: Callable[[str, str], str]) -> list[Message]:
    """Apply `change(text, role)` to every text inside the messages, and to the keys inside them, except roles and the
    names of a message's own fields. Raises ChatError for messages that are nested too deeply."""

    def walk(value: object, role: str, depth: int = 0) -> object:
        if isinstance(value, str):
            return change(value, role)
        if depth > MAX_DEPTH:
            raise ChatError(
                f"a message of {role!r} is nested more than {MAX_DEPTH} levels deep; give its text as a str"
            )
        if isinstance(value, Mapping):
            return {
                change(key, role) if depth and isinstance(key, str) else key: (
                    item if not depth and key == "role" else walk(item, role, depth + 1)
                )
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [walk(item, role, depth + 1) for item in value]
        return value

    result: list[Message] = []
    for message in messages:
        changed = walk(message, str(message["role"]))
        assert isinstance(changed, dict)
        result.append(changed)
    return result


def map_contents(messages: Sequence[Message], change: Callable[[list[str]], list[str]]) -> list[Message]:
    """Apply `change` to the list of all texts of the messages' contents, in their order: each a str, or a text part."""

    def texts(message: Message) -> list[str]:
        content = message.get("content")
        parts = [part.get("text") for part in content] if isinstance(content, (list, tuple)) else [content]
        return [part for part in parts if isinstance(part, str)]

    changed = iter(change([text for message in messages for text in texts(message)]))

    def put(message: Message) -> Message:
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": next(changed)}
        if not isinstance(content, (list, tuple)):
            return message
        parts = [{**part, "text": next(changed)} if isinstance(part.get("text"), str) else part for part in content]
        return {**message, "content": parts}

    return [put(message) for message in messages]


def unused_mark(messages: Sequence[Message]) -> str:
    """A string that occurs in none of the messages' texts."""
    texts: list[str] = []

    def collect(text: str, _role: str) -> str:
        texts.append(text)
        return text

    map_texts(messages, collect)
    mark = _MARK + _MARK_MORE
    while any(mark in text for text in texts):
        mark += _MARK_MORE
    return mark


def own_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]],
    variables: Mapping[str, object],
) -> list[int]:
    """The token ids of a chat by a tokenizer that writes chats itself, without a template, and reads no control tokens
    in their texts. Raises ChatError if it rejects the chat, and for tools: how it writes their calls is not known."""
    if tools:
        raise ChatError(f"{_name(tokenizer)} has no chat template that shows how tools are called: leave out tools=")
    goes_on = continues(messages)
    try:
        ids: Any = tokenizer.apply_chat_template(
            [dict(message) for message in messages],  # type: ignore[arg-type]  # annotated for text contents only
            tokenize=True,
            return_dict=False,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            **dict(variables),  # type: ignore[arg-type]
        )
    except Exception as error:
        raise ChatError(f"{_name(tokenizer)} rejects the chat: {brief(str(error))}") from error
    return list(ids)


def apply(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, object]],
    variables: Mapping[str, object],
    *,
    opens: bool | None = None,
    goes_on: bool | None = None,
) -> str:
    """Apply the chat template, within limits. `opens` and `goes_on`: whether the assistant's turn is opened, and
    whether the last message is continued; None: one of both. Raises what the template raises."""
    goes_on = continues(messages) if goes_on is None else goes_on
    called: Any = [dict(tool) for tool in tools] or None
    values: Any = dict(variables)
    source = tokenizer.get_chat_template(tools=called)
    if called and (name := _tools_variable(source)) not in (None, "tools"):
        values.setdefault(name, called)
    with bounded(source, text_size([*messages, *(called or ()), values])):
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],  # type: ignore[arg-type]  # annotated for text contents only
            tools=called,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=not goes_on if opens is None else opens,
            continue_final_message=goes_on,
            **values,
        )
    if not isinstance(text, str) or not text:
        raise TemplateError("it renders an empty prompt")
    _note_unread(_sources(tokenizer), frozenset(variables))
    return text


def _sources(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The chat templates of a tokenizer, which may have several by name."""
    templates = tokenizer.chat_template
    return tuple(templates.values()) if isinstance(templates, dict) else (str(templates or ""),)


def shows_tools(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a chat template of the tokenizer shows tools to the model."""
    return any(_tools_variable(source) is not None for source in _sources(tokenizer))


@lru_cache(maxsize=32)
def _tools_variable(source: str) -> str | None:
    """The variable in which a template reads tools; None if it reads none."""
    try:
        read = names_read(source, also_set=True)
    except Exception:  # rendering it will say what is wrong
        return "tools"
    return next((name for name in _TOOLS_VARIABLES if name in read), None)


@lru_cache(maxsize=32)
def _note_unread(sources: tuple[str, ...], names: frozenset[str]) -> None:
    """Log, once, which of the variables `names` no template of the tokenizer reads."""
    read = {name for source in sources for name in names_read(source)} if names else set()
    for name in sorted(names - read):
        close = difflib.get_close_matches(name[:64], read - _OWN_VARIABLES, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        logger.warning("the chat template reads no variable %s: it changes nothing%s", brief(name), hint)


def _fold_system(messages: Sequence[Message]) -> list[Message] | None:
    """Merge the system message into the first user message; None if that does not apply."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    system, user = messages[0]["content"], messages[1]["content"]
    if not isinstance(system, str) or not isinstance(user, str):
        return None
    return [{**messages[1], "content": f"{system}\n\n{user}"}, *messages[2:]]


def _is_content(content: object) -> bool:
    """Whether `content` is text or a list of text blocks. Of an image, a template would write the placeholder alone."""
    if not isinstance(content, (list, tuple)):
        return isinstance(content, str)
    texts = [part.get("text", part.get("thinking")) for part in content if isinstance(part, Mapping) and "type" in part]
    return len(texts) == len(content) and all(isinstance(text, str) for text in texts)


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return f"the tokenizer of {tokenizer.name_or_path!r}" if tokenizer.name_or_path else type(tokenizer).__name__
