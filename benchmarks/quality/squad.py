"""Measures answers of a LangChain RAG chain to SQuAD's questions with a real model: quality, and time against plain.

python -m benchmarks.quality.squad --model smollm2 --rows 100 --json FILE
python -m benchmarks.quality.squad --report FILE

The chain is that of docs/langchain.md: BM25 over the passages, the best two in the prompt, and `ChatCopySpec`. F1 is
SQuAD's over words (lower case, without articles and punctuation), for the best of the accepted answers; contained is
the share of outputs that contain an accepted answer, found that of prompts. Every question is answered with copying and
plainly (`drafter="none"`), and both texts are compared. Each answer is written at once, and a run resumes from its
file. Exit status 1 if float32 answers differ.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnablePassthrough

import copyspec
from copyspec.pipelines.langchain import ChatCopySpec
from copyspec.retrievers.langchain import BM25Retriever
from kit import places
from kit.reporting import conditions, ratio, read_rows, resumed, write_json

PROMPT = "Answer the question in a few words of the text.\n\n{context}\n\nQuestion: {question}"
DOCUMENTS = 2
MAX_TOKENS = 48


def words(text: str) -> list[str]:
    """Split into normalised words, as SQuAD's own script does."""
    letters = "".join(" " if char in string.punctuation else char for char in text.lower())
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def f1(answer: str, accepted: Sequence[str]) -> float:
    """Best F1 of the answer's words over the accepted answers."""
    best, answered = 0.0, words(answer)
    for text in accepted:
        expected = words(text)
        common = sum((Counter(answered) & Counter(expected)).values())
        best = max(best, 2.0 * common / (len(answered) + len(expected)) if common else 0.0)
    return best


def contains(text: str, accepted: Sequence[str]) -> bool:
    """Whether the text contains an accepted answer, word by word."""
    padded = f" {' '.join(words(text))} "
    return any(f" {' '.join(words(text))} " in padded for text in accepted)


def chain_of(engine: copyspec.Engine, retriever: Runnable[str, Any], drafter: str) -> Runnable[str, str]:
    options = {"drafter": drafter}
    llm = ChatCopySpec(model=engine.model, tokenizer=engine.tokenizer, max_tokens=MAX_TOKENS, model_kwargs=options)
    prompt = ChatPromptTemplate.from_template(PROMPT)
    chain: Runnable[str, str] = (
        {"context": retriever, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
    )
    return chain


def answer(chains: Mapping[str, Runnable[str, str]], context: Runnable[str, str], row: Mapping[str, Any]) -> Any:
    """Answer one question, and return its entry in the report."""
    result: dict[str, Any] = {"id": row["id"], "found": contains(context.invoke(row["question"]), row["answers"])}
    for name, chain in chains.items():
        start = process_time()
        text = chain.invoke(row["question"])
        result[name] = {"text": text, "cpu_seconds": process_time() - start}
    text = result["copied"]["text"]
    return {**result, "f1": f1(text, row["answers"]), "contained": contains(text, row["answers"])}


def line(report: Mapping[str, Any]) -> str:
    rows = report["rows"]
    count = len(rows)
    seconds = {name: sum(row[name]["cpu_seconds"] for row in rows) for name in ("copied", "plain")}
    equal = sum(row["copied"]["text"] == row["plain"]["text"] for row in rows)
    mean = ratio(sum(row["f1"] for row in rows), count)
    return (
        f"{report['model']}, {report['dtype']}: {count} questions, F1 {mean:.3f}, "
        f"contained {sum(row['contained'] for row in rows)}, found {sum(row['found'] for row in rows)}, "
        f"equal {equal}, plain over copied {ratio(seconds['plain'], seconds['copied']):.2f}x (processor time)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "retrieval/")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument(
        "--json", type=Path, help="results file, written after every answer; an existing one is resumed"
    )
    parser.add_argument("--report", type=Path, help="print the line of this results file without running anything")
    options = parser.parse_args()
    if options.report is not None:
        print(line(json.loads(options.report.read_text(encoding="utf-8"))))
        return 0
    passages = read_rows(options.data / "retrieval" / "passages_squad.jsonl.gz")
    questions = read_rows(options.data / "retrieval" / "queries_squad.jsonl.gz")
    random.Random(0).shuffle(questions)
    head = {"model": options.model, "dtype": options.dtype, **conditions()}
    report: dict[str, Any] = {**head, "rows": resumed(options.json, head).get("rows", [])}
    documents = [Document(row["text"], id=row["id"]) for row in passages]
    context = BM25Retriever(documents, k=DOCUMENTS) | (
        lambda retrieved: "\n\n".join(document.page_content for document in retrieved)
    )
    engine = copyspec.load(options.model, dtype=options.dtype)
    chains = {name: chain_of(engine, context, drafter) for name, drafter in (("copied", "auto"), ("plain", "none"))}
    for chain in chains.values():  # warm-up
        chain.invoke(questions[0]["question"])
    done = {row["id"] for row in report["rows"]}
    for row in questions[: options.rows]:
        if row["id"] in done:
            continue
        report["rows"].append(answer(chains, context, row))
        if options.json is not None:
            write_json(options.json, report)
    print(line(report))
    differing = [row for row in report["rows"] if row["copied"]["text"] != row["plain"]["text"]]
    return int(options.dtype == "float32" and bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
