"""Request bodies: OpenAI's fields plus copyspec's own. The engine checks the values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from copyspec.checks import brief, is_ids, shown
from copyspec.engine.unknown import ELSEWHERE, MAX_NAME, reject_unknown
from copyspec.server.limits import check_references, count_characters

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
MAX_STOPS = 256  # each is searched for at every token, which all requests wait for; OpenAI takes four


class FieldError(ValueError):
    """A field that this server does not know or support; `field` is its name."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


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

    def characters(self, prompts: int) -> int:
        """Number of characters in all texts of a request with this number of prompts: prompts, messages, references and
        the like. Those that all prompts share count for each, as each indexes them."""
        shared: list[object] = [self.prediction]
        given = self.references if isinstance(self.references, list) else []
        if is_ids(given) or not any(isinstance(each, list) and not is_ids(each) for each in given):
            shared.append(self.references)  # not a list for each prompt
        return count_characters(self.__dict__) + (prompts - 1) * count_characters(shared)

    def check_extra(self) -> None:
        """Raise FieldError for the first unknown or unsupported field."""
        for name, value in (self.model_extra or {}).items():
            if value is None or name in IGNORED:
                continue
            try:
                self._check_extra(name, value)
            except (TypeError, ValueError) as error:
                raise FieldError(str(error), name[:MAX_NAME]) from error

    def _check_extra(self, name: str, value: object) -> None:
        if name in NOT_OFFERED:
            # 0 is a number of log-probabilities in /v1/completions, but equal to False.
            if not any(
                value == each and isinstance(value, bool) == isinstance(each, bool) for each in NOT_OFFERED[name]
            ):
                raise ValueError(f"{name} is not supported here: leave it out, or serve the model with vLLM")
            return
        fields = type(self).model_fields
        if name in RENAMED:
            raise ValueError(f"unknown option {name!r}; here it is {RENAMED[name]}")
        # Names of other libraries, for what has no field here: the Python option that they stand for would not help.
        if name in ELSEWHERE and re.split(r"\W", ELSEWHERE[name])[0] not in ("not", *fields):
            raise ValueError(f"{name} is not supported here: leave it out")
        reject_unknown({name: value}, fields)

    def options(self, own_stops: Sequence[str]) -> dict[str, object]:
        """Options for `Engine.submit`, without limits and references.

        `own_stops`: the model's own stop strings, to which those of the request are added, as in OpenAI's API: clients
        do not know them, and the option `stop` would take their place."""
        names = ("temperature", "top_p", "n", "seed", "top_k", "min_p", "repetition_penalty", "prediction")
        given = {name: getattr(self, name) for name in (*names, "edit_source") if getattr(self, name) is not None}
        if self.logit_bias:
            given["logit_bias"] = {_token_id(name): value for name, value in self.logit_bias.items()}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > MAX_STOPS:
            raise ValueError(f"stop holds {len(stop)} strings; at most {MAX_STOPS} are taken here")
        if stop:
            given["stop"] = [*own_stops, *stop]
        check_references(self.references)
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
