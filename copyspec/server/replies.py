"""Formats results as OpenAI responses."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from copyspec.engine.results import Chunk, Result
from copyspec.engine.results.logprobs import TokenLogprob
from copyspec.text.replies.reader import Parts

Json = dict[str, object]

ID_CHARACTERS = 9
"""Of a call's id: Mistral's templates take no others."""


def usage(results: Sequence[Result]) -> Json:
    """Token counts of a request: each prompt once, the outputs of all samples, and drafts as OpenAI counts
    predictions."""
    outputs = [sample for result in results for sample in (result.samples or (result,))]
    prompt = sum(result.prompt_tokens for result in results)
    written = sum(len(output.token_ids) for output in outputs)
    accepted = sum(output.stats.num_accepted_tokens for output in outputs)
    drafted = sum(output.stats.num_draft_tokens for output in outputs)
    details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
    details["reasoning_tokens"] = sum(output.parts.num_reasoning_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(result.stats.num_cached_tokens for result in results)},
        "completion_tokens_details": details,
    }


@dataclass(frozen=True, slots=True)
class Replies:
    """Builds the responses to one request."""

    model: str
    is_chat: bool
    with_spans: bool
    with_changes: bool = False
    with_logprobs: bool = False
    with_usage: bool = False  # in streams only
    n: int = 1  # choices per prompt
    most_calls: int | None = None  # in each choice, the first ones; None: all
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, results: Sequence[Result]) -> Json:
        """The full response: one choice per prompt and sample, with the samples of a prompt next to each other."""
        outputs = [sample for result in results for sample in (result.samples or (result,))]
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return {**self._head(streams=False), "choices": choices, "usage": usage(results)}

    def first(self) -> list[Json]:
        """The opening events of a stream."""
        role = {"role": "assistant", "content": ""}
        return [self._event([self._delta(index, role)]) for index in range(self.n)] if self.is_chat else []

    def events(self, chunk: Chunk) -> list[Json]:
        """The events for a chunk; none if it has neither text nor a result. Calls come with the result."""
        index, result = chunk.index * self.n + chunk.sample, chunk.result
        last = self._delta(index, {} if self.is_chat else chunk.text)
        if result is not None:
            last |= {"finish_reason": self._finish_reason(result), **self._places(result)}
        if not self.is_chat:
            return [self._event([last])] if chunk.text or result is not None else []
        delta = {"reasoning_content": chunk.reasoning, "content": chunk.content}
        if result is not None:
            delta["content"] += _content(result.parts)[len(result.parts.content) :]
        deltas: list[Json] = [{name: text for name, text in delta.items() if text}]
        if result is not None:
            deltas += [
                {"tool_calls": [{"index": i, **call}]} for i, call in enumerate(_calls(result.parts)[: self.most_calls])
            ]
        choices = [self._delta(index, delta) for delta in deltas if delta]
        if self.with_logprobs and chunk.logprobs:
            choices = choices or [self._delta(index, {"content": ""})]
            choices[0] |= {"logprobs": _logprobs(chunk.logprobs, is_last=result is not None)}
        return [self._event([choice]) for choice in (choices if result is None else [*choices, last])]

    def last(self, results: Sequence[Result]) -> list[Json]:
        """The closing events of a stream."""
        return [{**self._head(streams=True), "choices": [], "usage": usage(results)}] if self.with_usage else []

    def _choice(self, index: int, output: Result) -> Json:
        content: Json = {"message": _message(output.parts, self.most_calls)} if self.is_chat else {"text": output.text}
        logprobs = _logprobs(output.logprobs, is_last=True) if self.with_logprobs else None
        ended = {"finish_reason": self._finish_reason(output), "logprobs": logprobs}
        return {"index": index, **content, **ended, **self._places(output)}

    def _delta(self, index: int, delta: object) -> Json:
        return {"index": index, ("delta" if self.is_chat else "text"): delta, "finish_reason": None, "logprobs": None}

    def _event(self, choices: list[Json]) -> Json:
        return {**self._head(streams=True), "choices": choices, **({"usage": None} if self.with_usage else {})}

    def _head(self, *, streams: bool) -> Json:
        kind = ("chat.completion" + (".chunk" if streams else "")) if self.is_chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _finish_reason(self, output: Result) -> str:
        calls = self.is_chat and output.finish_reason == "stop" and bool(output.tool_calls)
        return "tool_calls" if calls else output.finish_reason

    def _places(self, output: Result) -> Json:
        places: Json = {"spans": [asdict(span) for span in output.spans]} if self.with_spans else {}
        if self.with_changes:
            changes = [asdict(change) for change in output.changes]
            places["changes"] = [change | {"margin": _finite(change["margin"])} for change in changes]
        return places


def _logprobs(tokens: Sequence[TokenLogprob], *, is_last: bool) -> Json:
    """Log-probabilities in OpenAI's format, without the token that ended the output."""
    shown = tokens[:-1] if is_last and tokens and not tokens[-1].token else tokens
    content = [{**_token(token), "top_logprobs": list(map(_token, token.top))} for token in shown]
    return {"content": content, "refusal": None}


def _token(token: TokenLogprob) -> Json:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.token.encode("utf-8", "replace"))}


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _message(parts: Parts, most_calls: int | None) -> Json:
    """An answer. Thoughts are where vLLM, SGLang and DeepSeek have them."""
    calls, content = _calls(parts)[:most_calls], _content(parts)
    message: Json = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
    if parts.reasoning:
        message["reasoning_content"] = parts.reasoning
    return {**message, "tool_calls": calls} if calls else message


def _content(parts: Parts) -> str:
    """The text of an answer, with that of calls that cannot be read: clients have no other place for it."""
    return "\n".join(filter(None, [parts.content, *[call.text for call in parts.invalid]]))


def _calls(parts: Parts) -> list[Json]:
    return [
        {
            "id": uuid.uuid4().hex[:ID_CHARACTERS],
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in parts.calls
    ]


def as_json(data: object) -> bytes:
    """Encode as JSON. Characters that cannot be encoded, such as a lone surrogate in an echoed value, become `?`."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def server_sent(data: object) -> bytes:
    """One server-sent event. U+0085, U+2028 and U+2029 are escaped: clients may split lines with `str.splitlines`."""
    line = as_json(data)
    for char in "\x85\u2028\u2029":
        line = line.replace(char.encode(), f"\\u{ord(char):04x}".encode())
    return b"data: " + line + b"\n\n"


DONE = b"data: [DONE]\n\n"
