"""Request bodies: OpenAI's fields plus copyspec's own. The engine checks the values."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from copyspec.checks import brief, shown
from copyspec.engine.unknown import ELSEWHERE, reject_unknown

IGNORED = frozenset(
    (
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)
"""OpenAI fields that do not affect the output and are ignored."""

NOT_OFFERED: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that would change the output but are not supported, with the values that have no effect and are accepted."""

RENAMED = dict.fromkeys(("max_completion_tokens", "max_new_tokens", "max_length"), "max_tokens")
"""Fields of other endpoints and of Python callers, and what they are called here."""


MAX_DIGITS = 20  # of a token id
TOKEN_CHARACTERS = 4  # characters of English text per token, about
MAX_STOPS = 256  # each is searched for at every token, which all requests wait for; OpenAI takes four
MAX_REFERENCES = 4096
"""Each text has a share of the time that is spent before the first token: 300,000 of one word took seconds."""


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class SharedBody(BaseModel):
    """Fields shared by both kinds of requests. None means that a field was not given.

    Elements of lists and dicts are left to the engine's checks, which stop at the first wrong one: pydantic reports
    each of a million, and takes seconds for it.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = Field(
        None, description="0 is greedy. Default: 0, or what the model's generation_config says."
    )
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[Any] | None = None
    logit_bias: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    prediction: str | dict[str, Any] | None = Field(None, description="The expected output: one more reference.")
    references: Any = Field(None, description="Texts to copy from, which the model is not shown: a list of str.")
    edit_source: Any = Field(None, description="The text that the output is an edit of; a list for several prompts.")
    spans: bool | None = Field(None, description="Say in each choice where its text was copied from.")

    def limit(self) -> int | None:
        """Requested maximum number of output tokens, or None."""
        return self.max_tokens

    def characters(self) -> int:
        """Number of characters in all texts of the request: prompts, messages, references and the like. Numbers
        in lists are token ids."""
        count, left = 0, list(self.__dict__.values())
        while left:
            value = left.pop()
            if isinstance(value, str):
                count += len(value)
            elif isinstance(value, (list, dict)):
                left += value.values() if isinstance(value, dict) else value
                if isinstance(value, list):
                    count += TOKEN_CHARACTERS * sum(isinstance(each, int) for each in value)
        return count

    def check_extra(self) -> None:
        """Raise TypeError or ValueError for unknown or unsupported fields."""
        extra = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        for name in list(extra):
            if name in IGNORED:
                del extra[name]
            elif name in NOT_OFFERED:
                value = extra.pop(name)
                # 0 is a number of log-probabilities in /v1/completions, but equal to False.
                if not any(
                    value == each and isinstance(value, bool) == isinstance(each, bool) for each in NOT_OFFERED[name]
                ):
                    raise ValueError(f"{name} is not supported here: leave it out, or serve the model with vLLM")
            elif name in RENAMED:
                raise ValueError(f"unknown option {name!r}; here it is {RENAMED[name]}")
            elif name in ELSEWHERE and re.split(r"\W", ELSEWHERE[name])[0] not in ("not", *type(self).model_fields):
                raise ValueError(f"{name} is not supported here: leave it out")
        reject_unknown(extra, type(self).model_fields)

    def options(self) -> dict[str, object]:
        """Options for `Engine.submit`, without limits and references."""
        names = ("temperature", "top_p", "n", "seed", "stop", "top_k", "min_p", "repetition_penalty", "prediction")
        given = {name: getattr(self, name) for name in (*names, "edit_source") if getattr(self, name) is not None}
        if self.logit_bias:
            given["logit_bias"] = {_token_id(name): value for name, value in self.logit_bias.items()}
        if given.get("stop") == []:
            del given["stop"]
        if not isinstance(self.stop, str) and len(self.stop or ()) > MAX_STOPS:
            raise ValueError(f"stop holds {len(self.stop or ())} strings; at most {MAX_STOPS} are taken here")
        if (count := _count(self.references)) > MAX_REFERENCES:
            raise ValueError(
                f"references holds {count} texts; at most {MAX_REFERENCES} are taken here: join short ones"
            )
        return given


class ChatBody(SharedBody):
    messages: list[Any]
    max_completion_tokens: int | None = None

    def limit(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise ValueError(f"max_tokens={old} and max_completion_tokens={new} differ: give one of them")
        return old if new is None else new

    def chat(self) -> list[dict[str, object]]:
        """The messages for the chat template: content joined into one str, role `developer` as `system`."""
        if not self.messages:
            raise ValueError("messages is empty: give at least one")
        return [_message(i, message) for i, message in enumerate(self.messages)]


class CompletionBody(SharedBody):
    prompt: str | list[Any]

    def prompts(self) -> int:
        """The number of prompts. Raises ValueError for what only Python callers may give, like a tokenizer's output."""
        if not isinstance(self.prompt, list):
            return 1
        for each in self.prompt:
            if isinstance(each, dict):
                raise ValueError(
                    f"prompt holds {shown(each)}; give a text, token ids, or a list of these. Messages of a chat go to "
                    "/v1/chat/completions"
                )
        return len(self.prompt) if self.prompt and isinstance(self.prompt[0], (str, list)) else 1


def _message(index: int, message: object) -> dict[str, object]:
    if not isinstance(message, dict):
        raise ValueError(
            f"messages[{index}] is not a chat message: {brief(message)}; write {{'role': 'user', 'content': 'text'}}"
        )
    if message.get("tool_calls") or message.get("function_call"):
        raise ValueError(f"messages[{index}] calls tools, which this server does not offer")
    kept = {name: value for name, value in message.items() if value is not None}
    if kept.get("role") == "developer":
        kept["role"] = "system"
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = "".join(_part(index, part) for part in content)
    return kept


def _count(references: object) -> int:
    """How many texts `references` holds, as one list or one list per prompt; token ids are one text."""
    each = references if isinstance(references, list) else [references]
    return sum(len(one) if isinstance(one, list) and one and not isinstance(one[0], int) else 1 for one in each)


def _part(index: int, part: object) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ValueError(
            f"messages[{index}] holds a part that is not text: {shown(part)}; write {{'type': 'text', 'text': ...}}: "
            "the model reads text only"
        )
    return text


def _token_id(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < MAX_DIGITS):
        raise ValueError(f"logit_bias maps token ids to numbers; {brief(name)} is not a token id")
    return int(name)
