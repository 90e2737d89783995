"""One chain of LangChain over two models: ``python -m benchmarks.langchain_rag --data DIR --questions 100``.

BM25 finds a passage, the prompt holds it, the model quotes. The baseline is the same model through `model.generate`,
greedy, behind the smallest chat model that LangChain accepts: HuggingFacePipeline does that and more around it.
Both answer question by question; copyspec then answers all of them as one batch. DIR holds
retrieval/passages_squad.jsonl.gz and retrieval/queries_squad.jsonl.gz.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import torch
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, SimpleChatModel
from langchain_core.messages import BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import copyspec
from benchmarks.quality import read_rows, sample
from benchmarks.transcripts import machine
from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.retrievers.langchain import BM25Retriever

PROMPT = "Quote the sentence that answers: {question}\n{context}"
"""What the bundled model was trained on."""


class PlainChat(SimpleChatModel):
    """`model.generate`, greedy, with the answer alone as its text."""

    engine: object
    max_tokens: int

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _call(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: object = None, **_: object
    ) -> str:
        engine = self.engine
        assert isinstance(engine, copyspec.Engine)
        chat = [{"role": "user", "content": str(message.content)} for message in messages]
        ids = torch.tensor([engine.codec.encode_chat(chat).ids], device=engine.model.device)
        output = engine.model.generate(  # type: ignore[operator]  # of the mixin
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=self.max_tokens, do_sample=False
        )
        return engine.codec.decode(output[0, ids.shape[1] :].tolist())


def chain_over(llm: BaseChatModel, retriever: BM25Retriever) -> Runnable[str, str]:
    """The chain, with nothing in it that knows which model it has."""
    context = retriever | (lambda documents: "\n".join(document.page_content for document in documents))
    prompt = ChatPromptTemplate.from_template(PROMPT)
    return {"context": context, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()


def timed(answer: Callable[[], list[str]]) -> tuple[list[str], float]:
    """The answers, and the seconds they took."""
    started = perf_counter()
    return answer(), perf_counter() - started


def measure(engine: copyspec.Engine, data: Path, questions: int, max_tokens: int, k: int) -> dict[str, object]:
    """Seconds of each way, and whether the answers are the same."""
    passages = read_rows(data / "retrieval" / "passages_squad.jsonl.gz")
    asked = [row["question"] for row in sample(read_rows(data / "retrieval" / "queries_squad.jsonl.gz"), questions, 0)]
    retriever = BM25Retriever([Document(" ".join(row["text"].split()), id=row["id"]) for row in passages], k=k)
    plain = chain_over(PlainChat(engine=engine, max_tokens=max_tokens), retriever)
    copied = chain_over(ChatCopySpec(model=engine, max_tokens=max_tokens), retriever)
    for chain in (plain, copied):
        chain.invoke(asked[0])  # warm
    wanted, baseline = timed(lambda: [plain.invoke(question) for question in asked])
    single, one_by_one = timed(lambda: [copied.invoke(question) for question in asked])
    batched, together = timed(lambda: copied.batch(asked, {"max_concurrency": 16}))
    return {
        "questions": len(asked),
        "passages": len(passages),
        "plain_seconds": round(baseline, 3),
        "copyspec_seconds": round(one_by_one, 3),
        "copyspec_batch_seconds": round(together, 3),
        "speedup": round(baseline / one_by_one, 2),
        "batch_speedup": round(baseline / together, 2),
        "equal": _equal(wanted, single),
        "batch_equal": _equal(wanted, batched),
        "answers": wanted[:5],
    }


def _equal(wanted: Sequence[str], got: Sequence[str]) -> int:
    return sum(one.strip() == other.strip() for one, other in zip(wanted, got, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default=None, help="a hub id or a folder; the bundled model if left out")
    parser.add_argument("--dtype", default="float32", help="in half precision near-ties may fall otherwise")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--k", type=int, default=1, help="passages in the prompt")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    engine = copyspec.load(given.model, dtype=given.dtype)
    report = measure(engine, given.data, given.questions, given.max_tokens, given.k)
    report |= {"model": given.model or "default", "dtype": given.dtype, "machine": machine()}
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
