"""Converts LangChain messages into the chat format of a model's template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)

from copyspec.text.chat import ChatError, Message
from copyspec.text.codec import Encoded

if TYPE_CHECKING:
    from copyspec import Engine

_SILENT_BLOCKS = frozenset(
    "tool_use tool_call tool_call_chunk invalid_tool_call function_call thinking redacted_thinking reasoning".split()  # noqa: SIM905
)
"""Blocks that are not text of the message: calls are in `tool_calls` or `invalid_tool_calls`, and earlier reasoning is
not shown to a model."""

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Tags around a call in the format of Hermes and Qwen, which most templates follow."""

Tool = Mapping[str, object]
"""A tool in OpenAI's format, as chat templates expect it."""


def encoded_prompt(
    engine: Engine,
    messages: Sequence[BaseMessage],
    tools: Sequence[Tool] = (),
    variables: Mapping[str, object] = MappingProxyType({}),
) -> Encoded:
    """The prompt as token ids, ending where the answer begins, or continues if the last message is the assistant's.

    If the template rejects the messages, adjacent ones with the same role are merged, and then tool results become user
    messages. `variables`: of the template. Raises ChatError if that does not help, and for tools if the template does
    not support them.
    """
    if not messages:
        raise ChatError("there are no messages: give at least one")
    if not any(message.content or getattr(message, "tool_calls", None) for message in messages):
        raise ChatError("every message is empty: there is nothing to answer")
    template = str(engine.tokenizer.chat_template or "")
    chat = to_chat(messages)
    if "tool" not in template:  # the template may silently drop such messages
        chat = without_tool_roles(chat)
    first: ChatError | None = None
    attempts: list[Callable[[list[Message]], list[Message]]] = [
        list,
        merged,
        lambda chat: merged(without_tool_roles(chat)),
    ]
    for change in attempts:
        try:
            return engine.codec.encode_chat(change(chat), tools, variables)
        except ChatError as error:
            first = first or error
    assert first is not None
    raise first


def to_chat(messages: Sequence[BaseMessage]) -> list[Message]:
    """Role and text of each message, with tool calls and results. Raises ValueError for content that is not text."""
    return [_to_message(message) for message in messages]


def merged(chat: Sequence[Message]) -> list[Message]:
    """Merge adjacent messages of one role like LangChain's `merge_message_runs`: many templates require user and
    assistant to alternate."""
    result: list[Message] = []
    for message in chat:
        last = result[-1] if result else None
        if last is None or last["role"] != message["role"] or message["role"] == "tool":
            result.append(message)
            continue
        both = {**last, "content": "\n".join(filter(None, (str(last["content"]), str(message["content"]))))}
        calls = [*_calls(last), *_calls(message)]
        result[-1] = {**both, "tool_calls": calls} if calls else both
    return result


def without_tool_roles(chat: Sequence[Message]) -> list[Message]:
    """Turn tool results into user messages and drop calls, for templates that support neither."""
    result: list[Message] = []
    for message in chat:
        if message["role"] in ("tool", "function"):
            # Merge with the user's message just before, if the call in between was left out.
            before = [result.pop()] if result and result[-1]["role"] == "user" else []
            result += merged([*before, {"role": "user", "content": message["content"]}])
        elif message["content"] or not _calls(message):
            result.append({key: value for key, value in message.items() if key != "tool_calls"})
    return result


def message_text(message: BaseMessage) -> str:
    """Return the text of a message. Raises ValueError for images and the like."""
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(_block_text(block, message) for block in content)


def _block_text(block: object, message: BaseMessage) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    if isinstance(block, Mapping):
        if isinstance(block.get("text"), str):
            return str(block["text"])
        if kind in _SILENT_BLOCKS:
            return ""
        if kind == "json":
            return json.dumps(block.get("json"), ensure_ascii=False)
    raise ValueError(f"the {message.type} message holds a block of type {kind!r}; the model reads text only")


def _to_message(message: BaseMessage) -> Message:
    invalid = message.invalid_tool_calls if isinstance(message, AIMessage) else []
    content = "\n".join(filter(None, (message_text(message), *map(_invalid_call, invalid))))
    chat: dict[str, object] = {"role": _role(message), "content": content}
    reasoning = message.additional_kwargs.get("reasoning_content") if isinstance(message, AIMessage) else None
    if isinstance(reasoning, str) and reasoning:
        chat["reasoning_content"] = reasoning  # the template decides which turns keep their thoughts
    if isinstance(message, AIMessage) and message.tool_calls:
        chat["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["args"]}}
            for call in message.tool_calls
        ]
    if isinstance(message, ToolMessage):
        chat["tool_call_id"] = message.tool_call_id
    if message.name:
        chat["name"] = message.name
    return chat


def _invalid_call(call: InvalidToolCall) -> str:
    """A call that could not be read, in the format of calls, so that the model sees what an error message is about. Its
    arguments are as they were written."""
    written = call["args"] or ""
    if not call["error"]:  # of a stream, which brings them as a JSON string (`ChatCall.messages_of`)
        with suppress(ValueError, RecursionError):
            decoded = json.loads(written)
            written = decoded if isinstance(decoded, str) else written
    if call["name"] and call["name"] not in written:  # other chat models store name and arguments apart
        arguments = f', "arguments": {written}' if written else ""
        written = f'{{"name": {json.dumps(call["name"], ensure_ascii=False)}{arguments}}}'
    return f"{OPEN}\n{written}\n{CLOSE}"


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    for kind, role in _ROLES:
        if isinstance(message, kind):
            return role
    raise ValueError(f"a {type(message).__name__} cannot be shown to a model")


_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (HumanMessage, "user"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
    (FunctionMessage, "function"),
)


def _calls(message: Message) -> Sequence[object]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else ()
