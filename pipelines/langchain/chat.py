"""ChatCopySpec: a LangChain chat model whose drafts are copied from the documents of its run."""

from __future__ import annotations

import asyncio
import json
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import uuid4

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, Generation, LLMResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from copyspec import Chunk, Result
from copyspec.common.checks import brief
from copyspec.engine.logits.constraints import closed
from copyspec.engine.logits.json_schemas import json_schema_of, why_no_schema
from copyspec.text.chat import check_variables, shows_tools
from copyspec.text.replies.tools import tool_name

from .calls import Answers, usage
from .capture import call_begins, captured, captured_around, while_read
from .documents import explicit
from .fields import CONFIG, EngineFields, Stop, public
from .messages import Tool as ToolSchema
from .messages import encoded_prompt, message_text
from .prompted import Around, artifacts, references_of

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.language_models.model_profile import ModelProfile
    from langchain_core.tools import BaseTool
    from pydantic import BaseModel


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
        calls_tools = shows_tools(engine.tokenizer)
        profile: ModelProfile = {
            "text_inputs": True,
            "image_inputs": False,
            "text_outputs": True,
            "tool_calling": calls_tools,
            "structured_output": False,  # in LangChain, that `bind_tools` takes `response_format`
        }
        limit = engine.max_length
        return {**profile, "max_input_tokens": limit} if limit is not None else profile

    def _should_stream(self, **kwargs: Any) -> bool:
        return self._can_stream(kwargs) and super()._should_stream(**kwargs)

    def _should_use_protocol_streaming(self, **kwargs: Any) -> bool:
        return self._can_stream(kwargs) and super()._should_use_protocol_streaming(**kwargs)

    def _can_stream(self, kwargs: Mapping[str, object]) -> bool:
        """Whether `invoke` can stream for callback handlers: not several answers. A call that asks for a stream itself
        is told so."""
        return "stream" in kwargs or self.call_options(None, kwargs).get("n") == 1

    def _generate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> ChatResult:
        call = ChatCall(self, messages, stop, run_manager, kwargs)
        return call.chat_result(call.answers.results()[0])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> ChatResult:
        call = await self._asked(messages, stop, run_manager, kwargs)
        return call.chat_result((await call.answers.aresults())[0])

    def _stream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> Iterator[ChatGenerationChunk]:
        call = ChatCall(self, messages, stop, run_manager, kwargs)
        for chunk in while_read(call.answers.chunks()):
            yield from call.messages_of(chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: Stop = None, run_manager: Any = None, **kwargs: object
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = await self._asked(messages, stop, run_manager, kwargs)
        async with aclosing(call.answers.achunks()) as chunks:
            async for chunk in chunks:
                for message in call.messages_of(chunk):
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

        def one(prompt: list[BaseMessage], options: Mapping[str, Any]) -> LLMResult:
            return super(ChatCopySpec, self).generate([prompt], stop, callbacks, **options)

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
        `parallel_tool_calls=False`: of several calls in an answer, the first one alone is given.
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


def constraint(schema: dict[str, Any] | type) -> object:
    """Return the schema for `json_schema=`: pydantic classes as they are, all else as JSON schemas, in which an object
    has no properties but those it names, as in tool calls, unless it says so. langchain-core would leave out all that a
    JSON schema without `properties` says."""
    if not isinstance(schema, dict):
        return schema if hasattr(schema, "model_json_schema") else closed(convert_to_json_schema(schema))
    is_tool = not schema.keys().isdisjoint(("function", "parameters", "input_schema", "toolSpec"))
    return closed(convert_to_json_schema(schema) if is_tool else schema)


class _CompleteParser:
    """Parses complete answers only: langchain-core's parsers complete what `max_tokens` or a stop string has cut off.
    The pieces of a stream are parsed as far as they go."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Return the answer. Raises OutputParserException if it is cut off."""
        if not partial:
            _check_complete(result)
        return super().parse_result(result, partial=partial)  # type: ignore[misc]


class CompleteJsonParser(_CompleteParser, JsonOutputParser):
    """For JSON data."""


class CompletePydanticParser(_CompleteParser, PydanticOutputParser):  # type: ignore[type-arg]
    """For an object of a pydantic class."""


def _check_complete(result: Sequence[Generation]) -> None:
    """Raise OutputParserException for an answer that is not complete JSON, or is a number that the limit may have
    cut."""
    answer = result[0]
    text = answer.text.strip()
    metadata = answer.message.response_metadata if isinstance(answer, ChatGeneration) else {}
    at_limit = metadata.get("finish_reason") == "length"
    try:
        json.loads(text)
        if not (at_limit and text[-1].isdigit()):
            return
    except (ValueError, RecursionError):
        pass
    why = (
        "a limit of tokens or of time cut it: give more max_tokens, or max_time"
        if at_limit
        else "a stop string may have cut it"
    )
    raise OutputParserException(f"the answer is not complete JSON, {why}; got {brief(text)}", llm_output=text)


def structured(model: Runnable[Any, Any], schema: dict[str, Any] | type, *, include_raw: bool) -> Runnable[Any, Any]:
    """Make `model` answer in JSON of `schema`, parsed into an object of the pydantic class or a dict. With
    `include_raw`: into a dict of `raw`, `parsed` and `parsing_error`, as LangChain's models do."""
    is_model = isinstance(schema, type) and is_basemodel_subclass(schema)  # a TypedDict is a type, too
    parser: BaseOutputParser[Any] = CompleteJsonParser()
    if is_model:
        parser = CompletePydanticParser(pydantic_object=cast("type[BaseModel]", schema))
    if not include_raw:
        return model | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([unread], exception_key="parsing_error")


_VARIABLES = "chat_template_kwargs"


class ChatCall:
    """One call of the chat model, with LangChain's arguments and results."""

    def __init__(
        self,
        model: EngineFields,
        messages: Sequence[BaseMessage],
        stop: object,
        run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None,
        kwargs: Mapping[str, object],
        loop: AbstractEventLoop | None = None,
    ) -> None:
        engine, name = model.engine_for(kwargs.get("model"))
        tools = _tools(kwargs)
        options = model.call_options(stop, kwargs)
        variables = check_variables(_VARIABLES, options.pop(_VARIABLES, {}))
        prompt = encoded_prompt(engine, messages, tools, variables)
        around, shown = Around(), list[list[object]]()
        if model.auto_references:
            around = captured() if run_manager is None else captured_around(run_manager.parent_run_id)
            shown = artifacts(messages)
        text = "\n".join(map(message_text, messages))
        references, named = references_of(explicit(kwargs.get("references")), around, text, shown)
        timeout = kwargs.get("timeout", model.timeout)
        self._most = 1 if kwargs.get("parallel_tool_calls") is False else None
        self.answers = Answers((engine, name), [prompt], [references], options, timeout, loop, [named])

    def chat_result(self, result: Result) -> ChatResult:
        generations = []
        for index, sample in enumerate(result.samples or (result,)):
            parts = sample.parts
            message = AIMessage(
                content=parts.content,
                tool_calls=[
                    tool_call(name=call.name, args=dict(call.arguments), id=_new_id())
                    for call in parts.calls[: self._most]
                ],
                invalid_tool_calls=[
                    invalid_tool_call(name=call.name, args=call.text, id=_new_id(), error=call.error)
                    for call in parts.invalid
                ],
                additional_kwargs=_thought(parts.reasoning),
                usage_metadata=usage(result) if index == 0 else None,
                response_metadata=self.answers.metadata(sample),
            )
            generations.append(ChatGeneration(message=message))
        return ChatResult(generations=generations)

    def messages_of(self, chunk: Chunk) -> Iterator[ChatGenerationChunk]:
        """Convert a piece of the answer. Text that may be a call is held back; the end brings all calls.

        Only the last message has counters and metadata, because merging would add them up.
        """
        if chunk.result is None:
            if chunk.content or chunk.reasoning:
                message = AIMessageChunk(content=chunk.content, additional_kwargs=_thought(chunk.reasoning))
                yield ChatGenerationChunk(message=message)
            return
        parts = chunk.result.parts
        calls = [
            tool_call_chunk(name=call.name, args=_json(call.arguments), id=_new_id(), index=index)
            for index, call in enumerate(parts.calls[: self._most])
        ]
        # As a JSON string: langchain-core would complete a beginning of an object, and take it for a call.
        broken = [
            tool_call_chunk(name=call.name, args=_json(call.text), id=_new_id(), index=len(calls) + index)
            for index, call in enumerate(parts.invalid)
        ]
        message = AIMessageChunk(
            content=chunk.content,
            tool_call_chunks=[*calls, *broken],
            additional_kwargs=_thought(chunk.reasoning),
            usage_metadata=usage(chunk.result),
            response_metadata=self.answers.metadata(chunk.result),
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=message)


def _thought(text: str) -> dict[str, object]:
    """A thought, or a piece of one, where LangChain's models for DeepSeek and Qwen have it."""
    return {"reasoning_content": text} if text else {}


def _tools(kwargs: Mapping[str, object]) -> list[ToolSchema]:
    tools = kwargs.get("tools") or ()
    if kwargs.get("tool_choice") == "none":
        return []
    assert isinstance(tools, Sequence)
    tool_schemas: list[ToolSchema] = [convert_to_openai_tool(tool) for tool in tools]
    for tool in tool_schemas:
        if tool_name(tool) is None:
            raise ValueError(f"tools must be functions, in LangChain's form or OpenAI's for chats; got {brief(tool)}")
    return tool_schemas


def _new_id() -> str:
    """An id of nine letters and digits: Mistral's templates refuse any other."""
    return uuid4().hex[:9]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
