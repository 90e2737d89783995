"""A LangChain chain over a folder of Markdown: it finds a passage, quotes the answer and names the source.

python -m examples.langchain_rag
"""

from __future__ import annotations

from pathlib import Path

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

from copyspec.pipelines.langchain import ChatCopySpec, with_citations
from copyspec.retrievers.langchain import BM25Retriever

CORPUS = Path(__file__).parent / "corpus"
QUESTIONS = ("How long does the library lend films?", "Where do the storks nest?", "How far can the lamp be seen?")


def load(folder: Path) -> list[Document]:
    """One document per paragraph of the files, without the headings."""
    paragraphs = [(file.name, text) for file in sorted(folder.glob("*.md")) for text in file.read_text().split("\n\n")]
    return [Document(" ".join(text.split()), metadata={"source": name}) for name, text in paragraphs if text[0] != "#"]


def main() -> None:
    retriever = BM25Retriever(load(CORPUS), k=1) | (lambda documents: documents[0].page_content)
    prompt = ChatPromptTemplate.from_template("Quote the sentence that answers: {question}\n{context}")
    llm = ChatCopySpec(model="default", max_tokens=60)  # it finds the retrieved documents by itself
    chain = {"context": retriever, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
    for question, answer in zip(QUESTIONS, with_citations(chain).batch(list(QUESTIONS)), strict=True):
        sources = {document.metadata["source"] for document in answer.documents if isinstance(document, Document)}
        print(f"{question}\n {answer.text} [{', '.join(sources)}]")


if __name__ == "__main__":
    main()
