"""Compares an encoder-decoder corrector decoded plainly, by SAD's rule and by copyspec: target calls for equal outputs.

    python -m benchmarks.speed.seq2seq --model DIR --rows 200 --json OUT
    python -m benchmarks.speed.seq2seq --model DIR --data build/data --rows 200 --dtype bfloat16

The texts are the sentences with mistakes of ``benchmarks/data``, or with ``--data`` a seeded sample of the sources of
JFLEG dev. ``sad`` copies the whole rest of the source, and resumes after a difference where the last one to three
tokens occur exactly once in it (arXiv 2106.04970). ``copyspec-all`` may, like SAD, put the whole source into one tree,
regardless of costs. Outputs of all methods are compared token by token, as are those of batches of eight with those of
single rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.data import lines
from benchmarks.quality.run import sample
from benchmarks.replay.methods import ShallowAggressive
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.drafters import create
from copyspec.models.pretrained import Pretrained
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from kit.reporting import read_rows

if TYPE_CHECKING:
    from copyspec.drafters.base import Drafter

INSTRUCTION = "Correct the grammar: "
METHODS = ("plain", "sad", "copyspec", "copyspec-all")
WHOLE = 1024
"""Draft nodes: enough for any of these sources as a whole."""
BATCH = 8
ROOM = 24
"""Maximum number of new tokens beyond the length of the source."""


@dataclass(frozen=True)
class Case:
    """The encoder's input, and the same text in the tokens of an output."""

    prompt: list[int]
    source: list[int]


@dataclass
class Run:
    """Result of one method on all cases."""

    outputs: list[list[int]]
    stats: list[Stats]
    seconds: float


class Bench:
    """Runs the methods on one model."""

    def __init__(self, folder: Path, dtype: torch.dtype, *, instruction: str = INSTRUCTION) -> None:
        from transformers import AutoModelForSeq2SeqLM

        pretrained = Pretrained(str(folder))
        # Any: a tokenizer's ids are typed more widely than a list of integers
        self.tokenizer: Any = pretrained.tokenizer()
        self.model: Any = pretrained.model(AutoModelForSeq2SeqLM, pretrained.config(), dtype=dtype)
        self.target = wrap(self.model)
        self.eos = int(self.tokenizer.eos_token_id)
        self.instruction = instruction

    def case(self, text: str) -> Case:
        return Case(self.tokenizer(self.instruction + text)["input_ids"], self.tokenizer(text)["input_ids"][:-1])

    def run(self, method: str, cases: Sequence[Case], *, batch_size: int = 1) -> Run:
        """Run one method. Raises ValueError if its name is unknown."""
        if method not in METHODS:
            raise ValueError(f"no method {method!r}: one of {', '.join(METHODS)}")
        nodes = {"plain": 0, "copyspec": None}.get(method, WHOLE)
        # SAD as published ignores the cost of a call, and so does its counterpart
        settings = DecodeSettings(DraftOptions(nodes, adaptive=method == "copyspec"), batch_size)
        requests = [self._request(method, case) for case in cases]
        outputs: list[list[int]] = [[] for _ in cases]
        stats = [Stats() for _ in cases]
        started = perf_counter()
        for step in decode(self.target, requests, settings):
            for row in step:
                outputs[row.row].extend(row.tokens)
                stats[row.row] = row.stats or stats[row.row]
        return Run(outputs, stats, perf_counter() - started)

    def greedy(self, cases: Sequence[Case]) -> list[list[int]]:
        """Return transformers' own greedy outputs."""
        outputs = []
        for case in cases:
            with torch.inference_mode():
                ids = self.model.generate(
                    torch.tensor([case.prompt]), do_sample=False, max_new_tokens=len(case.source) + ROOM
                )
            outputs.append(ids[0, 1:].tolist())
        return outputs

    def _request(self, method: str, case: Case) -> Request:
        sources = [Source(case.source, "edit"), Source(case.prompt, "prompt")]
        drafter: Callable[[], Drafter] | None = None
        if method == "sad":
            drafter = partial(ShallowAggressive, case.prompt, [case.source], self.eos)
        elif method != "plain":
            drafter = partial(create, sources, [self.eos], continues_prompt=False)
        limit = len(case.source) + ROOM
        return Request(case.prompt, limit, SamplingOptions(), frozenset([self.eos]), sources, drafter)


def measure(bench: Bench, texts: Sequence[str], repeats: int = 1) -> dict[str, Any]:
    """Measure all methods, one row at a time and in batches, as one JSON object. The first two texts also warm up."""
    cases = [bench.case(text) for text in texts]
    expected = bench.greedy(cases)
    rows: dict[str, Any] = {}
    for method in METHODS:
        bench.run(method, cases[:2])
        serial = [bench.run(method, cases) for _ in range(repeats)]
        batched = bench.run(method, cases, batch_size=BATCH)
        stats = serial[0].stats
        calls, tokens = sum(row.num_passes for row in stats), sum(row.num_output_tokens for row in stats)
        rows[method] = {
            "calls_per_text": round(calls / len(cases), 3),
            "tokens_per_call": round(tokens / calls, 2),
            "drafted_per_call": round(sum(row.num_draft_tokens for row in stats) / calls, 1),
            "ms_per_text": round(1000 * median(run.seconds for run in serial) / len(cases), 2),
            f"ms_per_text_batch_{BATCH}": round(1000 * batched.seconds / len(cases), 2),
            "equal_to_generate": sum(a == b for a, b in zip(serial[0].outputs, expected, strict=True)),
            f"batch_{BATCH}_equal_to_serial": sum(
                a == b for a, b in zip(batched.outputs, serial[0].outputs, strict=True)
            ),
        }
    sources = [case.source for case in cases]
    unchanged = sum(output == [*source, bench.eos] for output, source in zip(expected, sources, strict=True))
    return {
        "texts": len(cases),
        "source_tokens": round(sum(map(len, sources)) / len(cases), 1),
        "left_as_they_were": unchanged,
        "methods": rows,
    }


def read_texts(data: Path | None, rows: int | None, seed: int) -> list[str]:
    """Read sentences to correct: JFLEG dev if `data` is given, else those of the benchmarks."""
    if data is None:
        return sample(lines(), rows, seed)
    return sample([row["source"] for row in read_rows(data / "gec" / "jfleg_dev.jsonl.gz")], rows, seed)


def show(report: dict[str, Any]) -> str:
    """Format the report as a table."""
    names = list(next(iter(report["methods"].values())))
    lines = [f"{report['texts']} texts of {report['source_tokens']} tokens, {report['left_as_they_were']} left as is"]
    lines += [f"{name:<28}" + "".join(f"{row[name]:>14}" for row in report["methods"].values()) for name in names]
    lines.insert(1, " " * 28 + "".join(f"{method:>14}" for method in report["methods"]))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return 0 if all outputs are equal, 1 if some differ (near-ties in half precision)."""
    parser = argparse.ArgumentParser(description="Compare the target calls of an encoder-decoder corrector by method.")
    parser.add_argument("--model", type=Path, required=True, help="folder of the corrector")
    parser.add_argument("--data", type=Path, help="data folder with gec/jfleg_dev.jsonl.gz")
    parser.add_argument("--rows", type=int, help="number of texts, drawn with the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each method; the median is reported")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--instruction", default=INSTRUCTION, help="text before each source; may be empty")
    parser.add_argument("--threads", type=int, help="number of torch threads")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    bench = Bench(options.model, getattr(torch, options.dtype), instruction=options.instruction)
    texts = read_texts(options.data, options.rows, options.seed)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {options.dtype}"
    report = {"machine": machine, "instruction": options.instruction, **measure(bench, texts, options.repeats)}
    print(show(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    counts = [row[name] for row in report["methods"].values() for name in row if "equal" in name]
    return int(any(count != report["texts"] for count in counts))


if __name__ == "__main__":
    sys.exit(main())
