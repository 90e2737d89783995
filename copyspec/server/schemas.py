"""Request bodies: OpenAI's fields plus copyspec's own. The engine checks the values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from copyspec.common.checks import brief, check_number, check_whole, is_ids, shown
from copyspec.engine.asking.unknown import MAX_NAME, elsewhere, reject_unknown
from copyspec.options import MIN_TEMPERATURE
from copyspec.server.errors import FieldError
from copyspec.server.settings import check_references, count_characters
from copyspec.text.replies.tools import tool_name, tool_names

IGNORED = frozenset(
    (
        "metadata",
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
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logprobs": (False,),  # of completions; chats have them
    "modalities": (["text"],),
    "min_tokens": (0,),
    "moderation": (),
    "presence_penalty": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that would change the output but are not supported, with the values that have no effect and are accepted."""

RENAMED = dict.fromkeys(("max_completion_tokens", "max_new_tokens", "max_length"), "max_tokens")
"""Fields of other endpoints and of Python callers, and what they are called here."""


OPTIONS = (
    *("temperature", "top_p", "n", "seed", "top_k", "min_p", "repetition_penalty", "stop_token_ids"),
    *("prediction", "edit_source"),
)
"""Fields that are options of the same name."""

MAX_TEMPERATURE, MAX_BIAS = 2.0, 100.0  # as in OpenAI's API
MAX_TOP = 20  # most likely tokens at each position, as in OpenAI's API
MAX_DIGITS = 20  # of a token id
MAX_STOPS = 256  # each is searched for at every token, which all requests wait for; OpenAI takes four


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None


class TokenizeBody(BaseModel):
    """A text or a chat whose tokens are counted, as vLLM's /tokenize takes it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    prompt: str | None = Field(None, description="A text, without special tokens around it.")
    messages: list[Any] | None = Field(None, description="A chat, put through the model's template.")


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
    stop_token_ids: list[Any] | None = None
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
    changes: bool | None = Field(None, description="Say in each choice where it leaves edit_source, with margins.")
    drafts: bool | None = Field(None, description="False: decode this request plainly; the output is the same.")

    def limit(self) -> int | None:
        """Requested maximum number of output tokens, or None."""
        return self.max_tokens

    def characters(self, prompts: int) -> int:
        """Number of characters in all texts of a request with this number of prompts: prompts, messages, references and
        the like. Those that all prompts share count for each, as each indexes them."""
        shared: list[object] = [self.prediction]
        references = self.references if isinstance(self.references, list) else []
        if is_ids(references) or not any(isinstance(item, list) and not is_ids(item) for item in references):
            shared.append(self.references)  # not a list for each prompt
        return count_characters([*self.__dict__.values()]) + (prompts - 1) * count_characters(shared)

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
                value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
                for neutral in NOT_OFFERED[name]
            ):
                raise ValueError(f"{name} is not supported here: leave it out, or serve the model with vLLM")
            return
        fields = type(self).model_fields
        if name in RENAMED:
            raise ValueError(f"unknown option {name!r}; here it is {RENAMED[name]}")
        # Names of other libraries, for what has no field here: the Python option that they stand for would not help.
        other = elsewhere().get(name)
        if other and ("generation_config" in other or re.split(r"\W", other)[0] not in ("not", *fields)):
            raise ValueError(f"{name} is not supported here: leave it out")
        reject_unknown({name: value}, fields)

    def options(self, own_stops: Sequence[str]) -> dict[str, object]:
        """Options for `Engine.submit`, without limits and references. Raises ValueError for values that OpenAI's API
        does not take.

        `own_stops`: the model's own stop strings, to which those of the request are added, as in OpenAI's API: clients
        do not know them, and the option `stop` would take their place."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams only: set stream, or leave it out")
        options = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        if self.temperature is not None:
            check_number("temperature", self.temperature, low=0.0, high=MAX_TEMPERATURE)
            if 0 < self.temperature < MIN_TEMPERATURE:  # some clients write 1e-8 for greedy; more precise is no float32
                options["temperature"] = MIN_TEMPERATURE
        if self.top_p == 0:
            options |= {"top_p": 1.0, "top_k": 1}
        if self.seed is not None and self.seed < 0:
            check_whole("seed", self.seed, low=-(1 << 63))
            options["seed"] = self.seed + (1 << 64)  # the same 64 bits
        if self.drafts is False:
            options["drafter"] = "none"
        if self.logit_bias:
            options["logit_bias"] = bias = {_token_id(name): value for name, value in self.logit_bias.items()}
            for token, value in bias.items():
                check_number(f"logit_bias[{token}]", value, low=-MAX_BIAS, high=MAX_BIAS)
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stop) > MAX_STOPS:
            raise ValueError(f"stop holds {len(stop)} strings; at most {MAX_STOPS} are taken here")
        if stop:
            options["stop"] = [*own_stops, *stop]
        check_references(self.references)
        return options


class ChatBody(SharedBody):
    messages: list[Any]
    max_completion_tokens: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = Field(None, description="False: the first call of an answer alone.")
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables of the chat template.")
    reasoning_effort: str | None = Field(None, description="The variable of this name, where the template reads it.")
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def limit(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise FieldError(f"max_tokens={old} and max_completion_tokens={new} differ: give one of them", None)
        return old if new is None else new

    def chat_options(self, template: str) -> dict[str, object]:
        """Options for `Engine.submit` that only chats have. `template`: the model's chat template."""
        if isinstance(self.edit_source, list) and not is_ids(self.edit_source):
            raise ValueError("edit_source must be a str, as a chat is one prompt; lists are for /v1/completions")
        tools, choice = self._choice()
        options: dict[str, object] = {"tools": tools}
        if self.top_logprobs:
            check_whole("top_logprobs", self.top_logprobs, low=0, high=MAX_TOP)
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs comes with log-probabilities: set logprobs to true, or leave it out")
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        if choice is not None:
            options["tool_choice"] = choice
        variables = {**self._effort(template), **(self.chat_template_kwargs or {})}
        if variables:
            options["chat_template_kwargs"] = variables
        schema = _schema(self.response_format or {"type": "text"})
        if schema is not None and (not tools or choice in (None, "auto", "none")):  # else the output is a call
            options["json_schema"] = schema
        return options

    def _choice(self) -> tuple[list[Any], object]:
        """The tools that may be called, and which of them. OpenAI's `allowed_tools` are a part of those given."""
        tools, choice = self.tools or [], self.tool_choice
        allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
        if not isinstance(allowed, dict):
            return tools, choice
        parts = allowed.get("tools")
        if not isinstance(parts, list) or any(not isinstance(part, dict) or tool_name(part) is None for part in parts):
            form = "{'type': 'function', 'function': {'name': ...}}"
            raise FieldError(f"allowed_tools.tools must be a list of {form}; got {brief(parts)}", "tool_choice")
        names = tool_names(parts)
        if unknown := sorted({*names} - {*tool_names([tool for tool in tools if isinstance(tool, dict)])}):
            raise FieldError(f"tool_choice allows {brief(unknown[0])}, which is none of the tools", "tool_choice")
        may = [tool for tool in tools if not isinstance(tool, dict) or tool_name(tool) in names]
        return may, allowed.get("mode")

    def _effort(self, template: str) -> dict[str, object]:
        """The variables that `reasoning_effort` stands for."""
        effort = self.reasoning_effort
        if effort is None or "reasoning_effort" in template:
            return {} if effort is None else {"reasoning_effort": effort}
        if effort == "none":
            return {"enable_thinking": False} if "enable_thinking" in template else {}
        raise ValueError(
            "reasoning_effort is not supported here, as the model's chat template does not read it: leave it out, or "
            "give chat_template_kwargs that the template reads"
        )


class CompletionBody(SharedBody):
    prompt: str | list[Any]
    add_special_tokens: bool | None = Field(None, description="False: put nothing around a text. Default: true.")

    def text_options(self) -> dict[str, object]:
        """Options for `Engine.submit` that only completions have."""
        prompts = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        is_bare = self.add_special_tokens is False and any(isinstance(prompt, str) for prompt in prompts)
        return {"rendered": True if is_bare else "auto"}

    def prompts(self) -> int:
        """The number of prompts. Raises ValueError for what only Python callers may give, like a tokenizer's output."""
        if not isinstance(self.prompt, list):
            return 1
        for prompt in self.prompt:
            if isinstance(prompt, dict):
                raise ValueError(
                    f"prompt holds {shown(prompt)}; give a text, token ids, or a list of these. Messages of a chat go "
                    "to /v1/chat/completions"
                )
        return len(self.prompt) if self.prompt and isinstance(self.prompt[0], (str, list)) else 1


def _schema(form: Mapping[str, object]) -> object | None:
    """The JSON schema that a `response_format` stands for; None for text. Raises ValueError for another format."""
    kind = form.get("type")
    if kind == "text":
        return None
    inner = form.get("json_schema", form) if kind == "json_schema" else form
    schema = inner.get("schema") if isinstance(inner, dict) else None  # not in OpenAI's form: llama.cpp, Together
    if kind == "json_object" and schema is None:
        return {"type": "object"}
    if kind not in ("json_object", "json_schema"):
        schema = None
    if not isinstance(schema, dict):
        forms = "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}, or type json_object or text"
        raise ValueError(f"response_format is none that is known here: {brief(form)}; write {forms}")
    return schema


def _token_id(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < MAX_DIGITS):
        raise ValueError(f"logit_bias maps token ids to numbers; {brief(name)} is not a token id")
    return int(name)
