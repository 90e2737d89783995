"""Parses the prompts that callers give: text, chats, token ids, and lists of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from copyspec.checks import brief, check_ids, encodable, is_ids, plain_list, shown
from copyspec.text.chat import Message, check_chat, map_texts
from copyspec.text.codec import Encoded
from copyspec.text.references import Reference

OnePrompt: TypeAlias = "str | Sequence[int] | Sequence[Message] | Mapping[str, object]"
"""Text, token ids, a chat, or a tokenizer's output for one text."""
ManyPrompts: TypeAlias = "list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]"

ACCEPTED = "a str, a chat ([{'role': 'user', 'content': ...}]), a list of token ids, or a list of those"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: exactly one of `text`, `chat` and `ids` is set. Also holds its edit source and references."""

    text: str | None = None
    chat: list[Message] | None = None
    ids: list[int] | None = None
    leaves_space: bool = False  # for ids: see `Encoded`
    edit: Reference | None = None
    references: Sequence[Reference] = ()


def parse_prompts(prompt: object) -> tuple[list[Prompt], bool]:
    """Parse prompts; the bool says whether a single one was given (which gets one result instead of a list).

    Raises TypeError or ValueError that names the value and the accepted forms.
    """
    prompt = _unpadded(prompt, "prompt") if _is_encoding(prompt) else plain_list(prompt)
    if not isinstance(prompt, (list, tuple)):
        return [_parse_one(prompt, "prompt")], True
    if not prompt:
        raise ValueError(f"prompt is an empty list; give {ACCEPTED}")
    if is_ids(prompt) or any(isinstance(item, Mapping) and not _is_encoding(item) for item in prompt):
        return [_parse_one(prompt, "prompt")], True
    return [_parse_one(item, f"prompt[{i}]") for i, item in enumerate(prompt)], False


def _parse_one(prompt: object, where: str) -> Prompt:
    if isinstance(prompt, Encoded):
        return Prompt(ids=prompt.ids, leaves_space=prompt.leaves_space)
    if _is_encoding(prompt):
        rows = _unpadded(prompt, where)
        prompt = rows[0] if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], (list, tuple)) else rows
    prompt = plain_list(prompt)
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError(f"{where} is an empty string; the model needs at least one token to continue from")
        return Prompt(text=encodable(prompt, where))
    if isinstance(prompt, Mapping):
        raise TypeError(f"{where} is a single chat message; a chat is a list of messages: [{brief(dict(prompt))}]")
    if isinstance(prompt, (list, tuple)):
        if not prompt:
            raise ValueError(f"{where} is an empty list; the model needs at least one token to continue from")
        if is_ids(prompt):
            return Prompt(ids=check_ids(prompt, where))
        if any(isinstance(item, Mapping) for item in prompt):
            chat = check_chat(prompt, where)
            map_texts(chat, lambda text, role: encodable(text, f"{where}, a message of {role!r},"))
            return Prompt(chat=chat)
    raise TypeError(f"{where} must be {ACCEPTED}; got {shown(prompt)}")


def _is_encoding(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether `value` is a tokenizer's output: a BatchEncoding, or a dict of its tensors."""
    return isinstance(value, Mapping) and "input_ids" in value


def _unpadded(encoding: Mapping[str, object], where: str) -> object:
    """The token ids of an encoding (one list, or one per row) without padding on either side."""
    ids, mask = plain_list(encoding["input_ids"]), plain_list(encoding.get("attention_mask"))
    if mask is None or not isinstance(ids, (list, tuple)):
        return ids
    if is_ids(ids):
        return _seen(ids, mask, where)
    if not isinstance(mask, (list, tuple)) or len(mask) != len(ids):
        raise ValueError(f"{where}: input_ids has {len(ids)} rows, and attention_mask has another number of them")
    return [_seen(plain_list(row), plain_list(seen), where) for row, seen in zip(ids, mask, strict=True)]


def _seen(ids: object, mask: object, where: str) -> list[object]:
    if not isinstance(ids, (list, tuple)) or not isinstance(mask, (list, tuple)) or len(ids) != len(mask):
        raise ValueError(f"{where}: input_ids and attention_mask differ in shape")
    seen = [i for i, each in enumerate(mask) if each]
    if seen and seen[-1] - seen[0] + 1 != len(seen):
        raise ValueError(f"{where}: attention_mask masks tokens between others; it may mask padding on either side")
    return [ids[i] for i in seen]
