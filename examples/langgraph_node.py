"""A LangGraph graph with a node that retrieves and one that answers; the answer is streamed.

python -m examples.langgraph_node
"""

from __future__ import annotations

from typing import TypedDict

from langchain_core.documents import Document
from langgraph.graph import StateGraph

from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.retrievers.langchain import BM25Retriever
from examples.langchain_rag import CORPUS, load


class State(TypedDict, total=False):
    question: str
    found: list[Document]
    answer: str


def main() -> None:
    retriever, llm = BM25Retriever(load(CORPUS), k=1), ChatCopySpec(model="default", max_tokens=60)

    def answer(state: State) -> State:
        prompt = f"Quote the sentence that answers: {state['question']}\n{state['found'][0].page_content}"
        return {"answer": llm.invoke(prompt).text}

    builder = StateGraph(State)
    builder.add_node("retrieve", lambda state: {"found": retriever.invoke(state["question"])})
    builder.add_node("answer", answer)
    builder.set_entry_point("retrieve").add_edge("retrieve", "answer")
    for message, _ in builder.compile().stream({"question": "Where do the storks nest?"}, stream_mode="messages"):
        print(getattr(message, "content", ""), end="|", flush=True)


if __name__ == "__main__":
    main()
