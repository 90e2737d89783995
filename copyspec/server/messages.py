"""Messages of requests as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from copyspec.checks import brief, shown


def template_messages(messages: Sequence[object]) -> list[dict[str, object]]:
    """The messages for a chat template: content joined into one str, role `developer` as `system`, arguments of calls
    as objects. Raises ValueError that names the message."""
    if not messages:
        raise ValueError("messages is empty: give at least one")
    return [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _message(where: str, message: object) -> dict[str, object]:
    if not isinstance(message, dict):
        raise ValueError(
            f"{where} is not a chat message: {brief(message)}; write {{'role': 'user', 'content': 'text'}}"
        )
    if message.get("function_call"):
        raise ValueError(f"{where} has a function_call, which OpenAI has replaced: give tool_calls")
    fields = {name: value for name, value in message.items() if value is not None}
    if fields.get("role") == "developer":
        fields["role"] = "system"
    if isinstance(fields.get("refusal"), str):
        fields.setdefault("content", fields.pop("refusal"))
    content = fields.get("content")
    if isinstance(content, list):
        fields["content"] = "".join(_part(where, part) for part in content)
    if calls := fields.pop("tool_calls", None):
        fields["tool_calls"] = _calls(f"{where}.tool_calls", calls)
        fields.setdefault("content", "")  # some templates write None as a word
    return fields


def _part(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
    if not isinstance(text, str):
        raise ValueError(
            f"{where} holds a part that is not text: {shown(part)}; write {{'type': 'text', 'text': ...}}: "
            "the model reads text only"
        )
    return text


def _calls(where: str, calls: object) -> list[dict[str, object]]:
    if not isinstance(calls, list):
        raise ValueError(f"{where} must be a list of calls; got {shown(calls)}")
    return [_call(f"{where}[{i}]", call) for i, call in enumerate(calls)]


def _call(where: str, call: object) -> dict[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        form = "{'type': 'function', 'id': ..., 'function': {'name': ..., 'arguments': '{...}'}}"
        raise ValueError(f"{where} is no call of a function: {brief(call)}; write {form}")
    arguments = function.get("arguments") or "{}"  # vLLM and others send an empty str for none
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}.function.arguments is no JSON object: {brief(arguments)}")
    return {**call, "type": "function", "function": {**function, "arguments": value}}
