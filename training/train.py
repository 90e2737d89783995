"""Train a model: ``python -m training.train --out RUN [--preset NAME] [--minutes M]``.

Presets: ``cpu`` and ``gpu`` the default model, ``sibling`` a small drafter for it, ``seq2seq`` an encoder-decoder.

The learning rate falls linearly to zero over the run's time (``--minutes`` or ``--finish-by``) or its number of steps
(``--steps``, deterministic); writing a clock time such as ``14:05`` into ``RUN/finish_by`` moves the end of a running
run (a file from before its start is ignored). A run that is suspended (SIGSTOP) loses no part of its schedule. Started
again with the same ``--out`` it resumes from its last checkpoint; ``python -m training.export RUN DIR`` writes the
model folder.
``--weights FOLDER`` starts from the weights and the tokenizer of such a folder instead of random weights,
``--tokenizer FOLDER`` uses only its tokenizer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file

from copyspec.common.filesystem import replacing
from kit import places
from training.data import Batch, Batches, load_prose, make_tokenizer
from training.examples import ExampleMaker
from training.families import Tables, family_name, family_of
from training.model import Shape, keep_layers
from training.optim import Optimizer, Shared
from training.plans import PRESETS, Plan
from training.runs import MINUTES, append_log, exit_with, last_step, say_end, say_prepared, say_start, working_dtype
from training.tokenizer import load_tokenizer

_WARMUP = 100  # steps
_LOG_EVERY = 20
_TRIAL_EVERY = 200  # steps between evaluations of the held-out loss
_FLOOR = 0.01  # final learning rate, relative to the peak
_STARTED = time.time()  # of this process: an older RUN/finish_by was meant for an earlier start


class Schedule:
    """Progress from 0 to 1 that reaches 1 at the deadline at any speed, and pauses while the process is stopped."""

    def __init__(self, steps: int, deadline: float, out: Path, progress: float = 0.0, warmup: int = _WARMUP) -> None:
        """``steps``: of the run; 0: it ends at the ``deadline``."""
        self.steps, self.deadline, self.out, self.progress = steps, deadline, out, progress
        self.warmup = warmup
        self.last, self.usual = time.time(), 0.0

    def advance(self, step: int) -> float:
        """Advance by one step and return the factor for the learning rates."""
        now = time.time()
        seconds, self.last = now - self.last, now
        self.usual = self.usual + 0.05 * (min(seconds, 4 * self.usual) - self.usual) if self.usual else seconds
        if self.steps:
            self.progress = step / self.steps
        else:
            left = max(self.deadline - now, 1e-3)
            self.progress += (1 - self.progress) * min(1.0, min(seconds, 4 * self.usual) / left)
        if step % _LOG_EVERY == 0:
            self._follow(self.out / "finish_by")
        return max(_FLOOR, 1 - self.progress) * min(1.0, step / self.warmup)

    def _follow(self, file: Path) -> None:
        """Move the deadline to the clock time in this file, if there is one. It may be read while it is written."""
        try:
            if file.stat().st_mtime > _STARTED:
                self.deadline = clock(file.read_text(encoding="utf-8").strip())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            warnings.warn(f"{str(file)!r} is ignored: {error}", stacklevel=2)

    def done(self, step: int) -> bool:
        return step >= self.steps if self.steps else time.time() >= self.deadline


def clock(text: str) -> float:
    """Seconds since the epoch when the clock shows ``HH:MM``, at most half a day before or after now."""
    if not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", text):
        raise ValueError(f"{text!r} is no clock time such as 14:05")
    hour, minute = (int(part) for part in text.split(":"))
    now = time.localtime()
    when = time.mktime((*now[:3], hour, minute, 0, 0, 0, -1))
    return when + 86400 if when < time.time() - 43200 else when


def train(data: Path, out: Path, plan: Plan, deadline: float) -> None:
    """Run to the end of the schedule; writes checkpoint.pt, tokenizer.json, plan.json and log.jsonl into ``out``."""
    torch.set_num_threads(1 if plan.device == "cpu" else 4)
    started, until = time.time(), None if plan.steps else deadline
    say_start("prose, tokenizer, held-out examples", until, plan.steps)
    out.mkdir(parents=True, exist_ok=True)
    family = family_of(plan.shape)
    maker, unseen = load_prose(data, plan.mixture, family.maker)
    _write_tokenizer(out / "tokenizer.json", maker, plan)
    (out / "plan.json").write_text(
        json.dumps({"shape": asdict(plan.shape), "rates": vars(plan.rates), "seed": plan.seed, "preset": plan.device,
                    "family": family_name(plan.shape),
                    "batch": plan.batch * plan.world, "mixture": vars(plan.mixture),
                    "weights": plan.weights and plan.weights.name, "layers": plan.layers}, indent=1))  # fmt: skip
    tokenizer = load_tokenizer(out / "tokenizer.json")
    plan = replace(plan, shape=replace(plan.shape, vocab=tokenizer.get_vocab_size()))
    if plan.weights is not None:
        whole = family.shape_of(json.loads((plan.weights / "config.json").read_text()))
        weights = family.from_named(load_file(plan.weights / "model.safetensors"), whole)
        weights = keep_layers(weights, plan.layers) if plan.layers else weights
    else:
        weights = family.init_weights(plan.shape, torch.Generator().manual_seed(plan.seed))
    shared = Shared(weights, plan.world, torch.device(plan.device), working_dtype(plan.device))
    held_batches = Batches(unseen, tokenizer, seed=plan.seed, rank=-1, tokens=4096, limit=plan.limit, pool=3)
    trial = [b for _, _, b in itertools.islice(held_batches.from_place(0, 0), 3)]
    resume = torch.load(out / "checkpoint.pt", weights_only=True) if (out / "checkpoint.pt").exists() else None
    if resume:
        shared.load(resume["state"])
    start = (resume["step"], resume["progress"]) if resume else (0, 0.0)
    say_prepared(started, until)
    context = mp.get_context("fork")
    barrier = context.Barrier(plan.world)
    jobs = []
    for rank in range(plan.world):
        feed = Batches(maker, tokenizer, seed=plan.seed, rank=rank, tokens=plan.batch, limit=plan.limit, pool=plan.pool)
        jobs.append(Job(rank, plan, shared, feed, trial, barrier, out, deadline))
    others = [context.Process(target=job.run, args=start) for job in jobs[1:]]
    for process in others:
        process.start()
    (out / "pids").write_text("\n".join(str(p) for p in [os.getpid(), *(p.pid for p in others)]) + "\n")
    ended = threading.Thread(target=_abort_with, args=(others, barrier), daemon=True)
    ended.start()
    try:
        jobs[0].run(*start)
    except threading.BrokenBarrierError:
        codes = [process.exitcode for process in others]
        raise RuntimeError(f"a training process ended early (exit codes {codes}); start it again to resume") from None
    finally:
        barrier.abort()  # so that the others do not wait for this process after an error
        for process in others:
            process.join()


def _write_tokenizer(path: Path, maker: ExampleMaker, plan: Plan) -> None:
    """Write the tokenizer of a run, unless it is there from an earlier start."""
    if plan.weights is not None:
        content = (plan.weights / "tokenizer.json").read_bytes()
    elif path.exists():
        return
    else:
        if plan.tokenizer is not None:
            tokenizer = load_tokenizer(plan.tokenizer / "tokenizer.json")
        else:
            tokenizer = make_tokenizer(maker, plan.shape.vocab, plan.seed)
        content = family_of(plan.shape).tokenizer(tokenizer).to_str(pretty=True).encode()
    with replacing(path) as file:
        file.write(content)


def _abort_with(processes: Sequence[BaseProcess], barrier: Barrier) -> None:
    """Break the barrier as soon as one of the processes has failed, so that nobody waits for it."""
    running = list(processes)
    while running:
        wait([process.sentinel for process in running])
        codes = [process.exitcode for process in running]  # read once: a process may end between two readings
        if any(codes):
            barrier.abort()
            return
        running = [process for process, code in zip(running, codes, strict=True) if code is None]


class Meter:
    """Mean loss and speed since the last reading."""

    def __init__(self) -> None:
        self.since, self.steps, self.positions, self.loss = time.time(), 0, 0, 0.0

    def add(self, positions: int, loss: float) -> None:
        self.steps, self.positions, self.loss = self.steps + 1, self.positions + positions, self.loss + loss

    def read(self) -> dict[str, float]:
        now = time.time()
        speed, loss = self.positions / (now - self.since), self.loss / self.steps
        self.since, self.steps, self.positions, self.loss = now, 0, 0, 0.0
        return {"time": round(now, 1), "loss": round(loss, 4), "tokens_per_second": round(speed)}


@dataclass
class Job:
    """One training process."""

    rank: int
    plan: Plan
    shared: Shared
    feed: Batches
    trial: list[Batch]
    barrier: Barrier
    out: Path
    deadline: float

    def run(self, step: int, progress: float) -> None:
        """Train until the schedule ends; process 0 keeps time, log and checkpoints."""
        plan, shared = self.plan, self.shared
        if plan.steps and step >= plan.steps:
            return  # an earlier start has finished the run
        torch.set_num_threads(1 if plan.device == "cpu" else 4)
        weights = {name: view.requires_grad_() for name, view in shared.views(shared.working).items()}
        family = family_of(plan.shape)
        tables = family.tables(plan.shape, plan.device, shared.working.dtype)
        optimizer = Optimizer(shared, self.rank, plan.world, plan.rates)
        gradients = shared.views(shared.gradients[self.rank])
        schedule = Schedule(plan.steps, self.deadline, self.out, progress)
        place = shared.places[self.rank]
        control = shared.control
        saved, meter = time.time(), Meter()
        for pool, index, batch in self.feed.from_place(int(place[0]), int(place[1]), plan.helpers):
            ids, answer = batch.ids.to(plan.device), batch.answer.to(plan.device)
            loss = family.loss_of(weights, ids, answer, plan.shape, tables)
            torch.autograd.backward(loss)
            for name, weight in weights.items():
                if weight.grad is not None:
                    gradients[name].copy_(weight.grad)
                weight.grad = None
            shared.counts[self.rank] = torch.tensor([loss.item(), float(batch.answer[:, 1:].sum())])
            place[0], place[1] = pool, index + 1
            step += 1
            if self.rank == 0:
                control[0] = schedule.advance(step)
                control[1] = float(schedule.done(step))
            self.barrier.wait()
            optimizer.step(step, float(control[0]))
            stop = bool(control[1])
            if self.rank == 0:
                meter.add(plan.world * ids.numel(), float(shared.counts[:, 0].sum() / shared.counts[:, 1].sum()))
                if step % _LOG_EVERY == 0 or step == 1 or stop:
                    row = {"step": step, "progress": round(schedule.progress, 4), "rate": round(float(control[0]), 4)}
                    self._log(row | meter.read(), tables)
            self.barrier.wait()
            if self.rank == 0 and (stop or time.time() - saved > plan.save_seconds):
                self._save(step, schedule.progress)
                saved = time.time()
            if stop:
                return  # the schedule has ended, or RUN/finish_by names a past time

    def _log(self, row: dict[str, float], tables: Tables) -> None:
        if row["step"] % _TRIAL_EVERY == 0:
            average = {k: v.to(self.shared.working.dtype) for k, v in self.shared.views(self.shared.average).items()}
            total = count = 0.0
            for batch in self.trial:
                ids, answer = batch.ids.to(self.plan.device), batch.answer.to(self.plan.device)
                with torch.no_grad():
                    total += float(family_of(self.plan.shape).loss_of(average, ids, answer, self.plan.shape, tables))
                count += float(answer[:, 1:].sum())
            row["held_out_loss"] = round(total / count, 4)
        append_log(self.out, row)

    def _save(self, step: int, progress: float) -> None:
        with replacing(self.out / "checkpoint.pt") as file:
            torch.save({"step": step, "progress": progress, "state": self.shared.state()}, file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the default model, or one of its smaller relatives.")
    places.add_prose(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu")
    parser.add_argument("--minutes", type=float, default=120.0, help=MINUTES)
    parser.add_argument("--finish-by", metavar="HH:MM", help="clock time at which to finish, instead of --minutes")
    parser.add_argument("--steps", type=int, default=0, help="number of steps, instead of a time (deterministic)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, help="model folder to start from; also give a smaller --rate")
    parser.add_argument(
        "--layers", default="", help="layers of those weights to start with, such as 0,1,4 (default for sibling: 0,1,4)"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="model folder whose tokenizer to use (default for sibling and seq2seq: the bundled model)",
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor for the preset's learning rates")
    parser.add_argument("--mixture", default="", help="changed shares of examples, such as sentence=0.4,quote_many=0.4")
    args = parser.parse_args()
    deadline = clock(args.finish_by) if args.finish_by else time.time() + 60 * args.minutes
    plan = PRESETS[args.preset]
    rates = replace(plan.rates, matrix=plan.rates.matrix * args.rate, other=plan.rates.other * args.rate)
    weights = args.weights or plan.weights
    shares: dict[str, Any] = {
        name: float(value) for name, _, value in (part.partition("=") for part in args.mixture.split(",") if part)
    }
    layers = tuple(int(i) for i in args.layers.split(",")) if args.layers else plan.layers
    if weights is not None:
        shares.setdefault("opening", 0.0)  # it can already copy
        plan = replace(plan, shape=family_of(plan.shape).shape_of(json.loads((weights / "config.json").read_text())))
    if layers and (weights is None or not isinstance(plan.shape, Shape)):
        parser.error("--layers chooses layers of a Llama given as --weights FOLDER")
    if layers and isinstance(plan.shape, Shape):
        plan = replace(plan, shape=replace(plan.shape, layers=len(layers)), layers=layers)
    plan = replace(plan, seed=args.seed, steps=args.steps, rates=rates, weights=weights,
                   tokenizer=args.tokenizer or plan.tokenizer, mixture=replace(plan.mixture, **shares))  # fmt: skip
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan every new shape for up to a second
    train(args.data, args.out, plan, deadline)
    say_end(args.out, args.out / "checkpoint.pt", last_step(args.out), plan.steps)


if __name__ == "__main__":
    exit_with(main)
