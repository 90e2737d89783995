"""Structured output: answers constrained by a JSON schema, parsed into objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from langchain_core.exceptions import OutputParserException
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

from copyspec.common.checks import brief
from copyspec.engine.logits.constraints import closed

if TYPE_CHECKING:
    from pydantic import BaseModel


def constraint(schema: dict[str, Any] | type) -> object:
    """Return the schema for `json_schema=`: pydantic classes as they are, all else as JSON schemas, in which an object
    has no properties but those it names, as in tool calls, unless it says so. langchain-core would leave out all that a
    JSON schema without `properties` says."""
    if not isinstance(schema, dict):
        return schema if hasattr(schema, "model_json_schema") else closed(convert_to_json_schema(schema))
    is_tool = not schema.keys().isdisjoint(("function", "parameters", "input_schema", "toolSpec"))
    return closed(convert_to_json_schema(schema) if is_tool else schema)


class CompleteJsonParser(JsonOutputParser):
    """Parses complete answers only: langchain-core's parser completes what `max_tokens` or a stop string has cut off.
    The pieces of a stream are parsed as far as they go."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Return the answer as JSON data. Raises OutputParserException if it is cut off."""
        if not partial:
            _check_complete(result)
        return super().parse_result(result, partial=partial)


class CompletePydanticParser(PydanticOutputParser):  # type: ignore[type-arg]
    """`CompleteJsonParser` for an object of a pydantic class."""

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        """Return the answer as an object. Raises OutputParserException if it is cut off."""
        if not partial:
            _check_complete(result)
        return super().parse_result(result, partial=partial)


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
