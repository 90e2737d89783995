"""Compares speculative kNN-LM with a search for every token: wall time of the same outputs.

    python -m benchmarks.retrieval.knn --json OUT.json

The datastore holds the model's hidden states on the first passages; prompts are the beginnings of other passages. To
simulate a larger datastore, each search is extended by sleeping to `ratio` times the duration of a token without
search, whatever the number of its queries.

All methods complete the same prompts in turn, starting with an empty cache, and this is repeated (`--repeat`), so that
other load on the machine affects all of them. The run of median time is reported. The outputs of every run are compared
with those of the first plain one, token by token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median_low
from time import perf_counter, sleep
from typing import Any

import torch
from numpy.typing import ArrayLike

import copyspec
from copyspec.pipelines import KNNLM, KNNAnswer, KNNDatastore, KNNOptions
from copyspec.retrievers import ExactIndex, FaissIndex, FaissOptions, Scheduler, SpeculationStats
from kit import places
from kit.reporting import command_line, read_rows, surroundings, write_json

METHODS: dict[str, Callable[[], Scheduler] | None] = {
    "plain": None,
    "speculative": Scheduler,
    "without overlap": lambda: Scheduler(overlaps=False),
    "without OS3 (s = 3)": lambda: Scheduler(stride=3),
}


class _Delayed:
    """Makes the searches of an index take at least `seconds`."""

    seconds = 0.0

    def search(self, queries: ArrayLike, k: int) -> list[Any]:
        started = perf_counter()
        results: list[Any] = super().search(queries, k)  # type: ignore[misc]
        sleep(max(0.0, self.seconds - (perf_counter() - started)))
        return results


class DelayedExact(_Delayed, ExactIndex):
    pass


class DelayedHNSW(_Delayed, FaissIndex):
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; exit status 1 if an output differs from the plain form's."""
    options = _parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    engine = copyspec.load(options.model, dtype=options.dtype)
    if options.ignore_eos and engine.model.generation_config is not None:
        engine.model.generation_config.eos_token_id = None
    passages = list(dict.fromkeys(row["text"] for row in read_rows(options.passages)))
    texts, others = passages[: options.texts], passages[options.texts :]
    chosen = others[:: max(1, len(others) // options.prompts)][: options.prompts]
    prompts = [" ".join(text.split()[:8]) for text in chosen]
    dimension = int(engine.model.config.get_text_config().hidden_size)
    index = (
        DelayedExact(dimension, metric="l2")
        if options.kind == "exact"
        else DelayedHNSW(dimension, metric="l2", options=FaissOptions(kind="hnsw"))
    )
    datastore = KNNDatastore.build(texts, model=engine, index=index)
    knn = KNNOptions(neighbours=options.neighbours, weight=options.weight)
    step = _token_seconds(engine, prompts[0], options.tokens)
    tables = []
    for ratio in options.ratios:
        index.seconds = ratio * step
        rows = compare(partial(_answer, engine, datastore, knn, prompts, options.tokens), options.repeat)
        tables.append({"index": options.kind, "ratio": ratio, "token_seconds": step, "methods": rows})
        print(f"{options.kind}, {len(datastore)} entries, b/a = {ratio:g} (a = {1000 * step:.1f} ms)")
        for row in rows:
            print("  ".join(f"{value:.2f}" if isinstance(value, float) else f"{value!s:<20}" for value in row.values()))
    if options.json:
        command = command_line("benchmarks.retrieval.knn", arguments)
        write_json(options.json, {"command": command, **surroundings("cpu"), "tables": tables})
    return 0 if all(row["equal"] for table in tables for row in table["methods"]) else 1


def compare(answer: Callable[[str], list[KNNAnswer]], repeat: int) -> list[dict[str, object]]:
    """Return a row for each method, from `repeat` rounds in which `answer(method)` runs all of them in turn."""
    runs: dict[str, list[list[KNNAnswer]]] = {method: [] for method in METHODS}
    for _ in range(repeat):
        for method, done in runs.items():
            done.append(answer(method))
    wanted = _tokens(runs["plain"][0])
    plain = median_low(_seconds(answers) for answers in runs["plain"])
    rows: list[dict[str, object]] = []
    for method, done in runs.items():
        seconds = median_low(_seconds(answers) for answers in done)
        shown = next(answers for answers in done if _seconds(answers) == seconds)
        total = SpeculationStats()
        for output in shown:
            total += output.speculation
        rows.append(
            {
                "method": method,
                "seconds": seconds,
                "speedup": plain / seconds,
                "equal": all(_tokens(answers) == wanted for answers in done),
                "kept_per_round": total.kept_per_round,
                "hit_rate": total.hit_rate,
                "output_tokens": sum(len(output.token_ids) for output in shown),
            }
        )
    return rows


def _answer(
    engine: copyspec.Engine,
    datastore: KNNDatastore,
    options: KNNOptions,
    prompts: Sequence[str],
    tokens: int,
    method: str,
) -> list[KNNAnswer]:
    made = METHODS[method]
    speculates, scheduler = made is not None, made() if made else None
    with KNNLM(datastore, model=engine, options=options, speculates=speculates, scheduler=scheduler) as pipeline:
        return [pipeline(prompt, max_new_tokens=tokens) for prompt in prompts]


def _seconds(answers: Sequence[KNNAnswer]) -> float:
    return sum(answer.seconds for answer in answers)


def _tokens(answers: Sequence[KNNAnswer]) -> list[Sequence[int]]:
    return [answer.token_ids for answer in answers]


def _token_seconds(engine: copyspec.Engine, prompt: str, tokens: int) -> float:
    """Seconds per token of plain decoding, after a warm-up."""
    for _ in range(2):
        started = perf_counter()
        result = engine.generate(prompt, max_new_tokens=tokens, drafter="none", ignore_eos=True)
        seconds = perf_counter() - started
    return seconds / len(result.token_ids)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = places.data() / "retrieval"
    passages = folder / "passages_squad.jsonl.gz"
    parser.add_argument("--passages", default=passages, help="JSON lines with `text`, gzipped or not")
    parser.add_argument("--kind", choices=["exact", "hnsw"], default="exact")
    parser.add_argument(
        "--ratios",
        nargs="+",
        type=float,
        default=[20.0, 2.0],
        help="ratios b/a: duration of a search divided by that of a token",
    )
    parser.add_argument("--texts", type=int, default=300, help="number of passages in the datastore")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="maximum tokens of an output")
    parser.add_argument("--ignore-eos", action="store_true", help="continue every output to that length")
    parser.add_argument("--neighbours", type=int, default=8)
    parser.add_argument("--weight", type=float, default=0.25, help="weight of the neighbours' distribution")
    parser.add_argument("--model", default="default", help="default, a hub id or a folder")
    parser.add_argument("--dtype", default="float32", help="data type of the model")
    parser.add_argument("--threads", type=int, help="number of torch threads")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of all methods; the median of each is reported")
    parser.add_argument("--json", help="write the figures to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
