"""Formats results as OpenAI responses."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from copyspec.engine.results import Chunk, Result

Json = dict[str, object]


def usage(results: Sequence[Result]) -> Json:
    """Token counts of a request: each prompt once, the outputs of all samples, and drafts as OpenAI counts
    predictions."""
    outputs = [sample for result in results for sample in (result.samples or (result,))]
    prompt = sum(result.prompt_tokens for result in results)
    written = sum(len(each.token_ids) for each in outputs)
    accepted = sum(each.stats.num_accepted_tokens for each in outputs)
    drafted = sum(each.stats.num_draft_tokens for each in outputs)
    details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(each.stats.num_cached_tokens for each in results)},
        "completion_tokens_details": {**details, "reasoning_tokens": 0},
    }


@dataclass(frozen=True, slots=True)
class Replies:
    """Builds the responses to one request."""

    model: str
    is_chat: bool
    with_spans: bool
    with_usage: bool = False  # in streams only
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, results: Sequence[Result]) -> Json:
        """The full response: one choice per prompt and sample, with the samples of a prompt next to each other."""
        outputs = [sample for result in results for sample in (result.samples or (result,))]
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return {**self._head(streams=False), "choices": choices, "usage": usage(results)}

    def first(self) -> list[Json]:
        """The opening events of a stream."""
        return [self._event([self._delta(0, {"role": "assistant", "content": ""})])] if self.is_chat else []

    def event(self, chunk: Chunk) -> Json | None:
        """The event for a chunk; None if it has neither text nor a result."""
        if not chunk.text and chunk.result is None:
            return None
        delta = {"content": chunk.text} if self.is_chat else chunk.text
        choice = self._delta(chunk.index, delta)
        if chunk.result is not None:
            choice["finish_reason"] = chunk.result.finish_reason
            choice |= self._spans(chunk.result)
        return self._event([choice])

    def last(self, results: Sequence[Result]) -> list[Json]:
        """The closing events of a stream."""
        return [{**self._head(streams=True), "choices": [], "usage": usage(results)}] if self.with_usage else []

    def _choice(self, index: int, output: Result) -> Json:
        content: Json = (
            {"message": {"role": "assistant", "content": output.text}} if self.is_chat else {"text": output.text}
        )
        ended = {"finish_reason": output.finish_reason, "logprobs": None}
        return {"index": index, **content, **ended, **self._spans(output)}

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

    def _spans(self, output: Result) -> Json:
        return {"spans": [asdict(span) for span in output.spans]} if self.with_spans else {}


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
