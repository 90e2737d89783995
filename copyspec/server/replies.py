"""Results as OpenAI's clients read them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from copyspec.engine.results import Chunk, Result

Json = dict[str, object]


def usage(results: Sequence[Result]) -> Json:
    """Tokens of a request: prompts once, outputs of all samples, drafts as OpenAI counts predictions."""
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
    """The answers to one request."""

    model: str
    is_chat: bool
    with_spans: bool
    with_usage: bool = False  # in a stream
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, results: Sequence[Result]) -> Json:
        """A choice per prompt and sample, samples of one prompt side by side."""
        outputs = [sample for result in results for sample in (result.samples or (result,))]
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return {**self._head(streams=False), "choices": choices, "usage": usage(results)}

    def first(self) -> list[Json]:
        """What a stream begins with."""
        return [self._event([self._delta(0, {"role": "assistant", "content": ""})])] if self.is_chat else []

    def event(self, chunk: Chunk) -> Json | None:
        """A piece of a stream; None where there is nothing to say."""
        if not chunk.text and chunk.result is None:
            return None
        delta = {"content": chunk.text} if self.is_chat else chunk.text
        choice = self._delta(chunk.index, delta)
        if chunk.result is not None:
            choice["finish_reason"] = chunk.result.finish_reason
            choice |= self._spans(chunk.result)
        return self._event([choice])

    def last(self, results: Sequence[Result]) -> list[Json]:
        """What a stream ends with."""
        return [{**self._head(streams=True), "choices": [], "usage": usage(results)}] if self.with_usage else []

    def _choice(self, index: int, output: Result) -> Json:
        said: Json = (
            {"message": {"role": "assistant", "content": output.text}} if self.is_chat else {"text": output.text}
        )
        ended = {"finish_reason": output.finish_reason, "logprobs": None}
        return {"index": index, **said, **ended, **self._spans(output)}

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
    """What cannot be encoded, a lone surrogate in an echoed value say, stands as `?`."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")


def server_sent(data: object) -> bytes:
    """One event of a stream."""
    return b"data: " + as_json(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"
