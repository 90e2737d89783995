"""Structured output by a constraint, and log-probabilities, through ChatCopySpec."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from copyspec.pipelines.langchain import ChatCopySpec
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


def test_logprobs_stand_in_the_metadata_as_openai_has_them() -> None:
    llm = ChatCopySpec(model=engine(), max_tokens=5).bind(logprobs=True, top_logprobs=2)
    message = llm.invoke("the cat")
    content = message.response_metadata["logprobs"]["content"]
    assert len(content) == message.usage_metadata["output_tokens"]
    assert all(len(each["top_logprobs"]) == 2 and each["logprob"] <= 0 for each in content)
    *_, last = llm.stream("the cat")
    streamed = last.response_metadata["logprobs"]["content"]
    assert [each["token"] for each in streamed] == [each["token"] for each in content]
    assert [each["logprob"] for each in streamed] == pytest.approx([each["logprob"] for each in content], abs=1e-4)
    assert "logprobs" not in ChatCopySpec(model=engine(), max_tokens=5).invoke("the cat").response_metadata
