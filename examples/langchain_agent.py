"""An agent with a retriever tool, whose documents the model copies from. The bundled model cannot call tools, so a rule
makes the first call; a model trained for tools does not need that.

python -m examples.langchain_agent
"""

from __future__ import annotations

from collections.abc import Callable

from langchain.agents import create_agent
from langchain.agents.middleware import ModelRequest, ModelResponse, wrap_model_call
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import create_retriever_tool

from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.retrievers.langchain import BM25Retriever
from examples.langchain_rag import CORPUS, load


@wrap_model_call
def search_first(request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]) -> ModelResponse | AIMessage:
    question, *rest = request.messages
    if not rest:
        return AIMessage("", tool_calls=[{"name": "search", "args": {"query": question.text}, "id": "1"}])
    asked = HumanMessage(f"Quote the sentence that answers: {question.text}")
    return handler(request.override(messages=[asked, *rest], tools=[]))


def main() -> None:
    retriever = BM25Retriever(load(CORPUS), k=1)
    search = create_retriever_tool(retriever, "search", "Finds a passage.", response_format="content_and_artifact")
    agent = create_agent(ChatCopySpec(model="default", max_tokens=60), [search], middleware=[search_first])
    for message in agent.invoke({"messages": [HumanMessage("How long does the library lend films?")]})["messages"]:
        print(f"{message.type}: {message.text.strip() or message.tool_calls[0]['args']}")


if __name__ == "__main__":
    main()
