"""One call of a model: prompts through the engine's queue, and answers with what LangChain wants to know of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from langchain_core.messages.ai import OutputTokenDetails, UsageMetadata

from copyspec import Chunk, Result
from copyspec.engine.call_options import check_options
from copyspec.engine.engine import finish
from copyspec.engine.queue import queue_of
from copyspec.engine.streaming import ChunkMaker, chunks

from .documents import copied_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from copyspec import Engine, Stats
    from copyspec.decoding.requests import StepOutput
    from copyspec.engine.call_options import CallOptions
    from copyspec.engine.jobs import Job

_COUNTERS = ("num_calls", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens")


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, and all that it might have been copied from."""

    result: Result
    references: Sequence[object]


# Where the answers of a context are collected, for who wants more of them than a message holds.
ANSWERED: ContextVar[list[Answered] | None] = ContextVar("copyspec_answered", default=None)


@dataclass(frozen=True, slots=True)
class Call:
    """Prompts with their references, ready for the queue."""

    engine: Engine
    model_name: str
    jobs: Sequence[Job]
    options: CallOptions
    references: Sequence[Sequence[object]]  # of each prompt
    timeout: float | None = None

    @classmethod
    def of(
        cls,
        named_engine: tuple[Engine, str],
        prompts: Sequence[object],
        references: Sequence[Sequence[object]],
        options: Mapping[str, object],
        timeout: object,
    ) -> Call:
        """Raises TypeError and ValueError for what cannot be meant, before anything runs."""
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0):
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        engine, name = named_engine
        checked = check_options(options)
        jobs, _ = engine.jobs(list(prompts), [list(each) for each in references], checked)
        return cls(engine, name, jobs, checked, references, timeout)

    def results(self) -> list[Result]:
        """A result per prompt."""
        results = finish(self.jobs, self._steps(), self.options.n)
        for index, result in enumerate(results):
            self._note(index, result)
        return results

    async def aresults(self) -> list[Result]:
        """As `results`. Cancelling the task ends the decoding within one step."""
        async with aclosing(self._asteps()) as steps:
            async for outputs in steps:
                for output in outputs:
                    self.jobs[output.row].add(output)
        results = finish(self.jobs, iter(()), self.options.n)
        for index, result in enumerate(results):
            self._note(index, result)
        return results

    def chunks(self) -> Iterator[Chunk]:
        """The answers in pieces. Closing the iterator ends the decoding within one step."""
        self._check_stream()
        for chunk in chunks(self.jobs, self._steps()):
            if chunk.result is not None:
                self._note(chunk.index, chunk.result)
            yield chunk

    async def achunks(self) -> AsyncGenerator[Chunk, None]:
        """As `chunks`. Cancelling the task ends the decoding too."""
        self._check_stream()
        maker = ChunkMaker(self.jobs)
        async with aclosing(self._asteps()) as steps:
            async for outputs in steps:
                for chunk in maker.push(outputs):
                    if chunk.result is not None:
                        self._note(chunk.index, chunk.result)
                    yield chunk

    def metadata(self, result: Result, index: int = 0) -> dict[str, object]:
        """`response_metadata` of one answer: no text of any reference is in it."""
        parts = [part.to_dict() for part in copied_parts(result, self.references[index])]
        return {
            "model_name": self.model_name,
            "model_provider": "copyspec",
            "finish_reason": result.finish_reason,
            "copyspec": {**_counters(result.stats), "spans": parts},
        }

    def _steps(self) -> Generator[list[StepOutput], None, None]:
        requests = [job.request for job in self.jobs]
        return queue_of(self.engine).steps(self.engine, requests, self.options, timeout=self.timeout)

    def _asteps(self) -> AsyncGenerator[list[StepOutput], None]:
        requests = [job.request for job in self.jobs]
        return queue_of(self.engine).asteps(self.engine, requests, self.options, timeout=self.timeout)

    def _check_stream(self) -> None:
        if self.options.n > 1:
            raise ValueError(f"n={self.options.n} cannot be streamed; leave n out, or call invoke or generate")

    def _note(self, index: int, result: Result) -> None:
        collected = ANSWERED.get()
        if collected is not None:
            collected.append(Answered(result, self.references[index]))


def usage(result: Result) -> UsageMetadata:
    """Tokens of a prompt and its answers, with accepted and rejected draft tokens as OpenAI counts predictions."""
    samples = result.samples or (result,)
    output = sum(len(each.token_ids) for each in samples)
    accepted = sum(each.stats.num_accepted_tokens for each in samples)
    drafted = sum(each.stats.num_draft_tokens for each in samples)
    details = {"accepted_prediction": accepted, "rejected_prediction": drafted - accepted}
    return UsageMetadata(
        input_tokens=result.prompt_tokens,
        output_tokens=output,
        total_tokens=result.prompt_tokens + output,
        output_token_details=cast("OutputTokenDetails", details),
    )


def _counters(stats: Stats) -> dict[str, object]:
    """Counters without times: an answer from the same prompt is the same object."""
    return {
        **{name: getattr(stats, name) for name in _COUNTERS},
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "num_accepted_tokens_per_source": dict(stats.num_accepted_tokens_per_source),
    }
