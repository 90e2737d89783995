"""Measures host time between reading the result of one static pass and launching the next, without drafting.

    python -m benchmarks.gpu.launch               # on a CPU: thread time, microseconds per step
    python -m benchmarks.gpu.launch --device cuda

A Llama of 32 layers and hidden size 32 executes the Python code of a large model with little arithmetic. The
measurement begins when the tokens of a pass have been read, and ends when the next pass is handed to its program:
verification, commit, accounting, and packing, without the drafter's own time, as its trees are made before. On a CPU
the order of steps is that of a GPU: the tokens of several rows are reported once the next pass is launched, those of a
single row before. Seven draft tokens of ten are right, half of them off the first chain. Settings are the defaults; the
engine's clock counts passes, so that drafts pay: a pass takes as long with any number of nodes, and drafting takes no
time. Limit: 200 microseconds for one row, and 25 for each further row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import thread_time
from typing import cast
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from copyspec.budget import Budget, CostModel
from copyspec.decoding import loop as loop_module
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.options import DraftOptions, SamplingOptions, StaticOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.targets.base import Scores
from copyspec.targets.static.layout import Shape
from copyspec.targets.static.running import ProgramRunner
from copyspec.targets.static.settings import size_of
from copyspec.tree import ROOT, DraftTree, Origin
from copyspec.verification.picking import ScoredPicks, best_picks
from kit.reporting import command_line, write_json

TOKENS = 120
NODES = 32
VOCABULARY = 512


def small_model(layers: int, device: str) -> PreTrainedModel:
    """Build a model with random weights."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return cast(PreTrainedModel, model.eval())


class KnownOutput:
    """Drafts the known output: wrong at every eighth position, and on a second branch at every other call."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._trees = [[_tree(tokens, at, is_aside) for is_aside in (False, True)] for at in range(len(tokens) + 1)]
        self._at = self._calls = 0

    def propose(self, budget: Budget) -> DraftTree:
        self._calls += 1
        return self._trees[self._at][self._calls % 2]

    def accept(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)


def _tree(tokens: Sequence[int], at: int, is_aside: bool) -> DraftTree:
    ahead = [(t + 1) % VOCABULARY if i % 8 == 7 else t for i, t in enumerate(tokens[at : at + NODES // 2], at)]
    aside = [(token + 1) % VOCABULARY for token in ahead]
    first, second = (aside, ahead) if is_aside else (ahead, aside)
    parents = [*range(ROOT, len(first) - 1), *([ROOT, *range(len(first), 2 * len(first) - 1)] if first else [])]
    return DraftTree([*first, *second], parents, [0.5] * len(parents), [Origin(0, 0)] * len(parents))


def measure(model: PreTrainedModel, rows: int, static: StaticOptions) -> list[float]:
    """Return the seconds from read to launch of each step except the first ones."""
    target, settings = wrap(model, static=static), DecodeSettings(DraftOptions(NODES), rows)
    passes = 0

    def requests(outputs: Sequence[Sequence[int]]) -> list[Request]:
        return [
            Request(
                prompt=[5 + row, 6, 7],
                max_new_tokens=TOKENS,
                sampling=SamplingOptions(),
                eos_token_ids=frozenset(),
                sources=[Source(outputs[row], "edit")] if outputs else [],
                drafter=partial(KnownOutput, outputs[row]) if outputs else None,
            )
            for row in range(rows)
        ]

    def run(outputs: Sequence[Sequence[int]]) -> list[list[int]]:
        picked: list[list[int]] = [[] for _ in range(rows)]
        costs = CostModel(clock=lambda: 1e-3 * passes)
        for nodes in [*range(NODES + 1)] * 50:
            costs.observe(size_of(rows * (1 + nodes)), 1e-3)
        for step in decode(target, requests(outputs), settings, costs):
            for row in step:
                picked[row.row] += row.tokens
        return picked

    plain = run(())
    read_at, spans = [0.0], []
    launch = ProgramRunner.run

    def read(scores: Scores) -> list[ScoredPicks]:
        picks = best_picks(scores)
        read_at[0] = thread_time()
        return picks

    def launched(self: ProgramRunner, shape: Shape) -> torch.Tensor:
        nonlocal passes
        if read_at[0]:
            spans.append(thread_time() - read_at[0])
        passes += 1
        return launch(self, shape)

    with (
        patch.object(loop_module, "SYNCHRONOUS", ()),
        patch.object(loop_module, "best_picks", read),
        patch.object(ProgramRunner, "run", launched),
    ):
        if run(plain) != plain:
            raise AssertionError("outputs with drafts differ from plain ones")
    return spans[2:]


def main(arguments: Sequence[str] | None = None, tell: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.launch", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, times = small_model(options.layers, options.device), {}
    for rows in options.rows:
        runs = [median(measure(model, rows, StaticOptions(use="always"))) * 1e6 for _ in range(options.repeats)]
        times[rows] = round(min(runs), 1)
        tell(f"{rows:3} rows: {times[rows]:8.1f} us from read to launch, bar {200 + 25 * (rows - 1)}")
    if options.json:
        write_json(options.json, {"command": command_line("benchmarks.gpu.launch", arguments), "us": times})
    return 0


if __name__ == "__main__":
    sys.exit(main())
