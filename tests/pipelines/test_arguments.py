"""Wrong arguments of the pipelines: each error comes at the call and names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import copyspec
from copyspec.pipelines import (
    DocumentAnswers,
    EditOptions,
    EditPipeline,
    FileOptions,
    GECPipeline,
    GuardOptions,
    IterativeRAG,
    Runner,
    correct_files,
    expand,
)
from copyspec.retrievers import BM25Retriever
from pipelines.editing.correctors import FunctionCorrector
from tests.helpers.tiny import tiny_engine

PASSAGES = ["The kettle is red.", "The stove is black."]
RUNNER = Runner(FunctionCorrector(str.upper))


@pytest.fixture(scope="module")
def engine() -> copyspec.Engine:
    return tiny_engine()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guards": 3}, "guards must be a GuardOptions; got int: 3"),
        ({"instruction": 3}, "instruction must be a str; got int: 3"),
        ({"split": 3}, "split must be a function from a text to spans; got int: 3"),
        ({"segment_tokens": "x"}, "segment_tokens must be an integer >= 1, got 'x'"),
        ({"batch_size": math.nan}, "batch_size must be an integer >= 1, got nan"),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer >= 1, got 0"),
        ({"pack": "x"}, "pack must be an integer >= 0, got 'x'"),
        ({"draft_models": 3}, "draft_models must be a list of models' names; got int: 3"),
        ({"draft_models": "x"}, "draft_models must be a list of models' names; got str: 'x'"),
        ({"earlier": True}, "earlier must be an integer >= 0"),
        ({"drafts": 3}, "drafts must be True or False; got int: 3"),
        ({"by_sentence": "x"}, "by_sentence must be True or False; got str: 'x'"),
        ({"system": 3}, "system must be a str; got int: 3"),
        ({"preset": []}, r"preset=\[\] must be one of"),
        ({"split": None}, "split must be a function from a text to spans; got NoneType"),
    ],
)
def test_options_of_a_correction(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        GECPipeline("no/such model", **options)  # before the model is looked for


@pytest.mark.parametrize("texts", [None, 3])
def test_texts_that_are_none(engine: copyspec.Engine, texts: Any) -> None:
    for call in (GECPipeline(engine), GECPipeline(engine).stream):
        with pytest.raises(TypeError, match=r"texts must be a.*; got"):
            call(texts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GuardOptions(allow_numbers="no"), "allow_numbers must be True or False; got str: 'no'"),
        (lambda: GuardOptions(precision="2"), "precision must be a number; got str: '2'"),
        (lambda: GuardOptions(max_edit_ratio=True), "max_edit_ratio must be a number; got bool: True"),
        (lambda: FileOptions(in_place="no"), "in_place must be True or False; got str: 'no'"),
        (lambda: FileOptions(in_place=True, resume="no"), "resume must be True or False; got str: 'no'"),
        (lambda: FileOptions(in_place=True, backup=True), r"backup must be a suffix such as '\.bak'; got bool: True"),
        (lambda: correct_files(RUNNER, "a.txt", FileOptions()), "paths must be a list of paths; got str: 'a.txt'"),
        (lambda: expand("a.txt", suffixes=[".txt"]), "paths must be a list of str; got str: 'a.txt'"),
        (lambda: expand(["a.txt"], suffixes=".txt"), r"suffixes must be a list of str; got str: '\.txt'"),
        (lambda: expand(["a.txt"], suffixes=[".txt"], exclude="docs"), "exclude must be a list of str; got str"),
    ],
)
def test_options_of_files_and_guards(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("output", [3, b"He goes.", ["He goes."], None])
def test_a_function_that_returns_no_text(output: Any) -> None:
    def fix(text: str) -> Any:
        return output

    with pytest.raises(TypeError, match=r"fix returned .*; it must return the corrected text, a str"):
        GECPipeline(FunctionCorrector(fix))("He go.")
    with pytest.raises(TypeError, match="function must be a function from a text to its correction; got int: 3"):
        FunctionCorrector(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda engine: EditPipeline(engine)(None, "Do it"), "text must be a str; got NoneType"),
        (lambda engine: EditPipeline(engine)(3, "Do it"), "text must be a str; got int: 3"),
        (lambda engine: EditPipeline(engine)("a", None), "instruction must be a str; got NoneType"),
        (lambda engine: EditPipeline(engine, 3), "options must be an EditOptions; got int: 3"),
        (lambda engine: EditOptions(max_edit_ratio="x"), "max_edit_ratio must be a number at least 0 .*, got 'x'"),
        (lambda engine: EditOptions(draft_models=3), "draft_models must be a list of models' names"),
        (lambda engine: DocumentAnswers(PASSAGES)(None), "question must be a str; got NoneType"),
        (lambda engine: DocumentAnswers(PASSAGES)(["a"]), "question must be a str; got list"),
        (lambda engine: DocumentAnswers(PASSAGES, k="x"), "k must be an integer >= 1, got 'x'"),
        (lambda engine: DocumentAnswers(PASSAGES, contexts=3), "contexts must be a list of str; got int: 3"),
        (lambda engine: DocumentAnswers(None), "retriever must be a retriever, .*; got NoneType"),
        (lambda engine: DocumentAnswers({"a": 1}), "retriever must be a retriever, .*; got dict"),
        (lambda engine: DocumentAnswers(PASSAGES, max_new_tokens=0), "max_new_tokens must be an integer >= 1, got 0"),
        (lambda engine: DocumentAnswers(PASSAGES, max_new_tokens=math.nan), "max_new_tokens must be .*, got nan"),
        (lambda engine: IterativeRAG(None, model=engine), "retriever must be a retriever, .*; got NoneType"),
        (
            lambda engine: IterativeRAG(BM25Retriever(PASSAGES), model=engine, speculation=3),
            "speculation must be a Speculation, or None for the plain form; got int: 3",
        ),
    ],
)
def test_wrong_arguments(engine: copyspec.Engine, call: Callable[[copyspec.Engine], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call(engine)
