"""Indexes a folder of texts, answers questions, and shows the file and characters of each quoted part.

python -m examples.retrieve_and_answer
"""

from __future__ import annotations

from pathlib import Path

from copyspec.pipelines import IterativeRAG
from copyspec.retrievers import BM25Retriever, read_documents, split_passages

QUESTIONS = ("When was the lighthouse on the eastern pier built?", "When does the harbour office open?")


def main() -> None:
    documents = read_documents([Path(__file__).parent / "corpus"])
    passages = [passage for document in documents for passage in split_passages(document, max_chars=300)]
    retriever = BM25Retriever([passage.text for passage in passages])
    # The bundled model quotes; a larger one can follow other instructions.
    instruction = "Quote the sentence that answers: {prompt}\n{document}"
    with IterativeRAG(retriever, model="default", instruction=instruction) as pipeline:
        for question in QUESTIONS:
            answer = pipeline(question, max_new_tokens=48)
            print(f"{question}\n{answer.text.strip()}")
            for citation in answer.citations:
                passage = passages[citation.document]
                start, end = passage.start + citation.document_start, passage.start + citation.document_end
                print(f"  {Path(passage.document).name}, characters {start} to {end}")


if __name__ == "__main__":
    main()
