"""A chain's filter holds for its citations: documents that did not reach the prompt are drafted from, but never
named."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from langchain_core.tools import tool

from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec, CitedAnswer, CopySpecLLM, with_citations, with_references
from copyspec.pipelines.langchain.prompted import in_prompt
from tests.helpers.tiny import tiny_engine
from tests.langchain.test_tools import says

if TYPE_CHECKING:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun, Callbacks

pytestmark = pytest.mark.usefixtures("steady_drafts")

OPEN = Document("On Sundays the library is closed.\nIts yard is a 'market'.", id="open", metadata={"who": "all"})
SHUT = Document(
    "The key of the vault is below the lamp.", id="shut-17", metadata={"who": "board", "source": "vault.md"}
)
QUOTE = "On Sundays the library is closed. The key of the vault is below the lamp."
PROMPT = ChatPromptTemplate.from_template("{docs}\n{question}")


class Fixed(BaseRetriever):
    """Finds the same documents for every question."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [document.model_copy() for document in self.documents]


class OfBoth(BaseRetriever):
    """A retriever over another, as those that compress and rerank."""

    base: BaseRetriever
    compressor: BaseDocumentCompressor

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        documents = self.base.invoke(query, config={"callbacks": run_manager.get_child()})
        return list(self.compressor.compress_documents(documents, query))


class Allowed(BaseDocumentCompressor):
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        return allowed(documents)


class Reranker(BaseDocumentCompressor):
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        best = sorted(documents, key=lambda document: document.metadata["who"])[:1]
        return [
            Document(document.page_content, metadata={**document.metadata, "score": 0.7}, id=document.id)
            for document in best
        ]


def allowed(documents: Sequence[Document]) -> list[Document]:
    return [document for document in documents if document.metadata["who"] == "all"]


def joined(documents: Sequence[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def asking(docs: Runnable[str, object]) -> Runnable[str, object]:
    return RunnableParallel(docs=docs, question=RunnablePassthrough()) | PROMPT


BOTH = Fixed(documents=[SHUT, OPEN])
Build = Callable[[ChatCopySpec], Runnable[str, object]]


@chain
def looked_up(question: str) -> str:
    return joined(allowed(BOTH.invoke(question)))


def mapped(llm: ChatCopySpec) -> Runnable[str, object]:
    documents = BOTH | allowed | joined
    return asking(RunnableLambda(lambda question: [question, question + "!"]) | documents.map() | "\n".join) | llm


def parallel(llm: ChatCopySpec) -> Runnable[str, object]:
    both_searches = RunnableParallel(one=Fixed(documents=[OPEN]), two=Fixed(documents=[SHUT, OPEN]))
    return asking(both_searches | (lambda both: joined(allowed([*both["one"], *both["two"]])))) | llm


def raw_beside(llm: ChatCopySpec) -> Runnable[str, object]:
    raw = RunnableParallel(raw=BOTH, question=RunnablePassthrough())
    return raw | RunnablePassthrough.assign(docs=lambda state: joined(allowed(state["raw"]))) | PROMPT | llm


def handed_over(llm: ChatCopySpec) -> Runnable[str, object]:
    prepared = RunnableParallel(chosen=BOTH | allowed, question=RunnablePassthrough())
    asked = ChatPromptTemplate.from_template("{question}")
    return prepared | with_references(asked | llm, key="chosen")


def branched(llm: ChatCopySpec) -> Runnable[str, object]:
    return asking(BOTH | RunnableBranch((lambda documents: len(documents) > 1, allowed), allowed) | joined) | llm


def graph(llm: ChatCopySpec) -> Runnable[str, object]:
    langgraph = pytest.importorskip("langgraph.graph")
    builder = langgraph.StateGraph(dict)
    builder.add_node("find", lambda state: {**state, "docs": BOTH.invoke(state["question"])})
    builder.add_node("filter", lambda state: {**state, "docs": allowed(state["docs"])})
    builder.add_node("say", lambda state: {**state, "answer": llm.invoke(f"{joined(state['docs'])}: when?")})
    for one, two in ((langgraph.START, "find"), ("find", "filter"), ("filter", "say"), ("say", langgraph.END)):
        builder.add_edge(one, two)
    state = RunnableLambda(lambda question: {"question": question})
    return state | builder.compile() | (lambda state: state["answer"])


@tool(response_format="content_and_artifact")
def search(query: str) -> tuple[str, list[Document]]:
    """Find documents."""
    documents = BOTH.invoke(query)
    return joined(allowed(documents)), documents


def tooled(llm: ChatCopySpec) -> Runnable[str, object]:
    def messages(question: str) -> list[BaseMessage]:
        call = {"name": "search", "args": {"query": question}, "id": "1", "type": "tool_call"}
        result = search.invoke(call)
        assert isinstance(result, ToolMessage) and len(result.artifact) == 2
        return [HumanMessage(question), AIMessage("", tool_calls=[call]), result]

    return RunnableLambda(messages) | llm


CHAINS: dict[str, Build] = {
    "filter": lambda llm: asking(BOTH | allowed | joined) | llm,
    "filter and format": lambda llm: asking(BOTH | (lambda documents: joined(allowed(documents)))) | llm,
    "repr": lambda llm: asking(BOTH | allowed) | llm,
    "json": lambda llm: (
        asking(BOTH | allowed | (lambda documents: json.dumps([it.page_content for it in documents]))) | llm
    ),
    "other white space": lambda llm: asking(BOTH | allowed | joined | (lambda text: " ".join(text.split()))) | llm,
    "compressor": lambda llm: asking(OfBoth(base=BOTH, compressor=Allowed()) | joined) | llm,
    "reranker": lambda llm: asking(OfBoth(base=BOTH, compressor=Reranker()) | joined) | llm,
    "inside a function": lambda llm: asking(looked_up) | llm,
    "map": mapped,
    "parallel": parallel,
    "raw beside": raw_beside,
    "with_references": handed_over,
    "branch": branched,
    "graph": graph,
    "tool": tooled,
}


def model(quote: str = QUOTE) -> ChatCopySpec:
    return ChatCopySpec(model=engine(), max_tokens=150, model_kwargs={"logits_processor": says(quote)})


def engine() -> Engine:
    return tiny_engine(name="tiny")


async def streamed(cited: Runnable[str, CitedAnswer]) -> CitedAnswer:
    return sum([piece async for piece in cited.astream("When?")], CitedAnswer("", ()))


WAYS: dict[str, Callable[[Runnable[str, CitedAnswer]], CitedAnswer]] = {
    "invoke": lambda cited: cited.invoke("When?"),
    "batch": lambda cited: cited.batch(["When?"])[0],
    "stream": lambda cited: sum(cited.stream("When?"), CitedAnswer("", ())),
    "ainvoke": lambda cited: asyncio.run(cited.ainvoke("When?")),  # type: ignore[arg-type]
    "abatch": lambda cited: asyncio.run(cited.abatch(["When?"]))[0],
    "astream": lambda cited: asyncio.run(streamed(cited)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHAINS)
def test_citations_name_what_the_chain_let_through(name: str, way: str) -> None:
    if name == "graph" and "stream" in way:
        pytest.skip("LangGraph's stream yields states")
    answer = WAYS[way](with_citations(CHAINS[name](model())))  # type: ignore[arg-type]
    assert answer.text.strip() == QUOTE
    assert [(citation.text, citation.document.id) for citation in answer.citations] == [  # type: ignore[attr-defined]
        ("On Sundays the library is closed.", "open")
    ]


@pytest.mark.parametrize("way", ["invoke", "stream", "abatch"])
@pytest.mark.parametrize("name", sorted({*CHAINS} - {"graph"}))
def test_a_reader_who_guesses_a_text_is_told_nothing(name: str, way: str) -> None:
    """The text of a document that was filtered out stands in the prompt, because the question has it."""
    asked = f"When?\n{SHUT.page_content}"
    built = with_citations(CHAINS[name](model()))  # type: ignore[arg-type]
    if way == "stream":
        answer = sum(built.stream(asked), CitedAnswer("", ()))
    else:
        answer = built.invoke(asked) if way == "invoke" else asyncio.run(built.abatch([asked]))[0]
    assert [citation.document.id for citation in answer.citations] == ["open"]  # type: ignore[attr-defined]
    message = CHAINS[name](model()).invoke(asked)
    assert "shut-17" not in str(message)


@pytest.mark.parametrize("kept", [[], [OPEN]])
def test_what_is_filtered_out_stays_so_where_nothing_is_left(kept: list[Document]) -> None:
    nothing = BOTH | (lambda documents: kept) | joined
    question = f"{SHUT.page_content} {OPEN.page_content}"
    answer = with_citations(asking(nothing) | model()).invoke(question)  # type: ignore[arg-type]
    assert [document.id for document in answer.documents] == [document.id for document in kept]  # type: ignore[attr-defined]


def filters_and_answers(llm: ChatCopySpec) -> Runnable[str, object]:
    """One node searches, the next one filters and calls the model itself."""
    langgraph = pytest.importorskip("langgraph.graph")

    def say(state: dict[str, object]) -> dict[str, object]:
        docs = allowed(state["docs"])  # type: ignore[arg-type]
        return {**state, "answer": llm.invoke(f"{joined(docs)}\n{state['question']}")}

    builder = langgraph.StateGraph(dict)
    builder.add_node("find", lambda state: {**state, "docs": BOTH.invoke(state["question"])})
    builder.add_node("say", say)
    for one, two in ((langgraph.START, "find"), ("find", "say"), ("say", langgraph.END)):
        builder.add_edge(one, two)
    return (lambda question: {"question": question}) | builder.compile() | (lambda state: state["answer"])


def all_in_one(llm: ChatCopySpec) -> Runnable[str, object]:
    return RunnableLambda(lambda question: llm.invoke(f"{joined(allowed(BOTH.invoke(question)))}\n{question}"))


def rewritten(llm: ChatCopySpec) -> Runnable[str, object]:
    question = RunnableLambda(lambda asked: asked.removeprefix("When?"))
    return RunnableParallel(docs=BOTH | allowed | joined, question=question) | PROMPT | llm


@pytest.mark.parametrize("build", [all_in_one, rewritten], ids=lambda build: build.__name__)
def test_a_guess_names_nothing_in_a_stream(build: Build) -> None:
    async def pieces() -> list[object]:
        return [piece async for piece in build(model()).astream(f"When?{SHUT.page_content}")]

    shown = str(list(build(model()).stream(f"When?{SHUT.page_content}"))) + str(asyncio.run(pieces()))
    assert "shut-17" not in shown and (build is all_in_one or "'open'" in shown)


@pytest.mark.parametrize("build", [filters_and_answers, all_in_one, rewritten], ids=lambda build: build.__name__)
def test_a_guess_names_nothing_where_the_step_that_filters_calls_the_model(build: Build) -> None:
    for asked in ("When?", f"When?\n{SHUT.page_content}", f"{SHUT.page_content} {OPEN.page_content}"):
        shown = str(build(model()).invoke(asked))
        assert "shut-17" not in shown and "'open'" in shown


@pytest.mark.parametrize("way", ["map", "batch"])
def test_readers_of_a_nested_batch_are_kept_apart(way: str) -> None:
    """A bound model's calls name the run around the batch."""

    def found(who: str) -> str:
        return joined(Fixed(documents=[OPEN if who == "all" else SHUT]).invoke(who))

    bound = RunnableLambda(lambda who: {"docs": found(who), "question": QUOTE}) | PROMPT | model().bind(max_tokens=150)
    asked = bound.map() if way == "map" else RunnableLambda(lambda readers: bound.batch(readers))
    for _ in range(3):
        mine, other = asked.invoke(["all", "board"])
        assert "shut-17" not in str(mine) and "'open'" not in str(other)


def test_a_quote_in_a_list_or_in_quotes_names_its_document() -> None:
    for form in ('["{}"]', "[1] {}\n[2]", "1. {}\n2."):
        text = OPEN.page_content.splitlines()[0]
        whole = Fixed(documents=[Document(text, id="line")]) | (
            lambda documents, form=form: form.format(documents[0].page_content)
        )
        answer = with_citations(asking(whole) | model(form.format(text))).invoke("When?")  # type: ignore[arg-type]
        assert [citation.document.id for citation in answer.citations] == ["line"], form  # type: ignore[attr-defined]


def test_steps_that_only_look_at_documents_drop_none() -> None:
    looked = RunnablePassthrough.assign(count=lambda state: len(state["docs"]), grade=lambda state: "good")
    searched = RunnableParallel(docs=BOTH, question=RunnablePassthrough()) | looked
    for shown in (PROMPT, RunnablePassthrough.assign(docs=lambda state: joined(state["docs"])) | PROMPT):
        answer = with_citations(searched | shown | model()).invoke("When?")  # type: ignore[arg-type]
        assert {document.id for document in answer.documents} == {"open", "shut-17"}  # type: ignore[attr-defined]

    def asked(state: dict[str, list[Document]]) -> AIMessage:
        return model().invoke(f"{joined(state['docs'])}: when?")

    answer = with_citations(searched | asked).invoke("When?")  # type: ignore[arg-type]
    assert {document.id for document in answer.documents} == {"open", "shut-17"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CHAINS)
def test_metadata_names_what_the_chain_let_through(name: str) -> None:
    message = CHAINS[name](model()).invoke("When?")
    assert isinstance(message, AIMessage) and str(message.content).strip() == QUOTE
    shown = message.model_dump_json()
    assert '"open"' in shown
    for secret in ("shut-17", "vault.md", "board"):
        assert secret not in shown
    assert message.response_metadata["copyspec"]["num_passes"] < 25, "the filtered document is drafted from"


def test_no_document_is_named_where_the_prompt_holds_none() -> None:
    counted = asking(BOTH | (lambda documents: str(len(documents)))) | model()
    assert with_citations(counted).invoke("When?").citations == ()  # type: ignore[arg-type]
    language = CopySpecLLM(model=engine(), max_tokens=150, model_kwargs={"logits_processor": says(QUOTE)})
    prompt = PromptTemplate.from_template("{docs}: when?")
    filtered = RunnableParallel(docs=BOTH | allowed | joined) | prompt | language
    answers = with_citations(filtered).batch(["a"])  # type: ignore[arg-type]
    for answer in [*answers, with_citations(filtered).invoke("a")]:  # type: ignore[arg-type]
        assert [document.id for document in answer.documents] == ["open"]  # type: ignore[attr-defined]


TWINS = [Document(OPEN.page_content, id=name, metadata={"who": who}) for name, who in (("x", "board"), ("y", "all"))]


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_texts_the_one_that_was_passed_on_is_named(order: int) -> None:
    twins = Fixed(documents=TWINS[::order])
    answer = with_citations(asking(twins | allowed | joined) | model()).invoke("When?")  # type: ignore[arg-type]
    assert [document.id for document in answer.documents] == ["y"]  # type: ignore[attr-defined]
    unknown = with_citations(asking(twins | (lambda documents: joined(allowed(documents)))) | model())  # type: ignore[arg-type]
    assert unknown.invoke("When?").documents == (), "nobody knows which"


def test_a_text_inside_another_document_is_not_in_the_prompt() -> None:
    inner = Document("On Sundays the library is closed.", id="inner")
    assert in_prompt([[inner, OPEN]], f"Read: {OPEN.page_content}") == [OPEN]
    assert in_prompt([[inner, OPEN]], f"{OPEN.page_content} {inner.page_content}") == [inner, OPEN]
    assert in_prompt([[inner]], OPEN.page_content, [OPEN]) == []
    assert in_prompt([[Document("noon"), Document("")]], "afternoon, noons") == []
    assert in_prompt([TWINS], OPEN.page_content) == [] and len(in_prompt([TWINS], OPEN.page_content * 2)) == 1
    scored = [Document("text", id="1", metadata={"score": score}) for score in (0.1, 0.2)]
    assert in_prompt([scored], "the text") == scored[:1]


@pytest.mark.parametrize("seed", range(12))
def test_random_filters_hold(seed: int) -> None:
    """Documents share sentences; some are dropped; the answer quotes any of them."""
    draw = random.Random(seed)
    places = ("library", "market", "harbour", "brewery", "lighthouse", "station")
    sentences = [f"The {place} closes at {draw.randint(2, 9)} on Sundays." for place in places]
    documents = [
        Document(" ".join(draw.sample(sentences, draw.randint(1, 3))), id=f"name-{index}", metadata={"n": index})
        for index in range(6)
    ]
    allowed_numbers = set(draw.sample(range(6), draw.randint(0, 3)))
    quote = " ".join(draw.sample(sentences, 3))
    shown = draw.choice([joined, lambda chosen: json.dumps([it.page_content for it in chosen]), lambda chosen: chosen])
    filtered = (
        Fixed(documents=documents)
        | (lambda chosen: [it for it in chosen if it.metadata["n"] in allowed_numbers])
        | shown
    )
    answer = with_citations(asking(filtered) | model(quote)).invoke("When?")  # type: ignore[arg-type]
    message = (asking(filtered) | model(quote)).invoke("When?")
    assert answer.text.strip() == quote
    assert {int(document.metadata["n"]) for document in answer.documents} <= allowed_numbers  # type: ignore[attr-defined]
    visible = " ".join(documents[index].page_content for index in allowed_numbers)
    if any(sentence in visible for sentence in sentences if sentence in quote):
        assert answer.documents
    for index in set(range(6)) - allowed_numbers:
        assert f"name-{index}" not in str(message)
