"""Measures the time per forward pass spent outside the model and outside drafting, as CPU time of the decoding thread.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --beside CHECKOUT     # alternates with the copyspec of another checkout
    python -m benchmarks.overhead --heads               # in place of that, what draft heads take

From the end of the first pass to the end of the last one, everything counts except `model.forward` and the drafter's
`propose` and `accept`. With edits, the accepted path often leaves the first chain, so that cache entries are moved;
with `drafter="none"`, nothing is verified or moved. All rows start at once. Draft sizes follow simulated pass times, so
that every run makes the same passes. With measured times, a run of 8 rows takes 11 passes or 31, and the work at the
end of the rows then weighs three times as much per pass in one as in the other.

With `--heads`: CPU time per pass of a recurrent head of SmolLM2's size with random weights, three tokens deep, for one
row, from the pass's hidden states to the predictions; and the operators that torch is given, which do not vary.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, median
from time import thread_time
from typing import Any

SENTENCES = Path(__file__).parent / "data" / "sentences.txt"
TOKENS = 48
WALKS = 150
SIZE, INNER, VOCABULARY = 576, 768, 49_152  # of SmolLM2 and its heads
MIN_ROWS = 8  # minimum per measurement, since a call of one row with drafts makes only four passes


class Clock:
    """A simulated clock, in seconds: each token adds 2 % of a pass, as measured for small models on a CPU."""

    PASS, TOKEN, READING = 0.01, 0.0002, 1e-6

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.READING
        return self.now


class Meter:
    """Measures the CPU time of this thread inside the wrapped functions and between their calls."""

    def __init__(self) -> None:
        self.passes = 0
        self._inside = self._first = self._last = 0.0
        self._depth = 0

    def around(self, call: Callable[..., object], *, is_pass: bool) -> Callable[..., object]:
        def timed(*arguments: object, **options: object) -> object:
            started = thread_time()
            self._depth += 1
            try:
                return call(*arguments, **options)
            finally:
                self._depth -= 1
                ended = thread_time()
                if self.passes and not self._depth:
                    self._inside += ended - started
                if is_pass:
                    self.passes += 1
                    self._last = ended
                    self._first = self._first or ended

        return timed

    def per_pass(self) -> float:
        return (self._last - self._first - self._inside) / max(1, self.passes - 1)


def measure(rows: int, *, drafts: bool) -> float:
    """Seconds per pass outside model and drafter, averaged over calls that decode at least MIN_ROWS rows in total."""
    texts = [line for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line]
    texts = (texts * -(-max(rows, MIN_ROWS) // len(texts)))[: max(rows, MIN_ROWS)]
    return mean(measure_call(texts[at : at + rows], drafts=drafts) for at in range(0, len(texts), rows))


def measure_call(texts: list[str], *, drafts: bool) -> float:
    """Seconds per pass outside model and drafter, of one call."""
    import copyspec
    from copyspec.drafters import CopyDrafter

    engine, rows = copyspec.load("default", dtype="float32"), len(texts)
    meter, clock = Meter(), Clock()
    forward, propose, accept = engine.model.forward, CopyDrafter.propose, CopyDrafter.accept

    def passed(*arguments: object, input_ids: Any, **options: object) -> object:
        clock.now += clock.PASS + clock.TOKEN * input_ids.numel()
        return forward(*arguments, input_ids=input_ids, **options)

    engine._costs = type(engine._costs)(clock)
    engine.model.forward = meter.around(passed, is_pass=True)
    CopyDrafter.propose = meter.around(propose, is_pass=False)  # type: ignore[assignment, method-assign]
    CopyDrafter.accept = meter.around(accept, is_pass=False)  # type: ignore[assignment, method-assign]
    try:
        engine.generate(
            [f"Correct the grammar: {text}" for text in texts],
            edit_source=texts if drafts else None,
            drafter="auto" if drafts else "none",
            max_new_tokens=TOKENS,
            ignore_eos=True,
            batch_size=rows,
        )
    finally:
        engine.model.forward = forward
        CopyDrafter.propose, CopyDrafter.accept = propose, accept  # type: ignore[method-assign]
    return meter.per_pass()


def measure_all(repeats: int) -> dict[str, float]:
    """Medians in microseconds, by number of rows and kind of text."""
    import torch

    torch.set_num_threads(1)
    medians: dict[str, float] = {}
    for drafts in (True, False):
        for rows in (1, 8, 32):
            measure(rows, drafts=drafts)  # warm-up: the first passes of each shape allocate memory
            times = [measure(rows, drafts=drafts) for _ in range(repeats)]
            medians[f"{'edits' if drafts else 'plain'}, {rows} rows"] = round(median(times) * 1e6, 1)
    return medians


def measure_heads() -> dict[str, float]:
    """Minima and medians in microseconds, and operators, by size of the vocabulary that is drafted from."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=SIZE, intermediate_size=SIZE, num_hidden_layers=1, num_attention_heads=9, vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )  # fmt: skip
    model, figures = LlamaForCausalLM(config).eval(), dict[str, float]()  # type: ignore[no-untyped-call]
    torch.nn.init.normal_(model.lm_head.weight, std=SIZE**-0.5)
    for drafted in (8192, VOCABULARY):
        for temperature in (0.0, 0.8):
            times, operators = measure_walks(model, drafted, temperature)
            name = f"{drafted} tokens, {'sampled' if temperature else 'greedy'}"
            figures |= {f"{name}, min": round(min(times) * 1e6), f"{name}, median": round(median(times) * 1e6)}
            figures[f"{name}, operators"] = operators
    return figures


def measure_walks(model: Any, drafted: int, temperature: float) -> tuple[list[float], int]:
    """Seconds of each walk, and the operators of one."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from copyspec.drafters.base import ScoredDraft
    from copyspec.drafters.predictors.base import RowContext
    from copyspec.drafters.predictors.head_folder import HeadFile
    from copyspec.drafters.predictors.head_weights import RecurrentHead
    from copyspec.drafters.predictors.heads import DraftHeads, HeadsPredictor
    from copyspec.options import SamplingOptions
    from copyspec.targets.base import LAST
    from copyspec.tree import EMPTY

    class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
        calls = 0

        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            self.calls += 1
            return function(*arguments, **named or {})

    shapes = {"gate": (INNER, 2 * SIZE), "up": (INNER, 2 * SIZE), "down": (SIZE, INNER)}
    tensors = {name: torch.randn(shape) * 0.5 * shape[1] ** -0.5 for name, shape in shapes.items()}
    tensors["norms"] = torch.ones(2, SIZE)
    vocabulary = None if drafted == VOCABULARY else torch.arange(0, VOCABULARY, VOCABULARY // drafted)
    heads = DraftHeads(HeadFile(RecurrentHead(tensors, 3), vocabulary, "random"), model)
    row = HeadsPredictor(heads, RowContext([1], SamplingOptions(temperature, seed=1), 1, VOCABULARY))
    chances = torch.tensor([14.0, 13.3, 12.8, 12.0])  # logits of four tokens that stand out, so that four are followed
    times, counted = list[float](), Counted()  # type: ignore[no-untyped-call]
    for number in range(10 + WALKS):
        tokens = torch.randint(drafted, (4,)) * (VOCABULARY // drafted)
        states = (chances @ model.lm_head.weight.detach()[tokens])[None]
        scored, token = ScoredDraft(EMPTY, torch.zeros(1, VOCABULARY), {LAST: states}), int(tokens[0])
        with counted if number == 9 else nullcontext():
            started = thread_time()
            row.observe(scored)
            row.accept([token])
            row.run(EMPTY)
            times.append(thread_time() - started)
    return times[10:], counted.calls


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--beside", type=Path, help="path of another checkout of copyspec to alternate with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; both checkouts run once per round")
    parser.add_argument("--heads", action="store_true", help="measure draft heads; --repeats does not apply")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(measure_heads() if options.heads else measure_all(options.repeats)))
        return 0
    here = Path(__file__).parent.parent
    checkouts = {"this": here} | ({"beside": options.beside.resolve()} if options.beside else {})
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for _ in range(options.rounds):
        for name, checkout in checkouts.items():
            command = [sys.executable, str(Path(__file__).resolve()), "--child", "--repeats", str(options.repeats)]
            command += ["--heads"] if options.heads else []
            environment = {**os.environ, "PYTHONPATH": str(checkout)}
            done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    report = {
        name: {
            figure: round((min if "min" in figure else median)(run[figure] for run in of_it), 1) for figure in of_it[0]
        }
        for name, of_it in runs.items()
    }
    if options.beside:
        report["ratio"] = {
            figure: round(report["this"][figure] / report["beside"][figure], 3) for figure in report["this"]
        }
    print(f"{'microseconds a pass':32}" + "".join(f"{name:>10}" for name in report))
    for figure in report["this"]:
        print(f"{figure:32}" + "".join(f"{report[name][figure]:>10}" for name in report))
    if options.json:
        options.json.write_text(json.dumps({"command": "python -m benchmarks.overhead", **report}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
