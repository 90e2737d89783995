"""Measures how often the passage that answers a question is among the first five, against BM25 of other packages.

    python -m benchmarks.retrieval.recall [--encoder FOLDER] [--reranker FOLDER] --json OUT

DIR contains `passages_squad.jsonl.gz`, `queries_squad.jsonl.gz` and the same for `nq`. Compared with rank-bm25 on plain
words and on this package's stems, and with the BM25 retriever of langchain-community if installed. All retrievers
search the same passages; each question counts once, for the passage it was written for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rank_bm25 import BM25Okapi

from copyspec.retrievers import (
    BM25Retriever,
    CrossEncoderScorer,
    DenseRetriever,
    HuggingFaceEmbedder,
    HybridRetriever,
    RerankingRetriever,
    Retriever,
    Stems,
    words,
)
from kit import places
from kit.reporting import machine, read_rows, write_json

DEPTH = 100  # lower ranks count as 0 in the mean reciprocal rank
Ranking = Callable[[str], Sequence[int]]


def figures(rank: Ranking, questions: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Recall at one, five and twenty, mean reciprocal rank, and median milliseconds of a search."""
    places, times = [], []
    for question, right in questions:
        began = time.perf_counter()
        ranked = list(rank(question))
        times.append(time.perf_counter() - began)
        places.append(ranked.index(right) + 1 if right in ranked else 0)
    ranks = np.array(places)
    shares = {f"recall@{k}": float(np.mean((ranks > 0) & (ranks <= k))) for k in (1, 5, 20)}
    reciprocal = np.divide(1.0, ranks, out=np.zeros(len(ranks)), where=ranks > 0)
    return {**shares, "mrr": float(reciprocal.mean()), "ms": float(np.median(times) * 1e3)}


def peers(texts: list[str]) -> dict[str, Ranking]:
    """Return rankings by rank-bm25 and langchain's retriever, with and without this package's stems."""
    made: dict[str, Ranking] = {}
    stems = Stems()
    for name, split, ask in (("rank-bm25", words, words), ("rank-bm25, stems", stems, stems.query)):
        base = BM25Okapi([split(text) for text in texts])

        def rank(question: str, base: BM25Okapi = base, ask: Callable[[str], list[str]] = ask) -> Sequence[int]:
            scores = base.get_scores(ask(question))
            ranked: list[int] = np.argsort(-scores, kind="stable")[:DEPTH].tolist()
            return ranked

        made[name] = rank
    try:
        from langchain_community.retrievers import BM25Retriever as Theirs
    except ImportError:
        print("langchain-community is not installed: left out")
        return made
    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("langchain", {}),
        ("langchain, stems", {"preprocess_func": stems}),
    )
    for name, settings in options:
        theirs = Theirs.from_texts(texts, [{"number": number} for number in range(len(texts))], k=DEPTH, **settings)
        made[name] = lambda question, theirs=theirs: [  # type: ignore[misc]
            document.metadata["number"] for document in theirs.invoke(question)
        ]
    return made


def ours(texts: list[str], encoder: str | None, reranker: str | None) -> dict[str, Ranking]:
    """Return rankings by the retrievers of this package."""
    made: dict[str, Retriever] = {
        "copyspec, words": BM25Retriever(texts, idf="lucene"),
        "copyspec, stems": BM25Retriever(texts, split=Stems(), idf="lucene"),
    }
    if encoder:
        made["copyspec, dense"] = DenseRetriever(texts, HuggingFaceEmbedder(encoder))
        made["copyspec, hybrid"] = HybridRetriever([made["copyspec, stems"], made["copyspec, dense"]])
    if reranker:
        base = made.get("copyspec, hybrid", made["copyspec, stems"])
        made["copyspec, reranked"] = RerankingRetriever(base, CrossEncoderScorer(reranker))
    return {
        name: lambda question, retriever=retriever: [hit.id for hit in retriever.search(question, DEPTH)]  # type: ignore[misc]
        for name, retriever in made.items()
    }


def main() -> None:
    """Print a table for each set, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_data(parser, "retrieval/")
    parser.add_argument("--sets", nargs="+", default=["squad", "nq"])
    parser.add_argument("--questions", type=int, help="use only the first questions of each set (default: all)")
    parser.add_argument("--encoder", help="folder or hub id of an encoder, to include dense and hybrid retrieval")
    parser.add_argument("--reranker", help="folder or hub id of a cross-encoder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "encoder": options.encoder, "sets": {}}
    for name in options.sets:
        passages = read_rows(options.data / f"passages_{name}.jsonl.gz")
        numbers = {row["id"]: number for number, row in enumerate(passages)}
        queries = read_rows(options.data / f"queries_{name}.jsonl.gz")[: options.questions]
        asked = [(row["question"], numbers[row["passage_id"]]) for row in queries]
        texts = [str(row["text"]) for row in passages]
        rows = {
            kind: figures(rank, asked)
            for kind, rank in {**peers(texts), **ours(texts, options.encoder, options.reranker)}.items()
        }
        report["sets"][name] = {"passages": len(texts), "questions": len(asked), "rows": rows}
        print(f"\n{name}: {len(texts)} passages, {len(asked)} questions")
        for kind, row in rows.items():
            print(f"{kind:<22}" + "".join(f"{key} {value:7.3f}  " for key, value in row.items()))
    if options.json:
        write_json(options.json, report)


if __name__ == "__main__":
    main()
