"""Structured output: answers constrained by a JSON schema, parsed into objects."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass

if TYPE_CHECKING:
    from pydantic import BaseModel


def constraint(schema: dict[str, Any] | type) -> object:
    """Return the schema for `json_schema=`: pydantic classes as they are, others converted to JSON schema."""
    return schema if hasattr(schema, "model_json_schema") else convert_to_json_schema(schema)


def structured(model: Runnable[Any, Any], schema: dict[str, Any] | type, *, include_raw: bool) -> Runnable[Any, Any]:
    """Make `model` answer in JSON of `schema`, parsed into an object of the pydantic class or a dict. With
    `include_raw`: into a dict of `raw`, `parsed` and `parsing_error`, as LangChain's models do."""
    is_model = isinstance(schema, type) and is_basemodel_subclass(schema)  # a TypedDict is a type, too
    parser: BaseOutputParser[Any] = JsonOutputParser()
    if is_model:
        parser = PydanticOutputParser(pydantic_object=cast("type[BaseModel]", schema))
    if not include_raw:
        return model | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    unread = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([unread], exception_key="parsing_error")
