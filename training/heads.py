"""Train draft heads: ``python -m training.heads --model smollm2 --out RUN [--minutes M]``.

``--model`` is passed to ``copyspec.load``; ``--data`` is a folder of prose (``*.txt.gz``), one paragraph per line. In
rounds, the model reads and answers, which fills ``RUN/states`` (hidden states on disk), and the heads are trained on
all of them. Started again with the same ``--out``, the run resumes. ``RUN/heads`` holds the latest heads, for
``draft_model="heads:RUN/heads"``; ``RUN/log.jsonl`` the loss and, for each head on held-out shards, how often the
model's token is its first choice or among its first five.

``--convert FILE OUT`` converts a published ``medusa_lm_head.pt``, or EAGLE's ``pytorch_model.bin``, to safetensors; its
``config.json`` belongs beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from copyspec.drafters.predictors.head_files import EAGLE_WEIGHTS, MEDUSA_WEIGHTS
from copyspec.drafters.predictors.heads import weights_of
from kit import places
from training.chat_requests import Requests
from training.head_trainer import HeadPlan, Trainer, Windows, save_heads
from training.outputs import OutputPlan, check_plan, read_shard, shards, write_prose, write_shard
from training.runs import (
    MINUTES,
    append_log,
    exit_with,
    restore,
    save_checkpoint,
    save_tensors,
    say_end,
    say_start,
    working_dtype,
)

if TYPE_CHECKING:
    from copyspec.engine.engine import Engine

KINDS = ("recurrent", "parallel", "feature")
CHECKPOINT = "checkpoint.safetensors"
STEPS_A_SHARD = 40  # training steps per new shard
LEAST_STEPS = 10  # trained even if reading took all the time: a run never ends with nothing
ROWS_A_MINUTE = 8  # of the first shards, in runs so short that a whole one would take all the time
ANSWERS_COUNT = 10  # how many times a token of an answer counts when the vocabulary is chosen


class HeadRun:
    """A folder with states, a checkpoint, heads, plan.json and log.jsonl."""

    def __init__(self, out: Path, engine: Engine, name: str, plans: tuple[HeadPlan, OutputPlan]) -> None:
        self._out, self._engine, self._model, self._name = out, engine, engine.model, name
        self._plan, self._outputs = plans
        check_plan(out / "states", name, self._outputs)
        (out / "plan.json").write_text(json.dumps(asdict(self._plan), indent=1) + "\n")
        self._trainer: Trainer | None = None
        self._held: tuple[list[Path], Windows] | None = None

    def read(self, requests: Requests, number: int, every: int) -> None:
        """Write the shard of this number if it is missing: one of `every` shards holds answers, the others prose."""
        is_output = number % every == 0
        path = self._out / "states" / f"{'outputs' if is_output else 'prose'}-{number:05d}.safetensors"
        if not path.exists():
            write = write_shard if is_output else write_prose
            print(f"{path.name}: {write(path, self._engine, requests, self._outputs)} tokens", flush=True)

    def learn(self, steps: int, until: float) -> None:
        """Train for this many steps on the existing shards; save heads and checkpoint, and write the log."""
        paths = shards(self._out / "states")
        unseen = paths[:1]
        learned = [path for path in paths if path not in unseen] or paths
        if self._held is None or self._held[0] != learned:
            self._held = None  # free the old windows first
            self._held = learned, self._windows(learned)
        windows = self._held[1]
        trainer = self._started(learned)
        losses = list[float]()
        while (
            len(losses) < steps
            and trainer.step < self._plan.steps
            and (time.time() < until or len(losses) < LEAST_STEPS)
        ):
            losses.append(trainer.train(windows))
        if losses:
            others = {} if trainer.vocabulary is None else {"vocabulary": trainer.vocabulary}
            save_checkpoint(self._out / CHECKPOINT, trainer.weights, trainer.optimizer, trainer.step, **others)
            save_heads(self._out / "heads", trainer, weights_of(self._model)[0], self._name)
            line: dict[str, object] = {"step": trainer.step, "loss": round(sum(losses) / len(losses), 4)}
            line |= trainer.accuracy(self._windows(unseen))
            append_log(self._out, line)

    @property
    def step(self) -> int:
        return 0 if self._trainer is None else self._trainer.step

    @property
    def is_done(self) -> bool:
        return self.step >= self._plan.steps

    def _windows(self, paths: Sequence[Path]) -> Windows:
        plan, size = self._plan, weights_of(self._model)[0].shape[1]
        return Windows(paths, plan.window, packed=plan.kind == "feature", width=None if plan.layers else size)

    def _started(self, paths: Sequence[Path]) -> Trainer:
        if self._trainer is None:
            output, table = weights_of(self._model)
            checkpoint = self._out / CHECKPOINT
            tensors = load_file(checkpoint) if checkpoint.is_file() else {}
            # New shards might select other tokens; the heads keep the vocabulary they started with.
            vocabulary = tensors.get("vocabulary", _vocabulary(paths, self._plan, output.shape[0]))
            self._trainer = Trainer(output, table, vocabulary, self._plan, self._model)
            if tensors:
                self._trainer.step = restore(checkpoint, self._trainer.weights, self._trainer.optimizer)
        return self._trainer


def _vocabulary(paths: Sequence[Path], plan: HeadPlan, size: int) -> Tensor | None:
    """The most frequent tokens of the shards, which are drafted; tokens of answers count more."""
    if not 0 < plan.vocabulary < size:
        return None
    counts = torch.zeros(size)
    for path in paths:
        share = ANSWERS_COUNT if path.name.startswith("outputs") else 1
        for tokens, _ in read_shard(path):
            counts += share * torch.bincount(tokens, minlength=size)
    return counts.argsort(descending=True, stable=True)[: plan.vocabulary].sort().values


def convert(source: Path, out: Path) -> None:
    """Convert a published `medusa_lm_head.pt`, or EAGLE's `pytorch_model.bin`, to safetensors; torch unpickles only
    tensors from it."""
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    out.mkdir(parents=True, exist_ok=True)
    name = EAGLE_WEIGHTS if "fc.weight" in tensors else MEDUSA_WEIGHTS
    save_tensors(out / name, tensors)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convert", nargs=2, type=Path, metavar=("FILE", "OUT"))
    parser.add_argument("--model", default="smollm2")
    places.add_prose(parser)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kind", choices=KINDS, default="recurrent")
    parser.add_argument("--depth", type=int, default=HeadPlan.depth)
    parser.add_argument(
        "--inner", type=int, default=HeadPlan.inner, help="size of the block or MLP; for parallel heads the rank"
    )
    parser.add_argument(
        "--span", type=int, default=HeadPlan.span, help="number of pairs that a feature layer attends to"
    )
    parser.add_argument(
        "--layers", nargs="*", type=int, default=(), help="model layers whose inputs recurrent heads read in addition"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=HeadPlan.vocabulary, help="number of tokens that are drafted; 0: all"
    )
    parser.add_argument("--shards", type=int, default=60, help="number of shards of hidden states")
    parser.add_argument(
        "--prose",
        type=int,
        default=OutputPlan.prose,
        help="shards of prose, which is read faster, for each shard of answers",
    )
    parser.add_argument(
        "--own", type=float, default=OutputPlan.own, help="share of the prompts that the model writes itself"
    )
    parser.add_argument(
        "--rows", type=int, help=f"outputs per shard (default: {OutputPlan.rows}, fewer in runs of a few minutes)"
    )
    parser.add_argument("--tokens", type=int, default=OutputPlan.tokens, help="maximum tokens per answer")
    parser.add_argument(
        "--dtype",
        default=str(working_dtype("cpu")).removeprefix("torch."),
        help="data type of the model while it reads (default here: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=HeadPlan.steps)
    parser.add_argument("--batch", type=int, default=HeadPlan.batch)
    parser.add_argument("--rate", type=float, default=HeadPlan.rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help=MINUTES)
    options = parser.parse_args(arguments)
    if options.convert:
        convert(*options.convert)
        return
    if options.out is None:
        parser.error("--out is needed")
    if options.prose < 0:
        parser.error(f"--prose must be 0 or more, got {options.prose}")
    if not 0 <= options.own <= 1:
        parser.error(f"--own must be from 0 to 1, got {options.own}")
    until = time.time() + 60 * options.minutes
    plan = HeadPlan(
        kind=options.kind, depth=options.depth, inner=options.inner, vocabulary=options.vocabulary, steps=options.steps,
        batch=options.batch, rate=options.rate, seed=options.seed, span=options.span,
        layers=tuple(options.layers) if options.kind == "recurrent" else (),
    )  # fmt: skip
    outputs = OutputPlan(
        rows=options.rows or _rows(options.out, options.minutes),
        tokens=options.tokens,
        seed=options.seed,
        layers=tuple(options.layers),
        prose=options.prose,
        own=options.own,
    )
    say_start("the model; the first of its shards", until, plan.steps)
    import copyspec

    run = HeadRun(options.out, copyspec.load(options.model, dtype=options.dtype), options.model, (plan, outputs))
    requests = Requests(options.data)
    # The first shard is held out; before the second one with answers, the vocabulary would be that of prose.
    first = min(1 + outputs.prose, options.shards - 1)
    for number in range(max(options.shards, 1)):
        run.read(requests, number, 1 + outputs.prose)
        is_late = time.time() > until
        if plan.steps and (is_late or number >= max(first, 1)):
            run.learn(STEPS_A_SHARD, until)
        if is_late:
            print(f"the time is up: {number + 1} of {options.shards} shards were read", flush=True)
            break
    while not run.is_done and time.time() < until:
        run.learn(10 * STEPS_A_SHARD, until)
    if plan.steps:
        say_end(options.out, options.out / "heads", run.step, plan.steps)


def _rows(out: Path, minutes: float) -> int:
    """Outputs per shard: those of the shards that a run holds, else as many as its time allows."""
    if (plan := out / "states" / "plan.json").is_file():
        return int(json.loads(plan.read_text(encoding="utf-8"))["rows"])
    return max(ROWS_A_MINUTE, min(OutputPlan.rows, round(ROWS_A_MINUTE * minutes)))


if __name__ == "__main__":
    exit_with(main)
