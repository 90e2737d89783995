"""Compares BM25 with rank-bm25 and FAISS with NumPy, and measures how often questions find their passage.

    python -m benchmarks.retrieval.retrievers PASSAGES.jsonl.gz... --queries QUERIES.jsonl.gz [--encoder FOLDER]

BM25: the largest difference between any two scores, and milliseconds per query of both, on the passages and on
synthetic texts. Dense: passages and queries are encoded with `--encoder`, by default as sums of random vectors of their
words, which approximates the similarity of word counts. recall@k is the share of the k nearest passages that HNSW and
IVF find; hits are the share of queries whose own passage is among the k.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from copyspec.cli.common import quiet_libraries
from copyspec.retrievers import (
    BM25Retriever,
    ExactIndex,
    FaissIndex,
    FaissOptions,
    HuggingFaceEmbedder,
    VectorIndex,
    words,
)
from kit.reporting import command_line, machine, quantile, read_rows, write_json

REFERENCE_QUERIES = 5  # rank-bm25 takes most of a second for each, at 100,000 texts
VOCABULARY = 50_000  # words of synthetic texts; the n-th has a frequency proportional to 1/n, as in natural language
QUERY_WORDS = 10

INDEXES: dict[str, FaissOptions] = {
    "flat": FaissOptions(kind="flat"),
    "hnsw, ef 16": FaissOptions(kind="hnsw", ef_search=16),
    "hnsw, ef 64": FaissOptions(kind="hnsw", ef_search=64),
    "hnsw, ef 256": FaissOptions(kind="hnsw", ef_search=256),
    "ivf, 1 probe": FaissOptions(kind="ivf", probes=1),
    "ivf, 4 probes": FaissOptions(kind="ivf", probes=4),
    "ivf, 16 probes": FaissOptions(kind="ivf", probes=16),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A query and the index of the passage that answers it; -1 if that was not read."""

    text: str
    passage: int


@dataclass(frozen=True, slots=True)
class Sparse:
    """Figures of BM25 on one set of texts."""

    texts: int
    build_seconds: float
    max_difference: float
    ms_p50: float  # search for the best ten
    ms_p99: float
    rank_bm25_ms: float


@dataclass(frozen=True, slots=True)
class Dense:
    """Figures of one vector index."""

    index: str
    build_seconds: float
    recall: float
    hits: float
    ms: float  # per query, one at a time
    ms_batch: float  # per query, all in one batch


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures and return 0."""
    options = _parser().parse_args(arguments)
    passages, questions = _read(options.passages, options.queries, options.num_queries)
    real = passages[: options.max_texts]
    sparse = [_sparse("real", real, [question.text for question in questions])]
    if options.synthetic:
        texts, queries = _synthetic(options.synthetic)
        sparse.append(_sparse("synthetic", texts, queries))
    dense = _dense(real, questions, options.encoder, options.k)
    if options.json:
        command = command_line("benchmarks.retrieval.retrievers", arguments)
        figures = {"bm25": [asdict(one) for one in sparse], "dense": [asdict(one) for one in dense]}
        write_json(options.json, {"machine": machine(), "command": command, **figures})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.retrievers",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("passages", nargs="+", help=".jsonl.gz files with id and text")
    parser.add_argument("--queries", required=True, help=".jsonl.gz file with question and passage_id")
    parser.add_argument("--num-queries", type=int, default=200, help="number of queries, drawn with a fixed seed")
    parser.add_argument("--max-texts", type=int, default=10_000, help="maximum number of passages")
    parser.add_argument("--synthetic", type=int, default=100_000, help="numbers of synthetic texts for BM25; 0: none")
    parser.add_argument("--encoder", help="hub id or folder (default: sums of word vectors)")
    parser.add_argument("--k", type=int, default=20, help="number of neighbours")
    parser.add_argument("--json", help="write the figures to this file")
    return parser


def _read(passage_files: Sequence[str], query_file: str, count: int) -> tuple[list[str], list[Question]]:
    texts: list[str] = []
    numbers: dict[str, int] = {}
    for file in passage_files:
        for row in read_rows(file):
            numbers[row["id"]] = len(texts)
            texts.append(row["text"])
    rows = read_rows(query_file)
    chosen = random.Random(0).sample(rows, min(count, len(rows)))
    return texts, [Question(row["question"], numbers.get(row["passage_id"], -1)) for row in chosen]


def _synthetic(count: int) -> tuple[list[str], list[str]]:
    """Make texts of 20 to 80 words and queries of ten."""
    rng = random.Random(0)
    vocabulary = [f"w{number}" for number in range(VOCABULARY)]
    sizes = [rng.randint(20, 80) for _ in range(count)] + [QUERY_WORDS] * 100
    weights = [1 / (number + 1) for number in range(VOCABULARY)]
    drawn = iter(rng.choices(vocabulary, weights, k=sum(sizes)))
    texts = [" ".join([next(drawn) for _ in range(size)]) for size in sizes]
    return texts[:count], texts[count:]


def _sparse(name: str, texts: Sequence[str], queries: Sequence[str]) -> Sparse:
    started = time.perf_counter()
    retriever = BM25Retriever(texts)
    built = time.perf_counter() - started
    reference = BM25Okapi([words(text) for text in texts])
    differences, slow = [], []
    for query in queries[:REFERENCE_QUERIES]:
        started = time.perf_counter()
        expected = reference.get_scores(words(query))
        slow.append((time.perf_counter() - started) * 1e3)
        differences.append(float(np.abs(retriever.scores(query) - expected).max()))
    fast = [_milliseconds(lambda query=query: retriever.search(query, 10)) for query in queries]  # type: ignore[misc]
    figures = Sparse(
        len(texts), built, max(differences), quantile(fast, 0.5), quantile(fast, 0.99), statistics.median(slow)
    )
    print(
        f"BM25, {len(texts):,} {name} texts: built in {built:.1f} s, largest difference {figures.max_difference:.1e}, "
        f"search p50 {figures.ms_p50:.2f} ms, p99 {figures.ms_p99:.2f} ms, rank-bm25 {figures.rank_bm25_ms:.0f} ms"
    )
    return figures


class WordVectors:
    """Vectors of texts without a model: the sum of a random vector for each word, weighted by idf."""

    DIMENSION = 256

    def __init__(self, texts: Sequence[str]) -> None:
        frequencies = Counter(word for text in texts for word in set(words(text)))
        rng = np.random.default_rng(0)
        self._vectors = {
            word: rng.standard_normal(self.DIMENSION).astype(np.float32) * np.float32(math.log(1 + len(texts) / count))
            for word, count in frequencies.items()
        }

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        sums = np.zeros((len(texts), self.DIMENSION), np.float32)
        for row, text in zip(sums, texts, strict=True):
            for word, count in Counter(words(text)).items():
                if word in self._vectors:
                    row += self._vectors[word] * np.float32(1 + math.log(count))
        lengths = np.sqrt(np.square(sums).sum(axis=1, keepdims=True))
        np.divide(sums, lengths, out=sums, where=lengths > 0)
        return sums


def _dense(texts: Sequence[str], questions: Sequence[Question], encoder: str | None, k: int) -> list[Dense]:
    quiet_libraries()
    embed = HuggingFaceEmbedder(encoder) if encoder else WordVectors(texts)
    vectors, queries = embed(texts), embed([question.text for question in questions])
    exact = ExactIndex(vectors.shape[1])
    exact.add(vectors)
    trial = Trial(vectors, queries, questions, k, [ids for ids, _ in exact.search(queries, k)])
    results = [_index("exact (NumPy)", ExactIndex(vectors.shape[1]), trial)]
    for name, options in INDEXES.items():
        results.append(_index(name, FaissIndex(vectors.shape[1], options=options), trial))
    return results


@dataclass(frozen=True, slots=True)
class Trial:
    """Data shared by the measurements of all indexes."""

    vectors: NDArray[np.float32]
    queries: NDArray[np.float32]
    questions: Sequence[Question]
    k: int
    truth: list[NDArray[np.int64]]  # the nearest vectors of each query


def _index(name: str, index: VectorIndex, trial: Trial) -> Dense:
    k, queries = trial.k, trial.queries
    started = time.perf_counter()
    index.add(trial.vectors)
    built = time.perf_counter() - started
    nearest = [ids for ids, _ in index.search(queries, k)]
    shared = [len(np.intersect1d(one, other)) / k for one, other in zip(nearest, trial.truth, strict=True)]
    hits = [question.passage in ids for question, ids in zip(trial.questions, nearest, strict=True)]
    single = statistics.median(_milliseconds(lambda row=row: index.search(row[None], k)) for row in queries)  # type: ignore[misc]
    batch = _milliseconds(lambda: index.search(queries, k)) / len(queries)
    figures = Dense(name, built, statistics.mean(shared), statistics.mean(hits), single, batch)
    print(
        f"{name:16} built in {built:6.2f} s, recall@{k} {figures.recall:.4f}, passage among {k}: {figures.hits:.3f}, "
        f"{single:.3f} ms a query, {batch:.3f} ms in a batch of {len(queries)}"
    )
    return figures


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    sys.exit(main())
