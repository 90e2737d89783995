"""References reach the model without wiring, its own run's alone, and never change what is said or shown elsewhere."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

pytest.importorskip("langchain_core")

from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, Runnable, RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langchain_core.tracers import BaseTracer

import copyspec
from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec, CopySpecLLM, with_references
from copyspec.pipelines.langchain import capture as capture_module
from copyspec.pipelines.langchain.calls import Call
from copyspec.pipelines.langchain.capture import _CAPTURE, ReferenceCapture
from copyspec.pipelines.langchain.documents import Private, explicit, gather, text_of
from tests.tiny import tiny_model, tiny_tokenizer

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.tracers.schemas import Run

pytestmark = pytest.mark.usefixtures("steady_drafts")

SECRET = "the vault opens at noon"
QUESTIONS = [f"question {chr(97 + index) * 3}" for index in range(16)]


class Echo(BaseRetriever):
    """Finds one document that names the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(page_content=f"all about {query}, {SECRET}", id=query)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        await asyncio.sleep(0)
        return self._get_relevant_documents(query, run_manager=run_manager)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(tiny_model(), tiny_tokenizer(), name="tiny")


@pytest.fixture
def llm(engine: Engine) -> ChatCopySpec:
    return ChatCopySpec(model=engine, max_tokens=3)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """(prompt, ids or texts of its references) of every call."""
    calls: list[tuple[str, list[str]]] = []
    of = Call.of

    def spy(
        named_engine: tuple[Engine, str], prompts: list[object], references: list[list[object]], *rest: object
    ) -> Call:
        for prompt, its in zip(prompts, references, strict=True):
            text = prompt if isinstance(prompt, str) else named_engine[0].codec.decode(prompt)  # type: ignore[arg-type]
            calls.append((text, [getattr(each, "id", None) or str(text_of(each)) for each in its]))
        return of(named_engine, prompts, references, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Call, "of", spy)
    return calls


def format_documents(documents: list[Document]) -> str:
    return str(len(documents))


PROMPT = ChatPromptTemplate.from_template("{context}: {question}")


def lcel(llm: ChatCopySpec) -> Runnable[str, str]:
    return {"context": Echo() | format_documents, "question": RunnablePassthrough()} | PROMPT | llm | StrOutputParser()


def retrieval_chain(llm: ChatCopySpec) -> Runnable[str, object]:
    classic = pytest.importorskip("langchain_classic.chains.combine_documents")
    retrieval = pytest.importorskip("langchain_classic.chains.retrieval")
    stuffed = classic.create_stuff_documents_chain(llm, ChatPromptTemplate.from_template("{context} {input}"))
    return RunnableLambda(lambda question: {"input": question}) | retrieval.create_retrieval_chain(Echo(), stuffed)


def graph(llm: ChatCopySpec) -> Runnable[str, object]:
    langgraph = pytest.importorskip("langgraph.graph")

    def find(state: dict[str, object]) -> dict[str, object]:
        return {"found": len(Echo().invoke(str(state["question"])))}

    def say(state: dict[str, object]) -> dict[str, object]:
        return {"answer": llm.invoke(str(state["question"])).content}

    builder = langgraph.StateGraph(dict)
    builder.add_node("find", lambda state: {**state, **find(state)})
    builder.add_node("say", lambda state: {**state, **say(state)})
    builder.add_edge(langgraph.START, "find")
    builder.add_edge("find", "say")
    builder.add_edge("say", langgraph.END)
    return RunnableLambda(lambda question: {"question": question}) | builder.compile()


def agent(llm: ChatCopySpec) -> Runnable[str, object]:
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    search = create_retriever_tool(Echo(), "search", "finds documents")

    @middleware.wrap_model_call
    def search_first(request: object, handler: Callable[[object], object]) -> object:
        messages = request.messages  # type: ignore[attr-defined]
        if isinstance(messages[-1], HumanMessage):
            call = {"name": "search", "args": {"query": messages[-1].content}, "id": "1"}
            return AIMessage("", tool_calls=[call])
        return handler(request.override(tools=[]))  # type: ignore[attr-defined]

    made = agents.create_agent(llm, [search], middleware=[search_first])
    return RunnableLambda(lambda question: {"messages": [HumanMessage(question)]}) | made


async def _events(chain: Runnable[str, object]) -> None:
    async for _ in chain.astream_events(QUESTIONS[0], version="v2"):
        pass


def check(seen: list[tuple[str, list[str]]], questions: list[str]) -> None:
    """Each question's call was given the document of that question, and no other."""
    assert len(seen) == len(questions)
    for question in questions:
        (found,) = [references for prompt, references in seen if question in prompt]
        assert found == [question]
    assert len(_CAPTURE) == 0, "runs that ended are forgotten"


PATHS: dict[str, Callable[[Runnable[str, object]], object]] = {
    "invoke": lambda chain: chain.invoke(QUESTIONS[0]),
    "stream": lambda chain: list(chain.stream(QUESTIONS[0])),
    "ainvoke": lambda chain: asyncio.run(chain.ainvoke(QUESTIONS[0])),  # type: ignore[arg-type]
    "astream": lambda chain: asyncio.run(_all(chain)),
    "astream_events": lambda chain: asyncio.run(_events(chain)),
}


async def _all(chain: Runnable[str, object]) -> None:
    async for _ in chain.astream(QUESTIONS[0]):
        pass


@pytest.mark.parametrize("path", PATHS)
def test_the_documents_of_a_chain_reach_its_model(
    llm: ChatCopySpec, seen: list[tuple[str, list[str]]], path: str
) -> None:
    PATHS[path](lcel(llm))
    check(seen, QUESTIONS[:1])


@pytest.mark.parametrize("make", [lcel, retrieval_chain, graph], ids=lambda make: make.__name__)
def test_batches_keep_sixteen_questions_apart(
    llm: ChatCopySpec, seen: list[tuple[str, list[str]]], make: Callable[[ChatCopySpec], Runnable[str, object]]
) -> None:
    make(llm).batch(QUESTIONS)
    check(seen, QUESTIONS)


@pytest.mark.parametrize("make", [lcel, retrieval_chain, graph], ids=lambda make: make.__name__)
def test_tasks_keep_sixteen_questions_apart(
    llm: ChatCopySpec, seen: list[tuple[str, list[str]]], make: Callable[[ChatCopySpec], Runnable[str, object]]
) -> None:
    asyncio.run(make(llm).abatch(QUESTIONS))  # type: ignore[arg-type]
    check(seen, QUESTIONS)


def test_agents_keep_sixteen_questions_apart(llm: ChatCopySpec, seen: list[tuple[str, list[str]]]) -> None:
    agent(llm).batch(QUESTIONS)
    check(seen, QUESTIONS)


def test_batches_inside_one_run_are_kept_apart_too(llm: ChatCopySpec, seen: list[tuple[str, list[str]]]) -> None:
    RunnableLambda(lambda questions: lcel(llm).batch(questions)).invoke(QUESTIONS)
    check(seen, QUESTIONS)


def test_language_models_get_the_documents_of_each_prompt(engine: Engine, seen: list[tuple[str, list[str]]]) -> None:
    llm = CopySpecLLM(model=engine, max_tokens=3)
    chain = {"context": Echo() | format_documents, "question": RunnablePassthrough()} | PROMPT | llm
    chain.batch(QUESTIONS)
    check(seen, QUESTIONS)
    seen.clear()
    asyncio.run(chain.abatch(QUESTIONS))
    check(seen, QUESTIONS)
    for path in PATHS:
        seen.clear()
        PATHS[path](chain)
        check(seen, QUESTIONS[:1])


def test_a_model_outside_of_any_run_gets_nothing(llm: ChatCopySpec, seen: list[tuple[str, list[str]]]) -> None:
    Echo().invoke("before")
    lcel(llm).invoke(QUESTIONS[0])
    llm.invoke("after")
    assert seen[-1][1] == []


def test_an_abandoned_stream_is_forgotten(llm: ChatCopySpec) -> None:
    stream = lcel(llm).stream(QUESTIONS[0])
    next(stream)
    del stream
    gc.collect()
    assert len(_CAPTURE) == 0


def test_auto_references_can_be_left_out(engine: Engine, seen: list[tuple[str, list[str]]]) -> None:
    lcel(ChatCopySpec(model=engine, max_tokens=3, auto_references=False)).invoke(QUESTIONS[0])
    assert seen[0][1] == []


def test_the_store_is_bounded_where_ends_are_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "MAX_RUNS", 5)
    capture = ReferenceCapture()
    for _ in range(20):
        capture.on_chain_start(None, None, run_id=uuid4())
    assert len(capture) == 5


def test_artifacts_of_tools_are_copied_from(llm: ChatCopySpec, seen: list[tuple[str, list[str]]]) -> None:
    documents = [Document("first", id="1"), Document("second", id="2")]
    call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}])
    for artifact in (documents, {"documents": documents}, tuple(documents)):
        seen.clear()
        llm.invoke([HumanMessage("hi"), call, ToolMessage("found", tool_call_id="1", artifact=artifact)])
        assert seen[0][1] == ["1", "2"]
    seen.clear()
    llm.invoke([HumanMessage("hi"), call, ToolMessage("found", tool_call_id="1", artifact={"rows": 3})])
    assert seen[0][1] == []


def test_explicit_ways(llm: ChatCopySpec, engine: Engine, seen: list[tuple[str, list[str]]]) -> None:
    document = Document("text", id="x")
    llm.bind(references=[document]).invoke("hi")
    llm.invoke("hi", references=document)
    list(llm.stream("hi", references=["text"]))
    CopySpecLLM(model=engine, max_tokens=3).bind(references=document).invoke("hi")
    assert [references for _, references in seen] == [["x"], ["x"], ["text"], ["x"]]
    with pytest.raises(TypeError, match="references"):
        llm.invoke("hi", references=[3.5])


def jobs_of(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the sources of every job."""
    named: list[list[str]] = []
    of = Call.of.__func__  # type: ignore[attr-defined]

    def spy(*arguments: object) -> Call:
        call = of(Call, *arguments)
        named.extend([source.name for source in job.sources] for job in call.jobs)
        return call  # type: ignore[no-any-return]

    monkeypatch.setattr(Call, "of", spy)
    return named


def test_blocks_and_predictions_become_sources(llm: ChatCopySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    named = jobs_of(monkeypatch)
    with copyspec.references({"text": "around", "name": "block"}):
        llm.invoke("hi")
    llm.invoke("hi", prediction={"type": "content", "content": "hello there"})
    asyncio.run(llm.ainvoke("hi", prediction="hello there"))
    assert named == [["block", "prompt"], ["prediction", "prompt"], ["prediction", "prompt"]]


def test_with_references_binds_by_key_and_streams(llm: ChatCopySpec, seen: list[tuple[str, list[str]]]) -> None:
    inner = PROMPT | llm | StrOutputParser()
    chain = RunnablePassthrough.assign(docs=lambda given: [Document("text", id=given["question"])]) | with_references(
        inner, key="docs"
    )
    given = [{"context": "c", "question": question} for question in QUESTIONS]
    chain.invoke(given[0])
    assert len(list(chain.stream(given[1]))) > 1
    asyncio.run(chain.abatch(given[2:]))
    for question in QUESTIONS:
        assert [references for prompt, references in seen if question in prompt] == [[question]]
    with pytest.raises(ValueError, match="no ChatCopySpec or CopySpecLLM"):
        with_references(PROMPT, key="docs")
    with pytest.raises(TypeError, match="needs a dict"):
        with_references(llm, key="docs").invoke("text")


class Tracer(BaseTracer):
    """Keeps all that a tracer is told about models."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def _persist_run(self, run: Run) -> None:
        pass

    def _on_llm_start(self, run: Run) -> None:
        self.told.append(repr(run.model_dump(exclude={"inputs"})))

    _on_chat_model_start = _on_llm_start
    _on_llm_end = _on_llm_start
    _on_chain_start = _on_llm_start
    _on_chain_end = _on_llm_start


@pytest.mark.parametrize("kind", [ChatCopySpec, CopySpecLLM])
def test_traces_do_not_show_references(engine: Engine, kind: type[ChatCopySpec] | type[CopySpecLLM]) -> None:
    tracer = Tracer()
    llm = kind(model=engine, max_tokens=3, model_kwargs={"prediction": SECRET})
    config = {"callbacks": [tracer]}
    for given in ({"references": [Document(SECRET)]}, {"references": SECRET}, {"prediction": SECRET}):
        llm.invoke("hi", config, **given)  # type: ignore[arg-type]
        list(llm.stream("hi", config, **given))  # type: ignore[arg-type]
        (PROMPT | llm.bind(**given)).invoke({"context": "", "question": "hi"}, config)  # type: ignore[arg-type]
        llm.batch(["hi", "ho"], config, **given)  # type: ignore[arg-type]
        asyncio.run(llm.ainvoke("hi", config, **given))  # type: ignore[arg-type]
        asyncio.run(_stream_with(llm, config, given))
    assert len(tracer.told) >= 36
    assert not [told for told in tracer.told if SECRET in told]


async def _stream_with(
    llm: ChatCopySpec | CopySpecLLM, config: dict[str, list[Tracer]], given: dict[str, object]
) -> None:
    async for _ in llm.astream("hi", config, **given):  # type: ignore[arg-type]
        pass


class Reading(BaseCallbackHandler):
    def __init__(self) -> None:
        self.params: list[dict[str, object]] = []

    def on_chat_model_start(self, serialized: object, messages: object, **kwargs: object) -> None:
        self.params.append(kwargs["invocation_params"])  # type: ignore[arg-type]


def test_invocation_params_and_cache_keys_are_those_without_references(engine: Engine) -> None:
    cache = InMemoryCache()
    llm = ChatCopySpec(model=engine, max_tokens=3, cache=cache)
    reading = Reading()
    config = {"callbacks": [reading]}
    first = llm.invoke("hi", config, references=["one"])  # type: ignore[arg-type]
    assert llm.invoke("hi", config).content == first.content  # type: ignore[arg-type]
    llm.invoke("hi", config, references=[Document("two")], prediction="three")  # type: ignore[arg-type]
    assert len(cache._cache) == 1, "references change no answer, so they make no other key"
    assert reading.params[0] == reading.params[1] == reading.params[2]
    llm.invoke("hi", config, temperature=0.5, seed=1)  # type: ignore[arg-type]
    assert len(cache._cache) == 2
    assert len({ChatCopySpec(model=engine, stop=stop)._get_llm_string() for stop in ("a", "b")}) == 2


def test_other_handlers_are_told_what_they_were_told_before(llm: ChatCopySpec) -> None:
    from langchain_core.language_models import FakeListLLM

    tracer = Tracer()
    answered = asyncio.run(FakeListLLM(responses=["yes"]).ainvoke("hi", {"callbacks": [tracer]}))
    assert answered == "yes" and len(tracer.told) == 2, "start and end"


def test_fields_may_be_configured(llm: ChatCopySpec) -> None:
    chosen = llm.configurable_fields(max_tokens=ConfigurableField(id="limit"))
    answer = chosen.invoke("hi", {"configurable": {"limit": 2}})
    assert isinstance(answer, AIMessage) and answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 2


def test_private_says_nothing() -> None:
    assert SECRET not in repr(Private(SECRET)) and SECRET not in str({"references": Private([SECRET])})
    assert explicit(Private(Private(SECRET))) == [SECRET]
    assert explicit(None) == [] and explicit([1, 2]) == [[1, 2]] and explicit(("a", "b")) == ["a", "b"]


def test_found_documents_are_taken_once_and_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    from copyspec.pipelines.langchain import documents

    found = [Document("aa"), Document("bb"), Document("aa"), Document("cc")]
    assert [text_of(each) for each in gather(["bb", [1, 2]], found)] == ["bb", None, "aa", "cc"]
    monkeypatch.setattr(documents, "MAX_FOUND_CHARACTERS", 5)
    assert [text_of(each) for each in gather(["handed over"], found)] == ["handed over", "aa", "bb"]


def test_answers_are_those_without_references_and_of_plain_decoding(engine: Engine) -> None:
    import torch

    with_them = ChatCopySpec(model=engine, max_tokens=24)
    without = ChatCopySpec(model=engine, max_tokens=24, auto_references=False, model_kwargs={"drafter": "none"})
    chains = [lcel(with_them), lcel(without)]
    answers = [chain.batch(QUESTIONS) for chain in chains]
    assert answers[0] == answers[1]
    tokenizer = tiny_tokenizer()
    for question, answer in zip(QUESTIONS[:4], answers[0][:4], strict=True):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": f"1: {question}"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )["input_ids"]
        output = tiny_model().generate(ids, max_new_tokens=24, do_sample=False, attention_mask=torch.ones_like(ids))
        assert answer == engine.codec.decode(output[0, ids.shape[1] :].tolist())


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    yield
    assert len(_CAPTURE) == 0
