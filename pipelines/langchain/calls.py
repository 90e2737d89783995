"""One call of a model: submits its prompts to the engine, and adds the metadata that LangChain expects to answers."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from langchain_core.messages.ai import OutputTokenDetails, UsageMetadata

from copyspec import Chunk, Result
from copyspec.engine.asking.call_options import OPTIONS
from copyspec.engine.asking.unknown import reject_unknown

from .documents import CopiedPart, copied_parts, text_of

if TYPE_CHECKING:
    from copyspec import Engine, Span, Stats
    from copyspec.engine.results.logprobs import TokenLogprob
    from copyspec.engine.running.call import Call

_COUNTERS = ("num_passes", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens")


@dataclass(slots=True)
class Answered:
    """One answer, complete or as far as it has been streamed, and the references that its citations may name."""

    references: Sequence[object]
    text: str = ""
    latest: Result | Chunk | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of the answer; while it is streamed, those that can no longer change."""
        return self.latest.spans if self.latest is not None else ()


# Collects the answers given in a context, for callers that need more than a message holds.
ANSWERED: ContextVar[list[Answered] | None] = ContextVar("copyspec_answered", default=None)


class Answers:
    """The answers of one call of a model, with metadata for LangChain."""

    def __init__(
        self,
        named_engine: tuple[Engine, str],
        prompts: Sequence[object],
        references: Sequence[Sequence[object]],
        options: Mapping[str, object],
        timeout: object,
        loop: AbstractEventLoop | None = None,
        named: Sequence[int] | None = None,
    ) -> None:
        """`loop`: the event loop that waits for the call, if there is one. `named`: how many of each prompt's
        references may be named; all without it. Raises TypeError and ValueError for invalid arguments, before anything
        runs."""
        self.engine, self.model_name = named_engine
        counts = [len(reference) for reference in references] if named is None else named
        self.references = [row[:count] for row, count in zip(references, counts, strict=True)]
        self._streamed: dict[int, Answered] = {}  # by prompt
        call_options = {**options, "timeout": timeout}
        reject_unknown(call_options, OPTIONS)  # before a name meets an argument of `submit`
        own = [[*row[:count], *map(text_of, row[count:])] for row, count in zip(references, counts, strict=True)]
        self._n = cast("int", options.get("n") or 1)
        self._call: Call = self.engine.submit(list(prompts), own, loop=loop, **call_options)  # type: ignore[arg-type]

    def results(self) -> list[Result]:
        """Return a result for each prompt."""
        return self._noted(self._call.results())

    async def aresults(self) -> list[Result]:
        """Like `results`. Cancelling the task ends the decoding within one step."""
        return self._noted(await self._call.aresults())

    def chunks(self) -> Iterator[Chunk]:
        """Yield the answers in pieces. Closing the iterator ends the decoding within one step."""
        self._check_stream()
        chunks = self._call.chunks()
        try:
            for chunk in chunks:
                yield self._seen(chunk)
        finally:
            chunks.close()

    async def achunks(self) -> AsyncGenerator[Chunk, None]:
        """Like `chunks`. Cancelling the task ends the decoding, too."""
        self._check_stream()
        async with aclosing(self._call.achunks()) as chunks:
            async for chunk in chunks:
                yield self._seen(chunk)

    def metadata(self, result: Result, index: int = 0) -> dict[str, object]:
        """Return the `response_metadata` of one answer, which contains no text of a reference."""
        copied = copied_parts(result.text, result.spans, self.references[index])
        parts = [part.to_dict() for part in in_content(copied, result)]
        is_called = result.finish_reason == "stop" and bool(result.tool_calls)
        return {
            "model_name": self.model_name,
            "model_provider": "copyspec",
            "finish_reason": "tool_calls" if is_called else result.finish_reason,
            "copyspec": {**_counters(result.stats), "spans": parts},
            **({"logprobs": {"content": list(map(self._logprob, result.logprobs))}} if result.logprobs else {}),
        }

    def _check_stream(self) -> None:
        """Raise ValueError for several samples: LangChain would join the pieces of all to one message."""
        if (n := self._n) > 1:
            self._call.drop()
            raise ValueError(f"n={n} cannot be streamed; leave stream out, or stream once per seed")

    def _noted(self, results: list[Result]) -> list[Result]:
        for index, result in enumerate(results):
            self._note(index, result)
        return results

    def _seen(self, chunk: Chunk) -> Chunk:
        collected = ANSWERED.get()
        if collected is not None:
            answered = self._streamed.get(chunk.index)
            if answered is None:
                answered = self._streamed[chunk.index] = Answered(self.references[chunk.index])
                collected.append(answered)
            answered.text += chunk.text
            answered.latest = chunk.result or chunk
        return chunk

    def _logprob(self, token: TokenLogprob) -> dict[str, object]:
        """A log probability in the form of OpenAI's chat models."""
        return {**self._token(token), "top_logprobs": [self._token(one) for one in token.top]}

    def _token(self, token: TokenLogprob) -> dict[str, object]:
        """A token in that form. Its bytes are its own, even if they are a part of a character only."""
        own = self.engine.codec.bytes_of(token.token_id, token.token)
        return {"token": token.token, "logprob": token.logprob, "bytes": None if own is None else list(own)}

    def _note(self, index: int, result: Result) -> None:
        collected = ANSWERED.get()
        if collected is not None:
            collected.append(Answered(self.references[index], result.text, result))


def in_content(parts: Sequence[CopiedPart], result: Result) -> list[CopiedPart]:
    """The copied parts of an output that its answer holds, at their places there: a message holds no thought, and no
    text of calls."""
    content = result.content
    start = result.text.rfind(content) if content != result.text else 0
    if start < 0:  # of several pieces
        return []
    inside = [part for part in parts if part.start >= start and part.end <= start + len(content)]
    return [replace(part, start=part.start - start, end=part.end - start) for part in inside] if start else inside


def usage(result: Result) -> UsageMetadata:
    """Token counts of a prompt and its answers, with accepted and rejected draft tokens in OpenAI's fields."""
    samples = result.samples or (result,)
    output = sum(len(sample.token_ids) for sample in samples)
    accepted = sum(sample.stats.num_accepted_tokens for sample in samples)
    drafted = sum(sample.stats.num_draft_tokens for sample in samples)
    reasoning = sum(sample.parts.num_reasoning_tokens for sample in samples)
    details = {"accepted_prediction": accepted, "rejected_prediction": drafted - accepted}
    details |= {"reasoning": reasoning} if reasoning else {}
    return UsageMetadata(
        input_tokens=result.prompt_tokens,
        output_tokens=output,
        total_tokens=result.prompt_tokens + output,
        output_token_details=cast("OutputTokenDetails", details),
    )


def _counters(stats: Stats) -> dict[str, object]:
    """Counters without times, so that equal prompts give equal answers."""
    return {
        **{name: getattr(stats, name) for name in _COUNTERS},
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "num_accepted_tokens_per_source": dict(stats.num_accepted_tokens_per_source),
    }
