"""Typical LangChain and LangGraph programs, over a retriever that finds one document per question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool

from copyspec import Engine
from copyspec.pipelines.langchain import ChatCopySpec, CopySpecLLM
from copyspec.pipelines.langchain.calls import Answers
from copyspec.pipelines.langchain.documents import text_of
from copyspec.text.codec import Encoded

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun

SECRET = "the vault opens at noon"
QUESTIONS = [f"question {chr(97 + index) * 3}" for index in range(16)]
PROMPT = ChatPromptTemplate.from_template("{context}: {question}")

Seen = list[tuple[str, list[str]]]


class Echo(BaseRetriever):
    """A retriever that finds one document, which repeats the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(page_content=f"all about {query}, {SECRET}", id=query)]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        await asyncio.sleep(0)
        return self._get_relevant_documents(query, run_manager=run_manager)  # type: ignore[arg-type]


def watch(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Record (prompt, ids or texts of its references) of every call from now on."""
    calls: Seen = []
    begin = Answers.__init__

    def spy(
        self: Answers,
        named_engine: tuple[Engine, str],
        prompts: list[object],
        references: list[list[object]],
        *rest: object,
    ) -> None:
        for prompt, its in zip(prompts, references, strict=True):
            text = named_engine[0].codec.decode(prompt.ids) if isinstance(prompt, Encoded) else str(prompt)
            calls.append((text, [getattr(document, "id", None) or str(text_of(document)) for document in its]))
        begin(self, named_engine, prompts, references, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Answers, "__init__", spy)
    return calls


def lcel(llm: ChatCopySpec | CopySpecLLM) -> Runnable[str, str]:
    """Build a chain that passes the number of documents to its model, but not the documents."""
    count = RunnableLambda(lambda documents: str(len(documents)))
    return {"context": Echo() | count, "question": RunnablePassthrough()} | PROMPT | llm | StrOutputParser()


def retrieval_chain(llm: ChatCopySpec) -> Runnable[str, object]:
    classic = pytest.importorskip("langchain_classic.chains.combine_documents")
    retrieval = pytest.importorskip("langchain_classic.chains.retrieval")
    stuffed = classic.create_stuff_documents_chain(llm, ChatPromptTemplate.from_template("{context} {input}"))
    return RunnableLambda(lambda question: {"input": question}) | retrieval.create_retrieval_chain(Echo(), stuffed)


def compiled_graph(llm: ChatCopySpec, *, passes_config: bool = False) -> Runnable[dict[str, object], object]:
    """Build a graph with a node that retrieves and a node that calls the model without passing it a document.

    `passes_config`: the nodes pass on their config, as LangGraph requires under asyncio on Python 3.10.
    """
    langgraph = pytest.importorskip("langgraph.graph")

    def find(state: dict[str, object], config: RunnableConfig) -> dict[str, object]:
        return {**state, "found": len(Echo().invoke(str(state["question"]), config if passes_config else None))}

    def say(state: dict[str, object], config: RunnableConfig) -> dict[str, object]:
        return {**state, "answer": llm.invoke(str(state["question"]), config if passes_config else None).content}

    builder = langgraph.StateGraph(dict)
    builder.add_node("find", find)
    builder.add_node("say", say)
    builder.add_edge(langgraph.START, "find")
    builder.add_edge("find", "say")
    builder.add_edge("say", langgraph.END)
    return builder.compile()  # type: ignore[no-any-return]


def compiled_agent(llm: ChatCopySpec) -> Runnable[dict[str, object], object]:
    """`create_agent` with a retriever tool. The model cannot call tools, so a rule makes the first call."""
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")

    def first_call(request: object) -> AIMessage | None:
        last = request.messages[-1]  # type: ignore[attr-defined]
        call = {"name": "search", "args": {"query": last.content}, "id": "1"}
        return AIMessage("", tool_calls=[call]) if isinstance(last, HumanMessage) else None

    class SearchFirst(middleware.AgentMiddleware):  # type: ignore[name-defined, misc]
        def wrap_model_call(self, request: object, handler: Callable[[object], object]) -> object:
            return first_call(request) or handler(request.override(tools=[]))  # type: ignore[attr-defined]

        async def awrap_model_call(self, request: object, handler: Callable[[object], Awaitable[object]]) -> object:
            return first_call(request) or await handler(request.override(tools=[]))  # type: ignore[attr-defined]

    search = create_retriever_tool(Echo(), "search", "finds documents")
    return agents.create_agent(llm, [search], middleware=[SearchFirst()])  # type: ignore[no-any-return]


def graph(llm: ChatCopySpec) -> Runnable[str, object]:
    return RunnableLambda(lambda question: {"question": question}) | compiled_graph(llm)


def graph_that_passes_config(llm: ChatCopySpec) -> Runnable[str, object]:
    return RunnableLambda(lambda question: {"question": question}) | compiled_graph(llm, passes_config=True)


def agent(llm: ChatCopySpec) -> Runnable[str, object]:
    return RunnableLambda(lambda question: {"messages": [HumanMessage(question)]}) | compiled_agent(llm)
