"""One call of the chat model: turns LangChain messages into a prompt, and the answer into LangChain messages."""

from __future__ import annotations

import json
from asyncio import AbstractEventLoop
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool

from copyspec import Chunk, Result
from copyspec.common.checks import brief
from copyspec.text.chat import check_variables
from copyspec.text.replies.calls import tool_name

from .calls import Answers, usage
from .capture import captured, captured_around
from .documents import explicit
from .fields import EngineFields
from .messages import Tool as ToolSchema
from .messages import encoded_prompt, message_text
from .prompted import Around, artifacts, references_of

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun


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
        self.answers = Answers((engine, name), [prompt], [references], options, timeout, loop, [named])

    def chat_result(self, result: Result) -> ChatResult:
        generations = []
        for index, sample in enumerate(result.samples or (result,)):
            parts = sample.parts
            message = AIMessage(
                content=parts.content,
                tool_calls=[tool_call(name=call.name, args=dict(call.arguments), id=_new_id()) for call in parts.calls],
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
            for index, call in enumerate(parts.calls)
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
    found: list[ToolSchema] = [convert_to_openai_tool(tool) for tool in tools]
    for tool in found:
        if tool_name(tool) is None:
            raise ValueError(f"tools must be functions, in LangChain's form or OpenAI's for chats; got {brief(tool)}")
    return found


def _new_id() -> str:
    """An id of nine letters and digits: Mistral's templates refuse any other."""
    return uuid4().hex[:9]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
