"""Compares two models in one LangChain chain.

python -m benchmarks.retrieval.langchain_rag --questions 100

BM25 finds a passage, the prompt contains it, and the model quotes from it. The baseline is `HuggingFacePipeline` of
langchain-huggingface, greedy, with the same weights; then only the chain's model is replaced. Both answer one question
at a time, and then all questions in batches. DIR contains retrieval/passages_squad.jsonl.gz and
retrieval/queries_squad.jsonl.gz.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from langchain_core.documents import Document
from langchain_core.language_models import BaseLLM
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import copyspec
from benchmarks.quality.run import sample
from copyspec.models.loading import BUNDLED
from copyspec.pipelines.langchain import ChatCopySpec, CopySpecLLM
from copyspec.retrievers.langchain import BM25Retriever
from kit import places
from kit.reporting import machine, read_rows

if TYPE_CHECKING:
    from langchain_core.language_models import LanguageModelLike

PROMPT = "Quote the sentence that answers: {question}\n{context}"
"""The prompt that the bundled model was trained on."""

BATCH = 8
"""Batch size of both models: copyspec's default."""

INSTALL = (
    "the baseline is HuggingFacePipeline: pip install --no-deps langchain-huggingface==1.2.3\n"
    "(--no-deps, because it asks for huggingface-hub<2 and constraints.txt pins 2.4.0, with which it runs)"
)


def pipeline_model(model: str, dtype: str, max_tokens: int) -> BaseLLM:
    """Return a greedy `HuggingFacePipeline` whose answers do not contain the prompt. Exits if it is not installed."""
    try:
        from langchain_huggingface import HuggingFacePipeline
    except ImportError as error:
        raise SystemExit(INSTALL) from error
    made = HuggingFacePipeline.from_model_id(
        model,
        task="text-generation",
        model_kwargs={"dtype": dtype},
        pipeline_kwargs={"max_new_tokens": max_tokens, "do_sample": False, "return_full_text": False},
        batch_size=BATCH,
    )
    assert isinstance(made, BaseLLM)
    return made


def copyspec_model(engine: copyspec.Engine, max_tokens: int) -> ChatCopySpec | CopySpecLLM:
    """Return the LangChain model that gives the engine the same tokens as the pipeline.

    This is `ChatCopySpec` if the tokenizer itself makes a chat of a text, as the bundled model's does. Otherwise it
    is `CopySpecLLM`, which like the pipeline takes the text as it is."""
    text = PROMPT.format(question="Who?", context="Nobody.")
    chat = engine.codec.encode_chat([{"role": "user", "content": text}]).ids
    kind = ChatCopySpec if engine.tokenizer(text)["input_ids"] == chat else CopySpecLLM
    return kind(model=engine, max_tokens=max_tokens, batch_size=BATCH)


def chain_over(llm: LanguageModelLike, retriever: BM25Retriever) -> Runnable[str, str]:
    """Build the chain, which does not depend on the model used."""
    context = retriever | (lambda documents: "\n".join(document.page_content for document in documents))
    prompt = PromptTemplate.from_template(PROMPT)
    return {"context": context, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()


def timed(answer: Callable[[], list[str]]) -> tuple[list[str], float]:
    """Return the answers and the seconds they took."""
    started = perf_counter()
    return answer(), perf_counter() - started


def compare(plain: Runnable[str, str], copied: Runnable[str, str], asked: Sequence[str]) -> dict[str, object]:
    """Measure seconds of each chain, one question at a time and in batches, and count equal answers."""
    questions = list(asked)
    for chain in (plain, copied):
        chain.invoke(questions[0])  # warm-up
    wanted, baseline = timed(lambda: [plain.invoke(question) for question in questions])
    single, one_by_one = timed(lambda: [copied.invoke(question) for question in questions])
    plain_batched, plain_together = timed(lambda: plain.batch(questions))
    batched, together = timed(lambda: copied.batch(questions, {"max_concurrency": 2 * BATCH}))
    return {
        "questions": len(questions),
        "pipeline_seconds": round(baseline, 3),
        "copyspec_seconds": round(one_by_one, 3),
        "speedup": round(baseline / one_by_one, 2),
        "equal": _equal(wanted, single),
        "pipeline_batch_seconds": round(plain_together, 3),
        "copyspec_batch_seconds": round(together, 3),
        "batch_speedup": round(plain_together / together, 2),
        "pipeline_batch_equal": _equal(wanted, plain_batched),
        "copyspec_batch_equal": _equal(wanted, batched),
        "answers": wanted[:5],
    }


def _equal(wanted: Sequence[str], got: Sequence[str]) -> int:
    return sum(one == other for one, other in zip(wanted, got, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "retrieval/")
    parser.add_argument("--model", default=str(BUNDLED), help="hub id or folder (default: the bundled model)")
    parser.add_argument(
        "--dtype", default="float32", help="data type; in half precision, near-ties may resolve differently"
    )
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--k", type=int, default=1, help="number of passages in the prompt")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    passages = read_rows(options.data / "retrieval" / "passages_squad.jsonl.gz")
    queries = sample(read_rows(options.data / "retrieval" / "queries_squad.jsonl.gz"), options.questions, 0)
    retriever = BM25Retriever([Document(" ".join(row["text"].split()), id=row["id"]) for row in passages], k=options.k)
    plain = pipeline_model(options.model, options.dtype, options.max_tokens)
    copied = copyspec_model(copyspec.load(options.model, dtype=options.dtype), options.max_tokens)
    report: dict[str, object] = {"baseline": "HuggingFacePipeline", "ours": type(copied).__name__}
    chains = chain_over(plain, retriever), chain_over(copied, retriever)
    report |= compare(*chains, [row["question"] for row in queries])
    name = "default" if options.model == str(BUNDLED) else options.model
    report |= {"passages": len(passages), "model": name, "dtype": options.dtype, "machine": machine()}
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
