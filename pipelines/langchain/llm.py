"""CopySpecLLM: a LangChain language model that continues a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any
from uuid import UUID

from langchain_core.language_models import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from copyspec import Result

from .calls import Answers, usage
from .capture import captured, captured_around, run_around, while_read
from .documents import explicit
from .fields import CONFIG, EngineFields, Stop, private, public
from .prompted import Around, references_of

# The runs around the prompts of one `generate`, in order, since langchain-core passes only the first to `_generate`.
# By prompt, as langchain-core leaves out prompts with cached answers.
_AROUND: ContextVar[Mapping[str, Sequence[UUID | None]]] = ContextVar(
    "copyspec_llm_around", default=MappingProxyType({})
)

# The options of one `generate`: langchain-core makes its cache key of the model's parameters alone.
_GIVEN: ContextVar[Mapping[str, object]] = ContextVar("copyspec_llm_given", default=MappingProxyType({}))
_OF_RUNS = ("tags", "metadata", "run_name", "run_id")


class CopySpecLLM(EngineFields, BaseLLM):
    """A local model that continues a text. Prompts are tokenized as they are, without a chat template;
    `model_kwargs={"chat": True}` wraps each in the template as the user's message.

    Documents to copy from, batching and options are those of `ChatCopySpec`.
    """

    model_config = CONFIG

    @property
    def _llm_type(self) -> str:
        return "copyspec"

    @property
    def _identifying_params(self) -> Mapping[str, object]:
        kwargs = _GIVEN.get()
        return {**self.traced_params(), **public(kwargs), **self.cache_params(kwargs)}

    def generate(self, prompts: list[str], stop: Stop = None, callbacks: Any = None, **kwargs: object) -> LLMResult:
        """Generate for all prompts as one batch."""
        with _around(prompts, callbacks, kwargs):
            return super().generate(prompts, stop, callbacks, **private(kwargs))  # type: ignore[arg-type]

    async def agenerate(
        self, prompts: list[str], stop: Stop = None, callbacks: Any = None, **kwargs: object
    ) -> LLMResult:
        """Like `generate`. Cancelling the task ends the decoding within one step."""
        with _around(prompts, callbacks, kwargs):
            return await super().agenerate(prompts, stop, callbacks, **private(kwargs))  # type: ignore[arg-type]

    def _generate(self, prompts: list[str], stop: Stop = None, run_manager: Any = None, **kwargs: object) -> LLMResult:
        answers = self._call(prompts, stop, kwargs)
        if run_manager is None or not self._streams(prompts, kwargs):
            return _llm_result(answers, answers.results())
        results = []
        for chunk in answers.chunks():
            if chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=_chunk(answers, chunk.text, chunk.result))
            results += [] if chunk.result is None else [chunk.result]
        return _llm_result(answers, results)

    async def _agenerate(
        self, prompts: list[str], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> LLMResult:
        answers = await asyncio.to_thread(self._call, prompts, stop, kwargs, asyncio.get_running_loop())
        if run_manager is None or not self._streams(prompts, kwargs):
            return _llm_result(answers, await answers.aresults())
        results = []
        async with aclosing(answers.achunks()) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    await run_manager.on_llm_new_token(chunk.text, chunk=_chunk(answers, chunk.text, chunk.result))
                results += [] if chunk.result is None else [chunk.result]
        return _llm_result(answers, results)

    def _streams(self, prompts: Sequence[str], kwargs: Mapping[str, object]) -> bool:
        """Whether a call of `invoke` hands out its tokens; langchain-core has one callback manager for all prompts."""
        return self.streaming and len(prompts) == 1 and kwargs.get("n", self.n) == 1

    def _stream(
        self, prompt: str, stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> Iterator[GenerationChunk]:
        answers = self._call([prompt], stop, kwargs)
        for chunk in while_read(answers.chunks()):
            piece = _chunk(answers, chunk.text, chunk.result)
            if run_manager is not None and chunk.text:
                run_manager.on_llm_new_token(chunk.text, chunk=piece)
            yield piece

    async def _astream(
        self, prompt: str, stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> AsyncIterator[GenerationChunk]:
        answers = await asyncio.to_thread(self._call, [prompt], stop, kwargs, asyncio.get_running_loop())
        async with aclosing(answers.achunks()) as chunks:
            async for chunk in chunks:
                piece = _chunk(answers, chunk.text, chunk.result)
                if run_manager is not None and chunk.text:
                    await run_manager.on_llm_new_token(chunk.text, chunk=piece)
                yield piece

    def _call(
        self,
        prompts: Sequence[str],
        stop: object,
        kwargs: Mapping[str, object],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Answers:
        handed_over = explicit(kwargs.get("references"))
        gathered = [
            references_of(handed_over, around, prompt)
            for prompt, around in zip(prompts, self._found(prompts), strict=True)
        ]
        references, named = [texts for texts, _ in gathered], [count for _, count in gathered]
        options = self.call_options(stop, kwargs)
        timeout = kwargs.get("timeout", self.timeout)
        return Answers(self.engine_for(kwargs.get("model")), list(prompts), references, options, timeout, loop, named)

    def _found(self, prompts: Sequence[str]) -> list[Around]:
        """The documents found by the parent run of each prompt."""
        if not self.auto_references:
            return [Around() for _ in prompts]
        runs = {prompt: list(of_prompt) for prompt, of_prompt in _AROUND.get().items()}
        return [captured_around(runs[prompt].pop(0)) if runs.get(prompt) else captured() for prompt in prompts]


@contextmanager
def _around(prompts: Sequence[str], callbacks: object, kwargs: Mapping[str, object]) -> Iterator[None]:
    """Record a call's options, and which run each prompt belongs to, as far as the callbacks name it."""
    each_its_own = isinstance(callbacks, list) and len(callbacks) == len(prompts)
    managers = callbacks if isinstance(callbacks, list) and each_its_own else [callbacks] * len(prompts)
    runs: dict[str, list[UUID | None]] = {}
    for prompt, manager in zip(prompts, managers, strict=True):
        runs.setdefault(prompt, []).append(run_around(manager))
    token = _AROUND.set(runs)
    options = _GIVEN.set({name: value for name, value in kwargs.items() if name not in _OF_RUNS})
    try:
        yield
    finally:
        _GIVEN.reset(options)
        _AROUND.reset(token)


def _llm_result(answers: Answers, results: Sequence[Result]) -> LLMResult:
    generations = [
        [
            Generation(text=sample.text, generation_info=_info(answers, sample, index))
            for sample in result.samples or (result,)
        ]
        for index, result in enumerate(results)
    ]
    counts = [usage(result) for result in results]
    total = {name: sum(count[name] for count in counts) for name in ("input_tokens", "output_tokens", "total_tokens")}
    return LLMResult(generations=generations, llm_output={"model_name": answers.model_name, "token_usage": total})


def _chunk(answers: Answers, text: str, result: Result | None) -> GenerationChunk:
    """Only the last piece has metadata, because merging pieces would add it up."""
    return GenerationChunk(text=text, generation_info=None if result is None else _info(answers, result, 0))


def _info(answers: Answers, result: Result, index: int) -> dict[str, object]:
    return {**answers.metadata(result, index), "usage_metadata": usage(result)}
