"""ChatCopySpec: a LangChain chat model whose drafts are copied from the documents of its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.utils.function_calling import convert_to_openai_tool

from copyspec.engine.logits.json_schemas import json_schema_of, why_no_schema

from .capture import call_begins, while_read
from .chat_call import ChatCall
from .fields import CONFIG, EngineFields, Stop, public
from .messages import encoded_prompt
from .structured import constraint, structured

if TYPE_CHECKING:
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.language_models.model_profile import ModelProfile
    from langchain_core.runnables import Runnable
    from langchain_core.tools import BaseTool


MAX_THREADS = 64
"""Maximum number of threads of one `generate`: more than a batch has rows. They only wait."""


class ChatCopySpec(EngineFields, BaseChatModel):
    """A local chat model. Its answers equal plain decoding, and are faster where they repeat the run's documents.

        llm = ChatCopySpec(model="a hub id or a folder", max_tokens=200)
        chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | llm

    No wiring is needed: documents come from the prompt, from retrievers of the same run and from the artifacts of
    tools. `bind(references=...)`, `with_references`, `copyspec.references` and `prediction=` pass further ones. Calls
    from many threads and tasks share one running batch.
    """

    model_config = CONFIG

    @property
    def _llm_type(self) -> str:
        return "copyspec-chat"

    @property
    def _identifying_params(self) -> Mapping[str, object]:
        return self.traced_params()

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: object) -> dict[str, object]:
        return super()._get_invocation_params(stop=stop, **public(kwargs))

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: object) -> str:
        return super()._get_llm_string(stop=stop, **self.cache_params(kwargs))

    def _resolve_model_profile(self) -> ModelProfile | None:
        engine = self._engine or (self.engine if not isinstance(self.model, (str, type(None))) else None)
        if engine is None:
            return None  # no model is loaded just for its profile
        calls_tools = "tools" in str(engine.tokenizer.chat_template)
        profile: ModelProfile = {
            "text_inputs": True,
            "image_inputs": False,
            "text_outputs": True,
            "tool_calling": calls_tools,
            "structured_output": False,  # in LangChain, that `bind_tools` takes `response_format`
        }
        limit = engine.max_length
        return {**profile, "max_input_tokens": limit} if limit is not None else profile

    def _should_stream(self, **given: Any) -> bool:
        return self._can_stream(given) and super()._should_stream(**given)

    def _should_use_protocol_streaming(self, **given: Any) -> bool:
        return self._can_stream(given) and super()._should_use_protocol_streaming(**given)

    def _can_stream(self, given: Mapping[str, object]) -> bool:
        """Whether `invoke` can stream for callback handlers: not several answers. A call that asks for a stream itself
        is told so."""
        return "stream" in given or self.call_options(None, given).get("n") == 1

    def _generate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> ChatResult:
        asked = ChatCall(self, messages, stop, run_manager, kwargs)
        return asked.chat_result(asked.answers.results()[0])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> ChatResult:
        asked = await self._asked(messages, stop, run_manager, kwargs)
        return asked.chat_result((await asked.answers.aresults())[0])

    def _stream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> Iterator[ChatGenerationChunk]:
        asked = ChatCall(self, messages, stop, run_manager, kwargs)
        for chunk in while_read(asked.answers.chunks()):
            yield from asked.messages_of(chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> AsyncIterator[ChatGenerationChunk]:
        asked = await self._asked(messages, stop, run_manager, kwargs)
        async with aclosing(asked.answers.achunks()) as chunks:
            async for chunk in chunks:
                for message in asked.messages_of(chunk):
                    yield message

    async def _asked(
        self, messages: list[BaseMessage], stop: Stop, run_manager: Any, kwargs: dict[str, object]
    ) -> ChatCall:
        # Loading a model and encoding long documents take time, during which the event loop must not be blocked.
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(ChatCall, self, messages, stop, run_manager, kwargs, loop)

    def generate(
        self, messages: list[list[BaseMessage]], stop: Stop = None, callbacks: Any = None, **kwargs: object
    ) -> LLMResult:
        """Return an answer for each list of messages, all decoded in one running batch."""
        call_begins(callbacks)
        if len(messages) < 2:
            return super().generate(messages, stop, callbacks, **kwargs)  # type: ignore[arg-type]

        def one(each: list[BaseMessage], options: Mapping[str, Any]) -> LLMResult:
            return super(ChatCopySpec, self).generate([each], stop, callbacks, **options)

        own = [kwargs, *[{**kwargs, "run_id": None}] * (len(messages) - 1)]  # only the first is the run of that id
        with ContextThreadPoolExecutor(max_workers=min(len(messages), MAX_THREADS)) as pool:
            results = list(pool.map(one, messages, own))
        return LLMResult(
            generations=[generations for result in results for generations in result.generations],
            llm_output=results[0].llm_output,
            run=[run for result in results for run in result.run or ()],
        )

    async def agenerate(
        self, messages: list[list[BaseMessage]], stop: Stop = None, callbacks: Any = None, **kwargs: object
    ) -> LLMResult:
        """Like `generate`. Cancelling the task ends the decoding within one step."""
        call_begins(callbacks)
        return await super().agenerate(messages, stop, callbacks, **kwargs)  # type: ignore[arg-type]

    def bind_tools(
        self,
        tools: Sequence[dict[str, object] | type | Callable[..., object] | BaseTool],
        *,
        tool_choice: str | bool | Mapping[str, object] | None = None,
        strict: bool | None = None,
        **kwargs: object,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Show tools to the model through its chat template; calls raise ValueError if the template cannot hold them.

        `tool_choice`: "any" (also "required" and True) or the name of a tool makes the answer one call, with arguments
        constrained by the tool's schema if `copyspec[structured]` is installed; "none" hides the tools; None and "auto"
        let the model decide, and constrain a call that it begins between `<tool_call>` tags.
        `strict`: True raises if calls cannot be constrained, False constrains nothing.
        """
        schemas = [convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=schemas, tool_choice=tool_choice, strict=strict, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["function_calling", "json_schema"] = "function_calling",
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return answers as objects of `schema`: by a tool call, or with `method="json_schema"` as constrained JSON
        (`copyspec[structured]`), which also works for models without tools. `"json_mode"` is the same.
        `strict=True` raises ValueError for a schema of which a part cannot be enforced."""
        if kwargs.pop("strict", None) and (why := why_no_schema(json_schema_of(constraint(schema)))):
            raise ValueError(f"strict=True, and the schema cannot constrain the answer: {why}")
        if method == "function_calling":
            return super().with_structured_output(schema, include_raw=include_raw, **kwargs)
        if method not in ("json_schema", "json_mode"):
            raise ValueError(f"method must be 'function_calling', 'json_schema' or 'json_mode', got {method!r}")
        shape = {"kwargs": {"method": method}, "schema": schema}  # langchain-core takes it out, and traces it
        model = self.bind(json_schema=constraint(schema), ls_structured_output_format=shape, **kwargs)
        return structured(model, schema, include_raw=include_raw)

    def get_num_tokens_from_messages(
        self,
        messages: list[BaseMessage],
        tools: Sequence[dict[str, object] | type | Callable[..., object] | BaseTool] | None = None,
    ) -> int:
        """Return the number of tokens of the whole prompt, with the chat template applied to the messages."""
        return len(encoded_prompt(self.engine, messages, [convert_to_openai_tool(tool) for tool in tools or ()]).ids)
