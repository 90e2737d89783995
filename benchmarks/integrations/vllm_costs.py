"""Measures the time that the proposer adds to vLLM's steps: per row, per new request, and with long references.

python -m benchmarks.integrations.vllm_costs

It uses the runner of the tests (kit/vllm_engine.py), so vLLM is not needed. Each request writes its edit
source with one token changed. Times are medians over all steps of the CPU time of `propose`.
"""

from __future__ import annotations

import argparse
import gc
import random
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import copyspec
from benchmarks.integrations.vllm_engines import TEMPLATE, read_texts
from copyspec.integrations.vllm.parameters import EDIT_SOURCE, REFERENCES
from kit.reporting import command_line, machine, write_json
from kit.vllm_engine import Parameters, Request, Runner, engine_config, fake_vllm

STEPS = 200
VOCABULARY = 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", help="file with one text per line (default: the built-in sentences)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--reference-tokens", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    codec = copyspec.load("default", dtype="float32").codec
    texts = [
        (codec.encode(TEMPLATE.format(text=text)).ids, codec.encode(" " + text).ids)
        for text in read_texts(arguments.texts, 200)
    ]
    command = command_line("benchmarks.integrations.vllm_costs")
    report: dict[str, Any] = {"command": command, "machine": machine(), "sets": []}
    gc.freeze()  # as vLLM's engine does after starting
    with fake_vllm(codec.tokenizer):
        for rows in arguments.rows:
            for references in (0, arguments.reference_tokens) if rows == 1 else (0,):
                figures = measure(texts, rows, references)
                report["sets"].append({"rows": rows, "reference tokens": references, **figures})
                print(report["sets"][-1], flush=True)
    gc.unfreeze()
    if arguments.json:
        write_json(arguments.json, report)
    return 0


def measure(texts: list[tuple[list[int], list[int]]], rows: int, references: int) -> dict[str, float]:
    """Measure microseconds per row and step, and the additional ones per new request."""
    rng = random.Random(0)
    config = engine_config(adaptive=True)
    config.model_config.get_vocab_size = lambda: VOCABULARY
    runner, requests = Runner(config), 0
    propose, spent = runner.drafter.propose, [0.0]

    def timed(*args: Any, **named: Any) -> Any:
        begun = process_time()
        drafts = propose(*args, **named)
        spent[0] = 1e6 * (process_time() - begun)
        return drafts

    runner.drafter.propose = timed
    steps: list[float] = []  # steps without new requests, time per row
    refills: list[tuple[float, int, int]] = []  # time, rows, new requests
    longest = 0.0
    for _ in range(STEPS if not references else 2 * STEPS):  # with long references, requests take 15 steps
        new = rows - len(runner.requests) if len(runner.requests) <= rows // 2 else 0
        for _ in range(new):
            runner.add(str(requests), request(rng, *texts[requests % len(texts)], references))
            requests += 1
        count = len(runner.requests)
        runner.step()
        longest = max(longest, spent[0])
        if new:
            refills.append((spent[0], count, new))
        else:
            steps.append(spent[0] / count)
    row = median(steps)
    return {
        "us per row and step": row,
        "us of a new request": median((time - row * count) / new for time, count, new in refills),
        "us of the longest step": longest,
        "requests": requests,
    }


def request(rng: random.Random, prompt: list[int], text: list[int], references: int) -> Request:
    """Make a request that writes its text with one token changed."""
    extra: dict[str, Any] = {EDIT_SOURCE: text}
    if references:
        extra[REFERENCES] = rng.choices(range(3, VOCABULARY), k=references)
    script = list(text)
    script[rng.randrange(len(script))] = rng.randrange(3, VOCABULARY)
    return Request(prompt, [*script, 0], Parameters(extra_args=extra))


if __name__ == "__main__":
    raise SystemExit(main())
