"""Documents found by a run's retrievers reach the models of that run, however they are called, and no other run's."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from uuid import uuid4

import pytest

pytest.importorskip("langchain_core")

from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda

from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec, CopySpecLLM
from copyspec.pipelines.langchain import capture as capture_module
from copyspec.pipelines.langchain.capture import _CAPTURE, ReferenceCapture
from tests.helpers.chains import (
    QUESTIONS,
    Echo,
    Seen,
    agent,
    compiled_agent,
    compiled_graph,
    graph,
    graph_that_passes_config,
    lcel,
    retrieval_chain,
)

pytestmark = pytest.mark.usefixtures("steady_drafts")

NODES_KEEP_THEIR_RUN = sys.version_info >= (3, 11)
"""Whether LangGraph's nodes know their run under asyncio without passing on their config; see docs/langchain.md."""

PROGRAMS = [lcel, retrieval_chain, graph, agent]
Program = Callable[[ChatCopySpec], Runnable[str, object]]


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    assert len(_CAPTURE) == 0, "runs that ended are forgotten"


def check(seen: Seen, questions: list[str]) -> None:
    """Check that each question's call received the document of that question and no other."""
    assert len(seen) == len(questions)
    for question in questions:
        (own,) = [references for prompt, references in seen if question in prompt]
        assert own == [question]


def drained(pieces: AsyncIterator[object]) -> None:
    async def drain() -> None:
        async for _ in pieces:
            pass

    asyncio.run(drain())


WAYS: dict[str, Callable[[Runnable[str, object]], object]] = {
    "invoke": lambda chain: chain.invoke(QUESTIONS[0]),
    "stream": lambda chain: list(chain.stream(QUESTIONS[0])),
    "ainvoke": lambda chain: asyncio.run(chain.ainvoke(QUESTIONS[0])),  # type: ignore[arg-type]
    "astream": lambda chain: drained(chain.astream(QUESTIONS[0])),
    "astream_events": lambda chain: drained(chain.astream_events(QUESTIONS[0], version="v2")),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_documents_reach_the_model(llm: ChatCopySpec, seen: Seen, program: Program, way: str) -> None:
    WAYS[way](program(llm))
    check(seen, QUESTIONS[:1])


@pytest.mark.parametrize("way", ["batch", "abatch"])
@pytest.mark.parametrize("program", [*PROGRAMS, graph_that_passes_config], ids=lambda program: program.__name__)
def test_sixteen_questions_at_once_are_kept_apart(llm: ChatCopySpec, seen: Seen, program: Program, way: str) -> None:
    chain = program(llm)
    answers = chain.batch(QUESTIONS) if way == "batch" else asyncio.run(chain.abatch(QUESTIONS))  # type: ignore[arg-type]
    if NODES_KEEP_THEIR_RUN or way == "batch" or program not in (graph, agent):
        check(seen, QUESTIONS)
    else:
        assert [references for _, references in seen] == [[]] * len(QUESTIONS), "none, and nobody else's"
    assert len(answers) == len(QUESTIONS)


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_documents_reach_a_model_whose_tokens_a_graph_streams(llm: ChatCopySpec, seen: Seen, way: str) -> None:
    """The nodes call `invoke`, which streams internally: langchain-core then calls `_stream` without telling it its
    run."""
    inputs = {"question": QUESTIONS[0]}, {"messages": [HumanMessage(QUESTIONS[1])]}
    passes_config = way == "astream" and not NODES_KEEP_THEIR_RUN
    programs = compiled_graph(llm, passes_config=passes_config), compiled_agent(llm)
    for program, program_input in zip(programs, inputs, strict=True):
        if way == "stream":
            assert list(program.stream(program_input, stream_mode="messages"))  # type: ignore[arg-type]
        else:
            drained(program.astream(program_input, stream_mode="messages"))  # type: ignore[arg-type]
    if passes_config:
        assert seen.pop()[1] == [], "of an agent's nodes the config is not ours to pass"
    check(seen, QUESTIONS[: len(seen)])
    assert seen


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_documents_reach_a_model_that_streams_inside(engine: Engine, seen: Seen, way: str) -> None:
    WAYS[way](lcel(ChatCopySpec(model=engine, max_tokens=3, streaming=True)))
    check(seen, QUESTIONS[:1])


def test_batches_inside_one_run_are_kept_apart_too(llm: ChatCopySpec, seen: Seen) -> None:
    RunnableLambda(lambda questions: lcel(llm).batch(questions)).invoke(QUESTIONS)
    check(seen, QUESTIONS)


def test_language_models_get_the_documents_of_each_prompt(engine: Engine, seen: Seen) -> None:
    chain = lcel(CopySpecLLM(model=engine, max_tokens=3))
    chain.batch(QUESTIONS)
    check(seen, QUESTIONS)
    seen.clear()
    asyncio.run(chain.abatch(QUESTIONS))
    check(seen, QUESTIONS)
    for way in WAYS.values():
        seen.clear()
        way(chain)
        check(seen, QUESTIONS[:1])


def test_equal_prompts_of_a_batch_keep_their_own_documents(engine: Engine, seen: Seen) -> None:
    llm = CopySpecLLM(model=engine, max_tokens=3)
    chain = Echo() | RunnableLambda(lambda documents: "the same prompt") | llm
    chain.batch(QUESTIONS[:3])
    assert [references for _, references in seen] == [[question] for question in QUESTIONS[:3]]


def test_a_model_outside_of_any_run_gets_nothing(llm: ChatCopySpec, seen: Seen) -> None:
    Echo().invoke("before")
    lcel(llm).invoke(QUESTIONS[0])
    llm.invoke("after")
    list(llm.stream("after"))
    assert [references for _, references in seen[1:]] == [[], []]


def test_an_abandoned_stream_is_forgotten(llm: ChatCopySpec) -> None:
    stream = lcel(llm).stream(QUESTIONS[0])
    next(stream)
    del stream
    gc.collect()
    assert len(_CAPTURE) == 0


def test_auto_references_can_be_left_out(engine: Engine, seen: Seen) -> None:
    lcel(ChatCopySpec(model=engine, max_tokens=3, auto_references=False)).invoke(QUESTIONS[0])
    lcel(CopySpecLLM(model=engine, max_tokens=3, auto_references=False)).invoke(QUESTIONS[0])
    assert [references for _, references in seen] == [[], []]


def test_the_store_is_bounded_where_ends_are_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "MAX_RUNS", 5)
    capture = ReferenceCapture()
    for _ in range(20):
        capture.on_chain_start(None, None, run_id=uuid4())
    assert len(capture) == 5
