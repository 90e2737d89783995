"""What is asked of a server: one prompt with its limit, its sampling options and the texts to copy from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from copyspec.client.asking import Asking
from copyspec.client.dialects import Dialect
from copyspec.common.checks import plain_value
from copyspec.engine.asking.inputs import Input, parse_edits, parse_prompts, parse_references
from copyspec.engine.asking.unknown import reject_unknown
from copyspec.text.chat import with_system
from copyspec.views.provenance import SourceText

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
            references=[each.text for each in self.references if each.text],
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
        shown = "\n\n".join(str(each.get("content") or "") for each in self.messages)
        return [*edit, *self.references, SourceText("prompt", "prompt", None, shown)]


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


def request_for(each: Input, how: Asking) -> ChatRequest:
    """The greedy request for one of many inputs."""
    return ChatRequest(
        _messages(each.prompt, how.system),
        each.edit_source,
        _texts(each.references),
        plain_value(each.max_new_tokens),  # type: ignore[arg-type]
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
    return [SourceText(each.name, each.kind, each.index, each.text) for each in listed if each.text]
