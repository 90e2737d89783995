"""Compares speculative retrieval with waiting for every retrieval: wall time of the same outputs.

    python -m benchmarks.retrieval --json OUT.json

The indexes are real, on real passages: exact dense (NumPy), HNSW (FAISS) and BM25; dense vectors are sums of random
vectors of a text's words. Each query is searched for once and answered from this record later, after sleeping, so that
searches overlap with the model as if they had a core of their own. They sleep until the ratio b/a is reached, as with a
larger or remote index: `b` is the time of a call, `a` the mean time of a stride in the plain form, and `--fixed` the
share of a call that does not grow with its queries. The default ratios are those of RaLMSpec's experiments (Zhang et
al. 2024), taken from their logs. With `--windows 1000000 --recorded`, a large index is measured at its own ratio: they
sleep as long as the search took in CPU time. The report states for each table whether its ratio is one of the paper's,
and the speed-up if all searches but the first of each question took no time: at b/a = 0.12 that is 1.1x, so anything
beyond it must come from copying.

All methods answer the same questions in turn, with caches that start empty and last for all questions; `--repeat`
repeats this, and each method's median run counts, of an even number the faster of the two in the middle. Outputs are
compared with those of the plain form, token by token. Columns: seconds, speed-up over the plain form, E(s), share of
right guesses, discarded tokens, and seconds of search hidden behind other work.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from time import perf_counter, process_time
from typing import Literal, cast

import torch

import copyspec
from benchmarks.retrieval.bases import DIMENSION, Delayed, windows, word_vectors
from copyspec.pipelines import IterativeRAG, RAGAnswer, Speculation
from copyspec.retrievers import (
    BM25Retriever,
    DenseRetriever,
    ExactIndex,
    FaissIndex,
    FaissOptions,
    FaissRetriever,
    Retriever,
)
from kit import places
from kit.reporting import command_line, read_rows, surroundings, write_json

RATIOS = {"exact": (19.0, 41.0), "bm25": (0.7, 1.45), "hnsw": (0.12, 0.25)}
"""b/a in RaLMSpec's experiments, taken from their logs."""

PUBLISHED = {"exact": 2.4, "bm25": 1.8, "hnsw": 1.4}
"""The paper's largest speed-ups, with prefetch, OS3 and asynchronous verification."""

FIXED = {"exact": 1.0, "bm25": 0.5, "hnsw": 0.5}
"""Fraction of a call's time that does not grow with its queries.

An exact search reads all vectors once for a whole batch."""

INSTRUCTION = "Quote the sentence that answers: {prompt}\n{document}"
"""The prompt that the bundled model was trained on."""

ON = Speculation()
Drafter = Literal["auto", "none"]
METHODS: dict[str, tuple[Speculation | None, Drafter]] = {
    "plain": (None, "none"),
    "plain + copying": (None, "auto"),
    "speculative": (replace(ON, sources=0), "none"),
    "without prefetch": (replace(ON, sources=0, prefetch=1), "none"),
    "without OS3 (s = 3)": (replace(ON, sources=0, stride=3), "none"),
    "without overlap": (replace(ON, sources=0, overlap=False), "none"),
    "without reuse": (replace(ON, sources=0, reuse=False), "none"),
    "speculative + copying": (ON, "auto"),
    "the same, no cached sources": (replace(ON, sources=0), "auto"),
}


@dataclass(slots=True)
class Measured:
    """Figures of one method at one ratio."""

    method: str
    seconds: float
    speedup: float
    equal: bool
    model_calls: int
    rounds: int
    guesses: int
    search_calls: int
    search_seconds: float
    kept_per_round: float
    hit_rate: float
    wasted_tokens: int
    hidden_seconds: float
    waited_seconds: float  # waiting for searches, in the measured questions
    output_tokens: int
    questions: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit status 1 if an output differs from the plain form's."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        texts = _passages(options)
        questions = [row["question"] for row in read_rows(options.queries, "question")]
    except ValueError as error:
        parser.error(str(error))
    if options.threads:
        torch.set_num_threads(options.threads)
    engine = copyspec.load(options.model, dtype=options.dtype)
    chosen = questions[:: max(1, len(questions) // (options.questions + 1))][: options.questions + 1]
    tables, equal = [], True
    for kind in options.kinds:
        base = Delayed(_index(kind, texts, options))
        fixed = FIXED[kind] if options.fixed is None else options.fixed
        for wanted in [None] if options.recorded else options.ratios or RATIOS[kind]:
            if wanted is None:
                ratio, step = _own_ratio(engine, base, chosen, options)
            else:
                ratio, step = wanted, _calibrate(engine, base, chosen, options, wanted)
            base.fixed, base.per_query = ratio * step * fixed, ratio * step * (1 - fixed)
            figures = _compare(engine, base, chosen, options)
            head = _head(kind, ratio, step, fixed, figures[0])
            if isinstance(base.base, FaissRetriever):
                hnsw = cast(FaissIndex, base.base.index).options
                head |= {"options": asdict(hnsw), "recall": _recall(base.base, base.queries)}
            print(_table(head, figures), flush=True)
            tables.append({**head, "methods": [asdict(figure) for figure in figures]})
            equal = equal and all(figure.equal for figure in figures)
    if options.json:
        command = command_line("benchmarks.retrieval", arguments)
        report = {"command": command, **surroundings("cpu"), "passages": len(texts), "tables": tables}
        write_json(options.json, report)
    return 0 if equal else 1


def _passages(options: argparse.Namespace) -> list[str]:
    if not options.windows:
        return list(dict.fromkeys(row["text"] for path in options.passages for row in read_rows(path, "text")))
    texts = []
    for path in options.texts:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts.append(file.read())
    return windows(texts, options.windows)


def _index(kind: str, texts: list[str], options: argparse.Namespace) -> Retriever:
    """Make an index of this kind, or load the HNSW index that an earlier run has built of these texts."""
    encode = partial(word_vectors, dimension=options.dimension)
    if kind == "exact":
        return DenseRetriever(texts, encode)
    if kind == "bm25":
        return BM25Retriever(texts)
    hnsw = FaissOptions("hnsw", neighbours=options.links, ef_construction=options.building, ef_search=options.ef)
    if options.index and Path(options.index).is_dir():
        kept = FaissRetriever.load(options.index, encode)
        if list(kept.texts) == texts and cast(FaissIndex, kept.index).options == hnsw:
            return kept
    made = FaissRetriever(texts, encode, options=hnsw)
    if options.index:
        made.save(options.index)
    return made


def _recall(base: FaissRetriever, queries: Sequence[str]) -> dict[str, float]:
    """Share of the best 1 and 20 texts of an exact search that the index finds, averaged over the distinct queries."""
    exact = ExactIndex(base.index.dimension)
    exact.add(base.index.vectors(range(len(base))))
    distinct = list(dict.fromkeys(queries))
    truths = exact.search([base.query_vector(query) for query in distinct], ON.prefetch)
    results = base.search_batch(distinct, ON.prefetch)
    pairs = [([hit.id for hit in hits], ids.tolist()) for hits, (ids, _) in zip(results, truths, strict=True)]
    return {
        f"of {k}": mean(len({*own[:k]} & {*best[:k]}) / len(best[:k]) for own, best in pairs) for k in (1, ON.prefetch)
    }


def _stride(
    engine: copyspec.Engine, base: Delayed, questions: Sequence[str], options: argparse.Namespace
) -> tuple[float, float]:
    """Seconds of a stride of the plain form without its retrieval, and the share of this time that the CPU worked.

    Means over all questions, since the first stride of each also reads its prompt."""
    started, cpu = perf_counter(), process_time()
    answers = _answer(engine, base, "plain", questions, options)[1:]
    share = (process_time() - cpu) / (perf_counter() - started)
    return (sum(answer.seconds for answer in answers) - base.searching) / base.calls, share


def _own_ratio(
    engine: copyspec.Engine, base: Delayed, questions: Sequence[str], options: argparse.Namespace
) -> tuple[float, float]:
    """b/a of the index as it is, and the seconds of a stride.

    By CPU time, since other load on the machine makes the many short steps of a stride wait longer than one search."""
    base.fixed = base.per_query = 0.0
    _stride(engine, base, questions, options)  # records what the plain form asks
    step, share = _stride(engine, base, questions, options)
    return mean(base.cpu_seconds) / (step * share), step


def _calibrate(
    engine: copyspec.Engine, base: Delayed, questions: Sequence[str], options: argparse.Namespace, ratio: float
) -> float:
    """Seconds of a stride between searches that take `ratio` times as long: median of three runs."""
    base.fixed = base.per_query = 0.0
    step, _ = _stride(engine, base, questions, options)
    base.fixed = ratio * step  # a processor that was idle during a search is slower after it
    return median(_stride(engine, base, questions, options)[0] for _ in range(3))


def _compare(
    engine: copyspec.Engine, base: Delayed, questions: Sequence[str], options: argparse.Namespace
) -> list[Measured]:
    runs: dict[str, list[Measured]] = {method: [] for method in options.methods or METHODS}
    plain: list[RAGAnswer] = []
    # Methods alternate, so that other load on the machine affects all of them.
    for method in list(runs) * options.repeat:
        # the first question is a warm-up of model and cache
        answers = _answer(engine, base, method, questions, options)[1:]
        plain = plain or answers
        runs[method].append(_measured(method, answers, plain, base))
    figures: list[Measured] = []
    for measured in runs.values():
        middle = sorted(measured, key=lambda figure: figure.seconds)[(len(measured) - 1) // 2]
        figures.append(replace(middle, equal=all(figure.equal for figure in measured)))
        figures[-1].speedup = figures[0].seconds / middle.seconds
    return figures


def _answer(
    engine: copyspec.Engine, base: Delayed, method: str, questions: Sequence[str], options: argparse.Namespace
) -> list[RAGAnswer]:
    speculation, drafter = METHODS[method]
    answers = []
    with IterativeRAG(base, model=engine, speculation=speculation, instruction=options.instruction) as pipeline:
        for question in questions:
            answers.append(
                pipeline(
                    question,
                    max_new_tokens=options.tokens,
                    drafter=drafter,
                    ignore_eos=options.ignore_eos,
                    temperature=options.temperature,
                    seed=0,
                )
            )
            if len(answers) == 1 and len(questions) > 1:
                base.reset()
    return answers


def _measured(method: str, answers: Sequence[RAGAnswer], plain: Sequence[RAGAnswer], base: Delayed) -> Measured:
    total = answers[0].speculation
    for answer in answers[1:]:
        total += answer.speculation
    pairs = zip(answers, plain, strict=True)
    return Measured(
        method=method,
        seconds=sum(answer.seconds for answer in answers),
        speedup=1.0,
        equal=all(answer.result.token_ids == other.result.token_ids for answer, other in pairs),
        model_calls=sum(answer.result.stats.num_passes for answer in answers),
        rounds=total.rounds,
        guesses=total.guesses,
        search_calls=base.calls,
        search_seconds=base.searching,
        kept_per_round=total.kept_per_round,
        hit_rate=total.hit_rate,
        wasted_tokens=total.wasted,
        hidden_seconds=total.hidden_seconds,
        waited_seconds=total.waited_seconds if total.searches else base.searching,
        questions=len(answers),
        output_tokens=sum(len(answer.result.token_ids) for answer in answers),
    )


def _head(kind: str, ratio: float, step: float, fixed: float, plain: Measured) -> dict[str, object]:
    """Return the fields that describe a table.

    `all_hidden`: the speed-up if all searches but each question's first took no time, and the model as long as
    before.
    A higher one must come from fewer or cheaper calls of the model."""
    search = plain.search_seconds / plain.search_calls
    hidden = plain.seconds / max(plain.seconds - max(plain.waited_seconds - plain.questions * search, 0.0), 1e-9)
    return {
        "index": kind,
        "ratio": ratio,
        "measured_ratio": search / step,
        "ratio_is_published": ratio in RATIOS[kind],
        "published_ratios": RATIOS[kind],
        "published_speedup": PUBLISHED[kind],
        "step_seconds": step,
        "fixed_share": fixed,
        "all_hidden": hidden,
    }


def _table(head: dict[str, object], figures: Sequence[Measured]) -> str:
    of_paper = "of" if head["ratio_is_published"] else "not of"
    lines = [
        f"{head['index']}, b/a = {head['ratio']:g}, found {head['measured_ratio']:.2f} ({of_paper} the paper's; a = "
        f"{1000 * float(str(head['step_seconds'])):.1f} ms), {figures[0].output_tokens} tokens; "
        f"published: {head['published_speedup']}x, with all searches hidden: {head['all_hidden']:.2f}x",
        f"{'method':<30}{'s':>8}{'x':>7}{'E(s)':>7}{'right':>7}{'back':>6}{'hidden':>8}{'calls':>7}  equal",
    ]
    for figure in figures:
        lines.append(
            f"{figure.method:<30}{figure.seconds:>8.2f}{figure.speedup:>7.2f}{figure.kept_per_round:>7.2f}"
            f"{figure.hit_rate:>7.0%}{figure.wasted_tokens:>6}{figure.hidden_seconds:>8.2f}{figure.model_calls:>7}"
            f"  {'yes' if figure.equal else 'NO'}"
        )
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = places.data() / "retrieval"
    passages = folder / "passages_squad.jsonl.gz"
    parser.add_argument("--passages", nargs="+", default=[passages], help="JSON lines with `text`, gzipped or not")
    texts = sorted((places.data() / "text").glob("*.txt.gz"))
    parser.add_argument("--windows", type=int, help="passages: so many windows of 100 words of --texts")
    parser.add_argument("--texts", nargs="+", default=texts, help="gzipped texts to cut windows from")
    parser.add_argument("--dimension", type=int, default=DIMENSION, help="dimension of the dense vectors")
    hnsw = FaissOptions()
    parser.add_argument("--links", type=int, default=hnsw.neighbours, help="HNSW: links per vector (M)")
    parser.add_argument("--building", type=int, default=hnsw.ef_construction, help="HNSW: efConstruction")
    parser.add_argument("--ef", type=int, default=hnsw.ef_search, help="HNSW: efSearch")
    parser.add_argument("--index", help="folder that keeps the HNSW index for later runs")
    parser.add_argument("--queries", default=folder / "queries_squad.jsonl.gz", help="JSON lines with `question`")
    parser.add_argument("--kinds", nargs="+", choices=list(RATIOS), default=list(RATIOS))
    parser.add_argument(
        "--ratios", nargs="+", type=float, help="ratios b/a (default: the published ones of each index)"
    )
    own = "b/a as it is, by CPU time: searches sleep as long as they took in a first run"
    parser.add_argument("--recorded", action="store_true", help=own)
    parser.add_argument("--fixed", type=float, help="fraction of a call's time that does not grow with its queries")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="methods; the first one is the baseline")
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64, help="maximum tokens of an output")
    parser.add_argument("--ignore-eos", action="store_true", help="continue every output to that length")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--instruction", default=INSTRUCTION, help="prompt template with {document} and {prompt}")
    parser.add_argument("--model", default="default", help="default, a hub id or a folder")
    parser.add_argument("--dtype", default="float32", help="data type of the model")
    parser.add_argument("--threads", type=int, help="number of torch threads")
    parser.add_argument("--repeat", type=int, default=1, help="number of rounds; the median run of each method counts")
    parser.add_argument("--json", help="write the figures to this file")
    return parser
