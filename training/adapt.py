"""Train a LoRA adapter for correction: ``python -m training.adapt --base FOLDER --out RUN [--minutes M]``.

``--base`` is a Llama with a chat template of the form ``<|im_start|>ROLE``: SmolLM2-135M-Instruct, in the folder that
``copyspec models`` converted it to. The prompts of :mod:`training.examples` become single user messages without a
system message. The learning rate falls linearly to zero over the time or the number of steps, as in
:mod:`training.train`; writing a clock time into ``RUN/finish_by`` moves the end. Started again with the same ``--out``
it resumes from its last checkpoint. ``RUN/adapter`` is the latest adapter, in the format of `peft`. ``--begin FOLDER``
starts from such an adapter; ``--precision bfloat16`` halves the time on CPUs with AVX-512 instructions for it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from copyspec.common.filesystem import replacing
from kit import places
from training.data import load_prose, made_ahead
from training.examples import CORRECT, Example, ExampleMaker, Mixture
from training.lora import Adapter, FrozenLlama, LoraShape, load_adapter, save_adapter
from training.runs import MINUTES, append_log, exit_with, last_step, say_end, say_prepared, say_start
from training.text import split_words
from training.train import Meter, Schedule, clock

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
Arrays = tuple[np.ndarray, np.ndarray]  # ids and weights of a batch, [rows, length] each
_TRIAL_EVERY = 150  # steps between evaluations of the held-out loss
_TRIAL_BATCHES = 12
_CHOOSING = 4  # first tokens of a quote, which decide which sentence it is


@dataclass(frozen=True)
class AdaptPlan:
    """Everything a run depends on besides the data and the base model."""

    shape: LoraShape = field(default_factory=LoraShape)
    mixture: Mixture = field(
        default_factory=lambda: Mixture(
            sentence=0.51, paragraph=0.26, quote_one=0.08, quote_many=0.15, jumble=0.0, opening=0.0, rare=0.07,
            rare_quotes=0.45, noisy_quotes=0.3, spaced=0.35, clean=0.36, clean_paragraphs=0.5, sparse=0.5,
            tempting=0.08, open=True, many=(1, 32, 27, 19, 12, 6, 3), run_on=0.12, lower=0.03, reworded=0.0, fewest=3,
            sentences=6, longest=260, dialect=False, plain=0.5, aimed=0.5,
        )
    )  # fmt: skip
    rate_a: float = 7e-4  # peak learning rates; B, which starts at zero, learns faster (Hayou et al. 2024)
    rate_b: float = 2e-3
    edited: float = 2.2  # weight of a token that differs from the source; other tokens have weight 1
    chosen: float = 4.0  # weight of the first tokens of a quote, which choose the sentence; the rest is copied
    batch: int = 1024  # padded positions per step
    limit: int = 720  # maximum tokens of an example
    pool: int = 256  # examples sorted by length together
    helpers: int = 0  # processes that only prepare data
    warmup: int = 15  # steps
    seed: int = 0
    steps: int = 0
    device: str = "cpu"
    precision: str = ""  # of the frozen weights: "float32", "bfloat16"; empty: chosen by the device
    begin: Path | None = None  # an adapter to start from
    save_seconds: float = 240.0


PRESETS = {
    "cpu": AdaptPlan(),
    "gpu": AdaptPlan(
        shape=LoraShape(first_layer=0),
        batch=16384,
        limit=1100,
        pool=2048,
        helpers=8,
        warmup=60,
        device="cuda",
        rate_a=1e-3,
        rate_b=3e-3,
    ),
}


class AdaptBatches:
    """Endless batches as a function of (seed, place), so that resuming continues where a run stopped."""

    def __init__(self, maker: Callable[[], ExampleMaker], tokenizer: Tokenizer, plan: AdaptPlan, seed: str) -> None:
        """``maker`` is called only for pools that were not prepared."""
        self.maker, self.tokenizer, self.plan, self.seed = maker, tokenizer, plan, seed
        self.folder: Path | None = None  # of prepared pools

    def prepare(self, folder: Path, pools: int) -> None:
        """Prepare the first pools, because reading the prose takes a minute of CPU time."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(pools):
            with replacing(self._path(folder, number)) as file:
                np.savez(file, *itertools.chain.from_iterable(self._made(number)))

    def from_place(self, pool: int, index: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Yield (pool, index, ids, weights), [rows, length] each; the weights are those of the tokens as targets."""
        if self.plan.helpers and not self._is_prepared(pool + 3 * self.plan.helpers):  # as far as these read ahead
            self.maker()  # read the prose here, once, and not in every helper
        for number, batches in made_ahead(self._pool, pool, self.plan.helpers):
            for i, (ids, weights) in enumerate(batches):
                if number > pool or i >= index:
                    yield number, i, torch.from_numpy(ids), torch.from_numpy(weights)

    def _pool(self, number: int) -> list[Arrays]:
        if self.folder is None or not self._is_prepared(number):
            return self._made(number)
        with np.load(self._path(self.folder, number)) as archive:
            arrays = [archive[f"arr_{i}"] for i in range(len(archive.files))]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def _is_prepared(self, number: int) -> bool:
        return self.folder is not None and self._path(self.folder, number).exists()

    def _path(self, folder: Path, number: int) -> Path:
        """The name says what a pool depends on besides the data."""
        plan = self.plan
        return folder / f"{self.seed}-{plan.pool}-{plan.batch}-{plan.limit}-{number}.npz"

    def _made(self, number: int) -> list[Arrays]:
        rng = random.Random(f"{self.seed}/{number}")
        drawn = [self._encode(self.maker().draw(rng)) for _ in range(self.plan.pool)]
        rows = sorted((row for row in drawn if len(row[0]) <= self.plan.limit), key=lambda row: len(row[0]))
        batches, batch = [], rows[:1]
        for row in rows[1:]:
            if len(row[0]) * (len(batch) + 1) > self.plan.batch:
                batches.append(_padded(batch))
                batch = []
            batch.append(row)
        batches.append(_padded(batch))
        rng.shuffle(batches)
        return batches

    def _encode(self, example: Example) -> tuple[list[int], list[float]]:
        answer = example.answer[1:]
        prompt = f"<|im_start|>user\n{example.prompt}<|im_end|>\n<|im_start|>assistant\n"
        asked = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        said = self.tokenizer.encode(answer + "<|im_end|>", add_special_tokens=False)
        weights = [1.0] * len(said.ids)
        if example.prompt.startswith(CORRECT):
            for start, end in edited_parts(example.prompt[len(CORRECT) :], answer):
                for k, (first, last) in enumerate(said.offsets):
                    if first < end and last > start:
                        weights[k] = self.plan.edited
        else:
            weights[:_CHOOSING] = [self.plan.chosen] * min(_CHOOSING, len(weights))
        return [*asked, *said.ids], [0.0] * len(asked) + weights


def edited_parts(source: str, answer: str) -> list[tuple[int, int]]:
    """Spans of the answer whose words differ from the source; for a deletion, the next word."""
    was, now = split_words(source), split_words(answer)
    starts = [0]
    for word in now:
        starts.append(starts[-1] + len(word))
    matcher = SequenceMatcher(None, was, now, autojunk=False)
    return [
        (starts[j], starts[min(max(end, j + 1), len(now))])
        for kind, _, _, j, end in matcher.get_opcodes()
        if kind != "equal" and j < len(now)
    ]


def _padded(rows: list[tuple[list[int], list[float]]]) -> Arrays:
    length = max(len(ids) for ids, _ in rows)
    ids = np.array([[*ids, *[0] * (length - len(ids))] for ids, _ in rows])
    return ids, np.array([[*weights, *[0.0] * (length - len(weights))] for _, weights in rows], dtype=np.float32)


def _batches(data: Path, tokenizer: Tokenizer, plan: AdaptPlan, out: Path) -> tuple[AdaptBatches, AdaptBatches]:
    """The batches for training and for the held-out loss."""
    makers = cache(lambda: load_prose(data, plan.mixture))
    pair = (
        AdaptBatches(lambda: makers()[0], tokenizer, plan, f"{plan.seed}"),
        AdaptBatches(lambda: makers()[1], tokenizer, replace(plan, helpers=0), "held"),
    )
    for batches in pair:
        batches.folder = out / "pools"
    return pair


def prepare(data: Path, base: Path, out: Path, plan: AdaptPlan, pools: int) -> None:
    """Prepare the first pools of a run."""
    train, trial = _batches(data, Tokenizer.from_file(str(base / "tokenizer.json")), plan, out)
    train.prepare(out / "pools", pools)
    trial.prepare(out / "pools", 1)


def adapt(data: Path, base: Path, out: Path, plan: AdaptPlan, deadline: float) -> None:
    """Run to the end of the schedule; writes checkpoint.pt, adapter/, plan.json and log.jsonl into ``out``."""
    started, until = time.time(), None if plan.steps else deadline
    say_start("the model; prose and held-out examples", until, plan.steps)
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_text(json.dumps(asdict(plan) | {"begin": bool(plan.begin)}, indent=1) + "\n")
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    llama = FrozenLlama(base, plan.device, getattr(torch, plan.precision) if plan.precision else None)
    adapter = llama.new_adapter(plan.shape, plan.seed)
    if plan.begin is not None:
        load_adapter(plan.begin, adapter)
    batches, trial_batches = _batches(data, tokenizer, plan, out)
    trial = trial_batches.from_place(0, 0)
    held_out = [(ids, weights) for _, _, ids, weights in (next(trial) for _ in range(_TRIAL_BATCHES))]
    for pair in adapter.values():
        for part in pair:
            part.requires_grad_()
    optimizer = torch.optim.AdamW(
        [{"params": [pair[k] for pair in adapter.values()], "lr": rate, "peak": rate}
         for k, rate in enumerate((plan.rate_a, plan.rate_b))],
        betas=(0.9, 0.99), weight_decay=0.01,
    )  # fmt: skip
    step, progress, place = 0, 0.0, (0, 0)
    if (out / "checkpoint.pt").exists():
        checkpoint = torch.load(out / "checkpoint.pt", weights_only=True)
        step, progress, place = checkpoint["step"], checkpoint["progress"], (checkpoint["pool"], checkpoint["index"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        with torch.no_grad():
            for key, pair in adapter.items():
                for part, stored in zip(pair, checkpoint["adapter"][key], strict=True):
                    part.copy_(stored)
    if plan.steps and step >= plan.steps:
        return  # an earlier start has finished the run
    schedule = Schedule(plan.steps, deadline, out, progress, plan.warmup)
    say_prepared(started, until)
    meter, saved = Meter(), time.time()
    for pool, index, ids, weights in batches.from_place(*place):
        step += 1
        factor = schedule.advance(step)
        loss, count = llama.loss(adapter, plan.shape, ids.to(plan.device), weights.to(plan.device))
        mean = loss / count
        torch.autograd.backward(mean)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        torch.nn.utils.clip_grad_norm_([part for pair in adapter.values() for part in pair], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        meter.add(ids.numel(), mean.item())
        stop = schedule.done(step)
        if stop or time.time() - saved > plan.save_seconds:
            state = {
                "step": step, "progress": schedule.progress, "pool": pool, "index": index + 1,
                "optimizer": optimizer.state_dict(), "adapter": adapter,
            }  # fmt: skip
            save_adapter(out / "adapter", adapter, plan.shape, BASE)
            with replacing(out / "checkpoint.pt") as file:
                torch.save(state, file)
            saved = time.time()
        if step % 10 == 0 or step == 1 or stop:
            row = {"step": step, "progress": round(schedule.progress, 4), **meter.read()}
            if step % _TRIAL_EVERY == 0 or (stop and step > _TRIAL_EVERY):  # it takes minutes: not in runs of few
                row |= _held_out(llama, adapter, plan, held_out)
            append_log(out, row)
        if stop:
            return


@torch.no_grad()
def _held_out(
    llama: FrozenLlama, adapter: Adapter, plan: AdaptPlan, batches: list[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Mean loss of the held-out tokens that repeat the source, that differ from it, and that choose a quote."""
    losses = {}
    for name, weight in (("held_out_kept", 1.0), ("held_out_edited", plan.edited), ("held_out_chosen", plan.chosen)):
        sums = [
            llama.loss(adapter, plan.shape, ids.to(plan.device), (weights == weight).float().to(plan.device))
            for ids, weights in batches
            if (weights == weight).any()
        ]
        if sums:
            losses[name] = round(float(sum(s for s, _ in sums) / sum(n for _, n in sums)), 4)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an adapter that corrects and quotes.")
    places.add_prose(parser)
    parser.add_argument("--base", type=Path, required=True, help="folder of the Llama to adapt")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu")
    parser.add_argument("--minutes", type=float, default=90.0, help=MINUTES)
    parser.add_argument("--finish-by", metavar="HH:MM", help="clock time at which to finish, instead of --minutes")
    parser.add_argument("--steps", type=int, default=0, help="number of steps, instead of a time (deterministic)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", type=Path, help="folder of an adapter of the same shape to start from")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), default="", help="data type of the frozen weights"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor for both learning rates")
    parser.add_argument(
        "--prepare", type=int, metavar="POOLS", help="only prepare this many pools of examples, with the same --preset"
    )
    args = parser.parse_args()
    deadline = clock(args.finish_by) if args.finish_by else time.time() + 60 * args.minutes
    preset = PRESETS[args.preset]
    plan = replace(
        preset, seed=args.seed, steps=args.steps, begin=args.begin, precision=args.precision,
        rate_a=args.rate * preset.rate_a, rate_b=args.rate * preset.rate_b,
    )  # fmt: skip
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan every new shape for up to a second
    if args.prepare:
        prepare(args.data, args.base, args.out, plan, args.prepare)
    else:
        adapt(args.data, args.base, args.out, plan, deadline)
        say_end(args.out, args.out / "adapter", last_step(args.out), plan.steps)


if __name__ == "__main__":
    exit_with(main)
