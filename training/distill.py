"""Tune a draft model to its target: ``python -m training.distill --out RUN --student layers:6``.

``--student`` is a folder with the teacher's tokenizer, or ``layers:N``: a copy of the teacher's first layers.
``RUN/student`` is the latest student, for ``draft_model="RUN/student"``; ``RUN/log.jsonl`` has the loss, and on
held-out rows the share of the teacher's next tokens that the student predicts. Started again, the run resumes; with
other settings, which ``RUN/plan.json`` holds, that is an error.

Training texts are the teacher's answers (sequence-level distillation, Kim and Rush 2016) and, with ``--on-policy``,
answers of the student scored by the teacher token by token (DistillSpec, Zhou et al. 2024, arXiv 2310.08461).
``--divergence`` is the loss: from teacher to student ("forward"), from student to teacher ("reverse"), Jensen-Shannon
("js"), or total variation ("tv"), which is the share of rejected drafts.
``--boost FOLDER...`` counts only tokens that these earlier students get wrong, so that several students in one tree
(``draft_model=[...]``) predict different tokens (SpecInfer, Miao et al. 2024, arXiv 2305.09781).
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import copyspec
from copyspec.drafters.predictors.early_exit import early_exit
from kit import places
from training.chat_requests import Requests
from training.outputs import answered_chats
from training.runs import (
    MINUTES,
    append_log,
    check_settings,
    exit_with,
    restore,
    save_checkpoint,
    say_end,
    say_prepared,
    say_start,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DIVERGENCES = ("forward", "reverse", "js", "tv")
LAYERS = "layers:"
CHECKPOINT = "optimizer.safetensors"
SAVE_STEPS = 20


@dataclass(frozen=True)
class DistillPlan:
    """Everything a run depends on besides the models and the data."""

    divergence: str = "forward"
    on_policy: float = 0.0  # share of the steps on texts written by the student
    rows: int = 8  # texts per step
    tokens: int = 64  # maximum tokens per text
    rate: float = 3e-4
    steps: int = 200
    seed: int = 0


def divergence(kind: str, teacher: Tensor, student: Tensor) -> Tensor:
    """Divergence between the distributions of two logits, [n, V] each, in nats ("tv": a probability). [n]"""
    p, q = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    if kind == "forward":
        return (p.exp() * (p - q)).sum(-1)
    if kind == "reverse":
        return (q.exp() * (q - p)).sum(-1)
    if kind == "tv":
        return (p.exp() - q.exp()).abs().sum(-1) / 2
    if kind != "js":
        raise ValueError(f"divergence must be one of {', '.join(map(repr, DIVERGENCES))}, got {kind!r}")
    middle = torch.logaddexp(p, q) - math.log(2.0)
    return ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1)) / 2


class Distiller:
    """A student, its teacher, and texts written by either."""

    def __init__(
        self,
        teacher: PreTrainedModel,
        student: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        requests: Requests,
        plan: DistillPlan,
        boosted: Sequence[PreTrainedModel] = (),
    ) -> None:
        self.teacher, self.student, self.plan = teacher, student, plan
        self.tokenizer, self._requests, self._boosted = tokenizer, requests, boosted
        self.trained = {name: parameter for name, parameter in student.named_parameters() if parameter.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.step = 0
        self._held = self.texts("held", self.teacher)

    def texts(self, seed: object, writer: PreTrainedModel) -> list[tuple[list[int], int]]:
        """Chats with answers by `writer`, and where the answers begin."""
        rng, plan = random.Random(f"{self.plan.seed}/{seed}"), self.plan
        sampled = 0.5 if writer is self.teacher else 1.0
        engine = copyspec.load(writer, tokenizer=self.tokenizer)
        return answered_chats(engine, self._requests, rng, plan.rows, plan.tokens, sampled=sampled)

    def train(self) -> float:
        """Do one training step and return its loss."""
        plan, rng = self.plan, random.Random(f"{self.plan.seed}/{self.step}/policy")
        own = rng.random() < plan.on_policy
        texts = self.texts(self.step, self.student if own else self.teacher)
        total, count = torch.zeros(()), 0.0
        self.student.train()
        for ids, start in texts:
            logits, said = self._logits(self.student, ids, start), self._judged(ids, start)
            losses = divergence(plan.divergence, said, logits)
            weights = self._weights(ids, start, said)
            total, count = total + (losses * weights).sum(), count + float(weights.sum())
        self.student.eval()  # type: ignore[no-untyped-call]
        self.step += 1
        if not count:
            return 0.0
        loss = total / count
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.trained.values(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def agreement(self) -> float:
        """The share of the teacher's next tokens that the student predicts on held-out rows."""
        right = total = 0
        for ids, start in self._held:
            own = self._judged(ids, start).argmax(-1)
            right += int((self._logits(self.student, ids, start).argmax(-1) == own).sum())
            total += len(own)
        return right / max(total, 1)

    def _weights(self, ids: list[int], start: int, said: Tensor) -> Tensor:
        """1 for positions that count: with earlier students, those that all of them get wrong. [n]"""
        counts = torch.ones(len(said))
        for earlier in self._boosted:
            with torch.no_grad():
                counts = counts * (self._logits(earlier, ids, start).argmax(-1) != said.argmax(-1))
        return counts

    @torch.no_grad()
    def _judged(self, ids: list[int], start: int) -> Tensor:
        return self._logits(self.teacher, ids, start)

    @staticmethod
    def _logits(model: PreTrainedModel, ids: list[int], start: int) -> Tensor:
        logits: Tensor = model(torch.tensor([ids])).logits[0, start - 1 : -1]
        return logits


def first_student(teacher: PreTrainedModel, chosen: str) -> PreTrainedModel:
    """A copy of the teacher's first layers, or the model in a folder. Its embeddings and output weights are not
    trained: they are most of a small model's parameters, and can be shared with the teacher."""
    if chosen.startswith(LAYERS):
        student = copy.deepcopy(early_exit(teacher, int(chosen[len(LAYERS) :])))
    else:
        student = copyspec.load(chosen, dtype="float32").model
    if student.config.vocab_size != teacher.config.vocab_size:
        raise ValueError(f"student {chosen!r} has another vocabulary than its teacher: drafts could not be compared")
    for part in (student.get_input_embeddings(), student.get_output_embeddings()):  # type: ignore[no-untyped-call]
        part.requires_grad_(requires_grad=False)
    return student


def distill(distiller: Distiller, out: Path, until: float) -> None:
    """Train to the plan's last step or until the time is up; writes student, optimiser and log into `out`."""
    if (out / CHECKPOINT).is_file():
        distiller.step = restore(out / CHECKPOINT, distiller.trained, distiller.optimizer)
    losses, is_last = list[float](), distiller.step >= distiller.plan.steps
    while not is_last:  # a step is made even if the time is up: a run never ends with nothing
        losses.append(distiller.train())
        is_last = distiller.step >= distiller.plan.steps or time.time() >= until
        if distiller.step % SAVE_STEPS == 0 or is_last:
            line = {"step": distiller.step, "loss": sum(losses) / len(losses), "agreement": distiller.agreement()}
            append_log(out, {name: round(value, 4) for name, value in line.items()})
            losses = []
            distiller.student.save_pretrained(out / "student")
            distiller.tokenizer.save_pretrained(str(out / "student"))
            save_checkpoint(out / CHECKPOINT, distiller.trained, distiller.optimizer, distiller.step)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="smollm2")
    parser.add_argument("--student", default="layers:6")
    places.add_prose(parser)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--divergence", choices=DIVERGENCES, default=DistillPlan.divergence)
    parser.add_argument(
        "--on-policy",
        type=float,
        default=DistillPlan.on_policy,
        help="fraction of the steps on texts written by the student, 0 to 1",
    )
    parser.add_argument("--boost", nargs="*", default=[], help="folders of earlier students")
    parser.add_argument("--rows", type=int, default=DistillPlan.rows)
    parser.add_argument("--tokens", type=int, default=DistillPlan.tokens)
    parser.add_argument("--steps", type=int, default=DistillPlan.steps)
    parser.add_argument("--rate", type=float, default=DistillPlan.rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help=MINUTES)
    options = parser.parse_args(arguments)
    started = time.time()
    until = started + 60 * options.minutes
    plan = DistillPlan(
        options.divergence, options.on_policy, options.rows, options.tokens, options.rate, options.steps, options.seed
    )
    settings = {"teacher": options.teacher, "student": options.student, "boost": options.boost, **asdict(plan)}
    del settings["steps"]  # a run may be continued
    say_start("teacher and student; held-out answers", until, plan.steps)
    engine = copyspec.load(options.teacher, dtype="float32")
    student = first_student(engine.model, options.student)
    boosted = [copyspec.load(name, dtype="float32").model for name in options.boost]
    distiller = Distiller(engine.model, student, engine.tokenizer, Requests(options.data), plan, boosted)
    check_settings(options.out, settings)
    say_prepared(started, until)
    distill(distiller, options.out, until)
    say_end(options.out, options.out / "student", distiller.step, plan.steps)


if __name__ == "__main__":
    exit_with(main)
