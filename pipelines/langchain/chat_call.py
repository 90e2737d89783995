"""One call of the chat model: turns LangChain messages into a prompt, and the answer into LangChain messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool

from copyspec import Chunk, Result
from copyspec.checks import brief
from copyspec.engine import generation_config
from copyspec.engine.constraints import why_no_schema
from copyspec.engine.generation_config import eos_token_ids
from copyspec.text.codec import Encoded
from copyspec.text.stops import held_back

from . import tools as tool_calls
from .calls import Answers, usage
from .capture import captured, captured_around
from .documents import artifacts, explicit, gather
from .fields import EngineFields
from .messages import OPEN, encoded_prompt
from .messages import Tool as ToolSchema

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun

    from copyspec import Engine


logger = logging.getLogger(__name__)

CONSTRAINTS = ("json_schema", "regex", "choices", "grammar")


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
        self._tools = _tools(kwargs)
        template = str(engine.tokenizer.chat_template or "")
        options = model.call_options(stop, kwargs)
        self._forced = _forced(kwargs, self._tools, template, options)
        if self._forced.schema is not None:
            options["json_schema"] = self._forced.schema
        elif not self._forced.is_call and (grammar := _grammar(kwargs, self._tools, template, options, engine)):
            options["grammar"] = grammar
        prompt = encoded_prompt(engine, messages, self._tools)
        if self._forced.beginning:
            prompt = Encoded([*prompt.ids, *engine.codec.encode(self._forced.beginning).ids])
        found: list[object] = []
        if model.auto_references:
            around = captured() if run_manager is None else captured_around(run_manager.parent_run_id)
            found = [*artifacts(messages), *around]
        references = gather(explicit(kwargs.get("references")), found)
        timeout = kwargs.get("timeout", model.timeout)
        self.answers = Answers((engine, name), [prompt], [references], options, timeout, loop)
        self._held, self._has_shown = "", False

    def chat_result(self, result: Result) -> ChatResult:
        generations = []
        for index, sample in enumerate(result.samples or (result,)):
            parsed = tool_calls.parse(self._forced.beginning + sample.text, self._tools) if self._tools else None
            message = AIMessage(
                content=parsed.text if parsed else sample.text,
                tool_calls=list(parsed.calls) if parsed else [],
                invalid_tool_calls=list(parsed.invalid) if parsed else [],
                usage_metadata=usage(result) if index == 0 else None,
                response_metadata=self.answers.metadata(sample),
            )
            generations.append(ChatGeneration(message=message))
        return ChatResult(generations=generations)

    def messages_of(self, chunk: Chunk) -> Iterator[ChatGenerationChunk]:
        """Convert a piece of the answer. Nothing is yielded while the text may be a call; the end brings all of it.

        Only the last message has counters and metadata, because merging would add them up.
        """
        text = self._ready(chunk)
        if chunk.result is None:
            if text:
                yield ChatGenerationChunk(message=AIMessageChunk(content=text))
            return
        parsed = tool_calls.Parsed(text)
        if self._tools:
            parsed = tool_calls.parse(self._forced.beginning + text, self._tools, is_rest=self._has_shown)
        calls = [
            tool_call_chunk(name=call["name"], args=_json(call["args"]), id=call["id"], index=index)
            for index, call in enumerate(parsed.calls)
        ]
        # As a JSON string: langchain-core would complete a beginning of an object, and take it for a call.
        broken = [
            tool_call_chunk(name=call["name"], args=_json(call["args"]), id=call["id"], index=len(calls) + index)
            for index, call in enumerate(parsed.invalid)
        ]
        message = AIMessageChunk(
            content=parsed.text,
            tool_call_chunks=[*calls, *broken],
            usage_metadata=usage(chunk.result),
            response_metadata=self.answers.metadata(chunk.result),
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=message)

    def _ready(self, chunk: Chunk) -> str:
        """The new text that can be shown."""
        if not self._tools:
            return chunk.text
        self._held += chunk.text
        if chunk.result is not None:
            return self._held
        # Once text is shown, only tags begin a call.
        may_call = OPEN in self._held if self._has_shown else tool_calls.may_begin_call(self._held)
        if self._forced.is_call or may_call:
            return ""
        keep = held_back(self._held, (OPEN,))
        text = self._held[: len(self._held) - keep].rstrip()  # before a call, white space is left out
        self._held, self._has_shown = self._held[len(text) :], self._has_shown or bool(text)
        return text


def _forced(
    kwargs: Mapping[str, object], tools: Sequence[ToolSchema], template: str, options: Mapping[str, object]
) -> tool_calls.Forced:
    """How `tool_choice` constrains the answer: by schemas where possible, unless `strict=False`."""
    choice, strict = kwargs.get("tool_choice"), kwargs.get("strict")
    taken = [name for name in CONSTRAINTS if name in options]
    found = tool_calls.forced(choice, tools, template, constrain=strict is not False and not taken)
    if found.schema is None:
        return found
    why = why_no_schema(found.schema)
    if why is None:
        return found
    if strict:
        raise ValueError(f"strict=True, and the tools' schemas cannot constrain the call: {why}")
    logger.info("the tool call is not constrained by its schema: %s", why)
    return tool_calls.forced(choice, tools, template, constrain=False)


def _grammar(
    kwargs: Mapping[str, object],
    tools: Sequence[ToolSchema],
    template: str,
    options: Mapping[str, object],
    engine: Engine,
) -> str | None:
    """The grammar that constrains calls the model decides on; None if it is impossible or not wanted."""
    if not tools or kwargs.get("strict") is False or any(name in options for name in CONSTRAINTS):
        return None
    ends = () if options.get("ignore_eos") else eos_token_ids(generation_config.read(engine.model))
    grammar = tool_calls.call_grammar(tools, template, sorted(set(engine.tokenizer.all_special_ids) - set(ends)))
    why = why_no_schema(tool_calls.call_schema(tools, "arguments")) if grammar else "its calls have no tags"
    why = why or ("" if ends else "no token ends the output")
    if not why:
        return grammar
    if kwargs.get("strict"):
        raise ValueError(f"strict=True, and the tools' schemas cannot constrain the call: {why}")
    logger.info("tool calls that the model chooses itself are not constrained by the tools' schemas: %s", why)
    return None


def _tools(kwargs: Mapping[str, object]) -> list[ToolSchema]:
    tools = kwargs.get("tools") or ()
    if kwargs.get("tool_choice") == "none":
        return []
    assert isinstance(tools, Sequence)
    found: list[ToolSchema] = [convert_to_openai_tool(tool) for tool in tools]
    for tool in found:
        if tool_calls.tool_name(tool) is None:
            raise ValueError(f"tools must be functions, in LangChain's form or OpenAI's for chats; got {brief(tool)}")
    return found


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
