"""Structured output by a constraint, and log-probabilities, through ChatCopySpec."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableGenerator, RunnableLambda
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from pydantic import BaseModel
from pydantic.v1 import BaseModel as BaseModelV1
from typing_extensions import TypedDict

from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.pipelines.langchain.chat import constraint, structured
from tests.helpers.texts import engine


class Mat(BaseModel):
    """A mat."""

    colour: bool
    cats: int


def test_answers_are_objects_of_the_schema() -> None:
    pytest.importorskip("llguidance")
    llm = ChatCopySpec(model=engine(), max_tokens=120)
    mat = llm.with_structured_output(Mat, method="json_schema").invoke("the mat")
    assert isinstance(mat, Mat)
    schema = {"title": "mat", "description": "A mat.", **Mat.model_json_schema(), "additionalProperties": False}
    assert llm.with_structured_output(schema, method="json_schema").invoke("the mat") == mat.model_dump()
    raw = llm.with_structured_output(Mat, method="json_schema", include_raw=True).invoke("the mat")
    assert raw["parsed"] == mat and raw["parsing_error"] is None and raw["raw"].content
    cut = llm.with_structured_output(Mat, method="json_schema", include_raw=True, max_tokens=2).invoke("the mat")
    assert cut["parsed"] is None and cut["parsing_error"] is not None
    with pytest.raises(ValueError, match="method must be 'function_calling', 'json_schema' or"):
        llm.with_structured_output(Mat, method="grammar")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "colour", "enum": ["red", "blue"]},
        {"title": "sizes", "type": "array"},
        {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "patternProperties": {"^x": {}}},
    ],
)
def test_json_schemas_constrain_as_they_are(schema: dict[str, object]) -> None:
    assert constraint(schema) == schema


class Setup(TypedDict):
    setup: str


class Told(TypedDict):
    """A joke."""

    joke: Setup
    rating: int


class OldSetup(BaseModelV1):
    setup: str


class OldJoke(BaseModelV1):
    joke: OldSetup


@pytest.mark.parametrize(
    "schema",
    [
        Told,
        OldJoke,
        OldJoke.schema(),
        convert_to_json_schema(Told),
        {"title": "a", "properties": {"b": {"properties": {"c": {}}}}},
        {"name": "mat", "parameters": Mat.model_json_schema()},
        convert_to_openai_tool(Told),
    ],
    ids=range(7),
)
def test_objects_have_the_properties_that_they_name(schema: Any) -> None:
    def check(part: object) -> None:
        if isinstance(part, list):
            for child in part:
                check(child)
        elif isinstance(part, dict):
            assert "properties" not in part or part["additionalProperties"] is False
            for child in part.values():
                check(child)

    check(constraint(schema))


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
@pytest.mark.parametrize("schema", [Mat, Told, OldJoke, Mat.model_json_schema()], ids=range(4))
def test_traces_show_the_schema(method: Literal["json_schema", "json_mode"], schema: Any) -> None:
    class Seen(BaseCallbackHandler):
        options: Any = None

        def on_chat_model_start(self, *_: object, options: dict[str, object], **__: object) -> None:
            self.options = options

    seen = Seen()
    llm = ChatCopySpec(model=engine(), max_tokens=2).with_structured_output(schema, method=method, include_raw=True)
    if method == "function_calling":
        with pytest.raises(ValueError, match="template"):  # it holds no tools
            llm.invoke("the mat", config={"callbacks": [seen]})
    else:
        llm.invoke("the mat", config={"callbacks": [seen]})
    shown = seen.options["ls_structured_output_format"]
    assert shown["schema"] == convert_to_json_schema(schema) and shown["kwargs"] == {"method": method}


def test_tools_are_read_as_json_schemas() -> None:
    assert constraint({"name": "mat", "parameters": Mat.model_json_schema()})["required"] == ["colour", "cats"]  # type: ignore[index]


def test_an_answer_is_one_of_the_values_of_a_schema() -> None:
    pytest.importorskip("llguidance")
    llm = ChatCopySpec(model=engine(), max_tokens=20)
    schema = {"title": "colour", "enum": ["red", "blue"]}
    assert llm.with_structured_output(schema, method="json_schema").invoke("the mat") in ("red", "blue")


class Cats(BaseModel):
    cats: int


QUOTES = {"title": "quotes", "type": "object", "properties": {"quotes": {"type": "array", "items": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (QUOTES, '{"quotes": ["the first one", "the sec'),
        (Cats, '{"cats": 12'),
        (Cats, ""),
        ({"title": "count", "type": "integer"}, "12"),
    ],
)
def test_an_answer_that_is_cut_off_is_not_taken_for_a_complete_one(schema: type | dict[str, object], text: str) -> None:
    cut = AIMessage(text, response_metadata={"finish_reason": "length"})
    model = RunnableLambda(lambda _: cut)
    with pytest.raises(OutputParserException, match="a limit of tokens or of time cut it: give more max_tokens"):
        structured(model, schema, include_raw=False).invoke("hi")
    raw = structured(model, schema, include_raw=True).invoke("hi")
    assert raw["raw"] == cut and raw["parsed"] is None and isinstance(raw["parsing_error"], OutputParserException)


def test_an_answer_that_a_stop_string_cuts_is_not_complete_and_one_that_just_fits_is() -> None:
    def answers(text: str, reason: str) -> object:
        message = AIMessage(text, response_metadata={"finish_reason": reason})
        return structured(RunnableLambda(lambda _: message), Cats, include_raw=False).invoke("hi")

    with pytest.raises(OutputParserException, match=r"a stop string may have cut it; got '\{.cats.: 1'"):
        answers('{"cats": 1', "stop")
    assert answers('{"cats": 12}', "length") == Cats(cats=12)


def test_the_pieces_of_a_stream_are_parsed_as_far_as_they_go() -> None:
    def pieces(_: Iterator[object]) -> Iterator[AIMessageChunk]:
        for text in ('{"quotes": ["the fi', 'rst", "the sec', 'ond"]}'):
            yield AIMessageChunk(text)

    *_, before, last = structured(RunnableGenerator(pieces), QUOTES, include_raw=False).stream("hi")
    assert before == {"quotes": ["the first", "the sec"]} and last == {"quotes": ["the first", "the second"]}


def test_logprobs_stand_in_the_metadata_as_openai_has_them() -> None:
    llm = ChatCopySpec(model=engine(), max_tokens=5).bind(logprobs=True, top_logprobs=2)
    message = llm.invoke("the cat")
    content = message.response_metadata["logprobs"]["content"]
    assert len(content) == message.usage_metadata["output_tokens"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in content)
    *_, last = llm.stream("the cat")
    streamed = last.response_metadata["logprobs"]["content"]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]
    assert [entry["logprob"] for entry in streamed] == pytest.approx([entry["logprob"] for entry in content], abs=1e-4)
    assert "logprobs" not in ChatCopySpec(model=engine(), max_tokens=5).invoke("the cat").response_metadata


class Kept(BaseModel):
    place: pathlib.Path
    tags: set[str]


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_strictness_is_an_error_for_what_cannot_be_enforced(method: Literal["json_schema", "json_mode"]) -> None:
    pytest.importorskip("llguidance")
    llm = ChatCopySpec(model=engine(), max_tokens=40)
    for schema in (Kept, Kept.model_json_schema(), {"title": "a", "type": "object", "properties": {}, "not": {}}):
        with pytest.raises(ValueError, match="strict=True, and the schema cannot constrain the answer: Un"):
            llm.with_structured_output(schema, method=method, strict=True)
        llm.with_structured_output(schema, method=method, strict=False)
    llm.with_structured_output(Mat, method=method, strict=True)


def test_what_cannot_be_enforced_is_left_out_of_the_constraint() -> None:
    pytest.importorskip("llguidance")
    quote, close = (engine().codec.encode(text).ids[0] for text in '"]')
    llm = ChatCopySpec(model=engine(), max_tokens=100, model_kwargs={"logit_bias": {quote: 50.0, close: 30.0}})
    instance = llm.with_structured_output(Kept, method="json_schema").invoke("the mat")
    assert isinstance(instance, Kept)
