"""What servers take besides OpenAI's plain fields: the edited text, references, predictions, margins.

The margin of a change is the log-probability of its first token less that of the edited text's own token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from copyspec.client.asking import Asking
from copyspec.client.sending import RefusedError
from copyspec.common.checks import plain_value
from copyspec.engine.asking.inputs import Input, parse_edits, parse_prompts, parse_references
from copyspec.engine.asking.unknown import reject_unknown
from copyspec.text.chat import with_system
from copyspec.views.provenance import SourceText

Name = Literal["auto", "copyspec", "vllm", "vllm-xargs", "prediction", "plain"]
DIALECTS: tuple[str, ...] = get_args(Name)

TOP_LOGPROBS = 5
"""Most likely tokens asked for at each position, from which margins are computed; Fireworks gives no more."""

_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length")
"""Fields of a model's card that hold the tokens of its context."""

_SYSTEM = re.compile(r"system (?:role|message|prompt|instruction)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Card:
    """What a server says of a model."""

    names: tuple[str, ...] = ()  # of all its models
    owner: str = ""
    context: int | None = None
    own_model: str | None = None  # the short name, if it is one of copyspec's own models

    @classmethod
    def of(cls, data: bytes, model: str | None) -> Card:
        """Read the answer of /models; anything else is an empty card."""
        try:
            listed = json.loads(data)["data"]
            cards = [card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str)]
        except (ValueError, KeyError, TypeError, RecursionError):
            return cls()
        card = next((card for card in cards if card["id"] == model), cards[0] if len(cards) == 1 else {})
        context = next((value for name in _CONTEXT if type(value := card.get(name)) is int and value > 0), None)
        own_model = card.get("own_model")
        owner = str(card.get("owned_by") or "")
        return cls(
            tuple(card["id"] for card in cards), owner, context, own_model if isinstance(own_model, str) else None
        )


@dataclass(slots=True)
class Dialect:
    """How requests to one server are written. Fields that it refused are left out from then on."""

    name: str
    model: str
    limit_field: str = "max_tokens"
    takes_system: bool = True
    left_out: set[str] = field(default_factory=set)

    def body(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        edit_source: str | None = None,
        references: Sequence[str] = (),
        drafts: bool = True,
        margins: bool = False,
        logprobs: int | None = None,
        **fields: object,
    ) -> dict[str, object]:
        """A request. `fields`: as in OpenAI's API; None leaves one out."""
        copyspec_fields: dict[str, object] = {"edit_source": edit_source, "references": list(references) or None}
        extra: dict[str, object] = {}
        if not drafts:
            extra = {} if self.name in ("prediction", "plain") else {"drafts": False}
        elif self.name in ("copyspec", "vllm"):
            extra = copyspec_fields
        elif self.name == "prediction" and edit_source:
            extra = {"prediction": {"type": "content", "content": edit_source}}
        if self.name == "vllm-xargs":
            xargs = copyspec_fields if drafts else {"drafts": 0}
            extra = {"vllm_xargs": {f"copyspec_{name}": value for name, value in xargs.items() if value is not None}}
            extra = extra if extra["vllm_xargs"] else {}
        if margins and edit_source and self.name == "copyspec":
            extra |= {"edit_source": edit_source, "changes": True}
        elif (margins and edit_source and self.name != "plain") or logprobs is not None:
            extra |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS if logprobs is None else logprobs}
        limit = fields.pop("max_tokens", None)
        body = {"model": self.model, "messages": self._messages(messages), self.limit_field: limit, **fields, **extra}
        return {name: value for name, value in body.items() if value is not None and name not in self.left_out}

    def _messages(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages, with the system message in front of the first other one for models that take none."""
        if self.takes_system or len(messages) < 2 or messages[0]["role"] != "system":
            return list(messages)
        system, first, *rest = messages
        return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]

    def without(self, body: Mapping[str, object], error: RefusedError) -> str | None:
        """Adapt later requests after the server has refused `body`. Returns a message about what changes, "" if an
        earlier refusal has changed it; None if there is nothing to change."""
        if self.left_out.intersection(body) or (self.limit_field not in body and "max_tokens" in body):
            return ""  # written before the server had refused another request
        if "max_tokens" in body and error.names("max_completion_tokens"):
            self.limit_field = "max_completion_tokens"
            return "it wants max_completion_tokens"
        if self.takes_system and _has_system(body) and _SYSTEM.search(str(error)):
            self.takes_system = False
            return "it takes no system messages: the text stands in front of the user's"
        ours = [name for name in body if name not in ("model", "messages")]
        refused = [name for name in ours if error.names(name)]
        if not refused and not self.left_out:  # it does not say which: all that is not in every server
            refused = [name for name in ours if name not in ("temperature", self.limit_field)]
        if {"logprobs", "top_logprobs"} & set(refused):
            refused = [*refused, "logprobs", "top_logprobs"]
        if not refused:
            return None
        self.left_out.update(refused)
        return f"it does not take {', '.join(dict.fromkeys(refused))}: left out from now on"


def _has_system(body: Mapping[str, object]) -> bool:
    messages = body.get("messages")
    return isinstance(messages, list) and bool(messages) and messages[0].get("role") == "system"


def dialect_of(owner: str) -> str:
    """The dialect of a server whose models have this owner; vLLM's is told apart by a request."""
    known = {"copyspec": "copyspec", "vllm": "vllm"}
    return known.get(owner, "prediction")


OPTIONS = frozenset(
    (
        *("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "logprobs"),
        *("system", "edit_source", "drafter"),
    )
)
"""Options of `generate` that a server can be asked for."""

_OFF = {"top_k": 0, "min_p": 0.0, "repetition_penalty": None, "stop": None}
"""Values of options that not every server has for which nothing is sent."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One prompt with what comes with it."""

    messages: Sequence[Mapping[str, Any]]
    edit_source: str | None
    references: Sequence[SourceText]
    max_new_tokens: int | None
    drafts: bool = True
    margins: bool = False
    logprobs: int | None = None
    fields: Mapping[str, object] | None = None
    streams: bool = False

    def body(self, dialect: Dialect, variables: Mapping[str, object]) -> dict[str, object]:
        return dialect.body(
            self.messages,
            edit_source=self.edit_source,
            references=[reference.text for reference in self.references if reference.text],
            drafts=self.drafts,
            margins=self.margins,
            logprobs=self.logprobs,
            max_tokens=self.max_new_tokens,
            stream_options={"include_usage": True} if self.streams else None,
            chat_template_kwargs=dict(variables) or None,
            **({"temperature": 0.0} if self.fields is None else self.fields),
        )

    def sources(self) -> list[SourceText]:
        """The texts that the answer may repeat, the likeliest first."""
        edit = [SourceText("edit_source", "edit", None, self.edit_source)] if self.edit_source else []
        prompt = "\n\n".join(str(message.get("content") or "") for message in self.messages)
        return [*edit, *self.references, SourceText("prompt", "prompt", None, prompt)]


def request_of(prompt: object, references: object, options: Mapping[str, Any]) -> ChatRequest:
    """The request for one prompt, a text or a chat. Raises TypeError or ValueError for what no server takes."""
    reject_unknown(options, sorted(OPTIONS))
    chosen = {name: value for name in ("temperature", "top_p", "seed") if (value := options.get(name)) is not None}
    chosen |= {name: value for name, off in _OFF.items() if (value := options.get(name)) not in (off, None)}
    (edit,) = parse_edits(options.get("edit_source"), 1)
    return ChatRequest(
        _messages(prompt, options.get("system")),
        None if edit is None else edit.text,
        _texts(references),
        plain_value(options.get("max_new_tokens")),  # type: ignore[arg-type]
        drafts=options.get("drafter") != "none",
        logprobs=options.get("logprobs"),
        fields=chosen,
    )


def request_for(input_: Input, how: Asking) -> ChatRequest:
    """The greedy request for one of many inputs."""
    return ChatRequest(
        _messages(input_.prompt, how.system),
        input_.edit_source,
        _texts(input_.references),
        plain_value(input_.max_new_tokens),  # type: ignore[arg-type]
        drafts=how.drafts,
        margins=how.margins,
        logprobs=how.logprobs,
    )


def _messages(prompt: object, system: str | None) -> Sequence[Mapping[str, Any]]:
    (parsed, *more), _ = parse_prompts(prompt)
    if more or parsed.ids is not None:
        raise TypeError("a server takes one prompt at a time, a text or a chat")
    return with_system(parsed.messages or [{"role": "user", "content": parsed.text or ""}], system)


def _texts(references: object) -> list[SourceText]:
    (listed,) = parse_references(references, 1)
    return [
        SourceText(reference.name, reference.kind, reference.index, reference.text)
        for reference in listed
        if reference.text
    ]
