"""Prompts as callers write them: text, chats, token ids, and lists of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from copyspec.checks import check_ids, encodable, is_ids, plain_list, shown
from copyspec.text.chat import Message, check_chat
from copyspec.text.references import Reference

OnePrompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"
"""Text, token ids or a chat."""
ManyPrompts: TypeAlias = "list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]"

ACCEPTED = "a str, a chat ([{'role': 'user', 'content': ...}]), a list of token ids, or a list of those"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt in one of its three forms, the other two None, and what it comes with."""

    text: str | None = None
    chat: list[Message] | None = None
    ids: list[int] | None = None
    edit: Reference | None = None
    references: Sequence[Reference] = ()


def parse_prompts(prompt: object) -> tuple[list[Prompt], bool]:
    """The prompts, and whether the caller gave one alone (and gets one result, not a list).

    Raises TypeError or ValueError that names what was given and what a prompt may be.
    """
    prompt = plain_list(prompt)
    if not isinstance(prompt, (list, tuple)):
        return [_parse_one(prompt, "prompt")], True
    if not prompt:
        raise ValueError(f"prompt is an empty list; give {ACCEPTED}")
    if is_ids(prompt) or any(isinstance(item, Mapping) for item in prompt):
        return [_parse_one(prompt, "prompt")], True
    return [_parse_one(item, f"prompt[{i}]") for i, item in enumerate(prompt)], False


def _parse_one(prompt: object, where: str) -> Prompt:
    prompt = plain_list(prompt)
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError(f"{where} is an empty string; the model needs at least one token to go on from")
        return Prompt(text=encodable(prompt, where))
    if isinstance(prompt, Mapping):
        raise TypeError(f"{where} is a single chat message; a chat is a list of messages: [{dict(prompt)!r}]")
    if isinstance(prompt, (list, tuple)):
        if not prompt:
            raise ValueError(f"{where} is an empty list; the model needs at least one token to go on from")
        if is_ids(prompt):
            return Prompt(ids=check_ids(prompt, where))
        if any(isinstance(item, Mapping) for item in prompt):
            return Prompt(chat=check_chat(prompt, where))
    raise TypeError(f"{where} must be {ACCEPTED}; got {shown(prompt)}")
