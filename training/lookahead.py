"""Train embeddings for PaSS: ``python -m training.lookahead --states RUN/states --out OUT [--minutes M]``.

This is not the lookahead decoding of `copyspec.drafters.lookahead`, which trains nothing.

PaSS (Monea et al. 2023, arXiv 2311.13581) appends a few trained embeddings to the text; the frozen model's output at
the i-th of them predicts the token i places after the next one. They are trained on the answers of a run of
``training.heads`` (``--states``), against the model's own distribution at the predicted places. ``OUT`` holds the
embeddings and a log of how often the model's token is the first prediction or among the first five, on the held-out
first shard. ``benchmarks.drafts.blocks`` drafts with them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache

from copyspec.drafters.predictors.heads import weights_of
from copyspec.targets.facts import forward_arguments
from copyspec.targets.hooks.caches import cache_argument
from copyspec.targets.hooks.modules import output_head
from training.outputs import read_prompts, read_shard, shards
from training.runs import append_log, save_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel


GROUPS = 16  # places per answer and step from which tokens are predicted
ROWS = 4  # answers per step
FILE = "lookahead.safetensors"

Answer = tuple[list[int], int]
"""Token ids of a prompt with its answer, and the index at which the answer begins."""


def said_at(model: PreTrainedModel, ids: Sequence[int], places: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Run the model on a text with embeddings [K, D] after the tokens at `places` [G].

    Returns logits at the embeddings, [G, K, V], and at the text's own tokens, [len(ids), V]. Each group of embeddings
    sees the text up to its place, and the group's earlier embeddings.
    """
    head, cache, device = output_head(model), DynamicCache(), model.device
    assert head is not None
    count, groups, size = len(embeddings), len(places), len(ids)
    base: Any = model.base_model
    caching = {cache_argument(forward_arguments(base)): cache, "use_cache": True}
    with torch.no_grad():
        found = base(input_ids=torch.tensor([ids], device=device), **caching)
        own = head(found.last_hidden_state[0])
    seen = (torch.arange(size) <= places[:, None]).repeat_interleave(count, 0)
    group = torch.arange(groups * count) // count
    among = (group[:, None] == group) & (torch.arange(groups * count)[:, None] >= torch.arange(groups * count))
    mask = torch.zeros(1, 1, groups * count, size + groups * count, dtype=model.dtype)
    mask.masked_fill_(~torch.cat([seen, among], 1), torch.finfo(model.dtype).min)
    positions = (places[:, None] + 1 + torch.arange(count)).view(1, -1)
    given = embeddings.to(model.dtype).repeat(groups, 1)[None]
    state = base(inputs_embeds=given, attention_mask=mask, position_ids=positions, **caching).last_hidden_state[0]
    return head(state).view(groups, count, -1), own


class LookaheadTrainer:
    """Trains embeddings [K, D] for one frozen model."""

    def __init__(self, model: PreTrainedModel, count: int, rate: float) -> None:
        self._model = model
        model.requires_grad_(requires_grad=False)
        table = weights_of(model)[1].detach().float()
        noise = torch.randn(count, table.shape[1], generator=torch.Generator().manual_seed(0))
        self.embeddings = (table.mean(0) + 0.1 * table.std() * noise).requires_grad_()
        self._optimizer = torch.optim.Adam([self.embeddings], lr=rate)
        self.step = 0

    def train(self, answers: Sequence[Answer], until: float, start: float) -> float:
        """Do one training step and return its loss. The learning rate falls to zero from time `start` to `until`."""
        rng = random.Random(self.step)
        total = 0.0
        self._optimizer.zero_grad()
        for ids, begins in rng.sample(answers, min(ROWS, len(answers))):
            places = self._places(ids, begins, rng)
            guessed, own = said_at(self._model, ids, places, self.embeddings)
            wanted = own[places[:, None] + 1 + torch.arange(len(self.embeddings))].float().softmax(-1)
            loss = -(wanted * guessed.float().log_softmax(-1)).sum(-1).mean() / ROWS
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        for group in self._optimizer.param_groups:
            group["lr"] = group.setdefault("first", group["lr"]) * max(0.05, (until - time.time()) / (until - start))
        self._optimizer.step()
        self.step += 1
        return total

    @torch.no_grad()
    def accuracy(self, answers: Sequence[Answer]) -> dict[str, list[float]]:
        """As `training.head_trainer.Trainer.accuracy`, for each embedding."""
        right = torch.zeros(2, len(self.embeddings))
        total, rng = 0, random.Random(0)
        for ids, begins in answers:
            places = self._places(ids, begins, rng)
            best = said_at(self._model, ids, places, self.embeddings)[0].topk(5).indices
            came = torch.tensor(ids)[places[:, None] + 2 + torch.arange(len(self.embeddings))]
            hits = best == came[..., None]
            right += torch.stack([hits[..., 0].sum(0), hits.any(-1).sum(0)])
            total += len(places)
        top1, top5 = ([round(float(each), 4) for each in row] for row in right / max(total, 1))
        return {"top1": top1, "top5": top5}

    def _places(self, ids: Sequence[int], begins: int, rng: random.Random) -> Tensor:
        ends = len(ids) - 1 - len(self.embeddings)
        chosen = rng.sample(range(begins - 1, ends), min(GROUPS, ends - begins + 1))
        return torch.tensor(sorted(chosen))


def read_answers(states: Path, least: int) -> list[list[Answer]]:
    """The answers with at least `least` tokens in each shard of `training.heads`, with their prompts."""
    found = list[list[Answer]]()
    for path in shards(states):
        if path.name.startswith("outputs"):
            answers = [tokens.tolist() for tokens, _ in read_shard(path)]
            pairs = zip(read_prompts(path), answers, strict=True)
            found.append([([*prompt, *answer], len(prompt)) for prompt, answer in pairs if len(answer) >= least])
    return found


def load_embeddings(folder: Path) -> Tensor:
    """Load the embeddings of a run. [K, D]"""
    return load_file(folder / FILE)["embeddings"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--states", type=Path, required=True, help="folder of the states of a run of training.heads")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=3, help="number of embeddings")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args(arguments)
    import copyspec

    engine = copyspec.load(given.model, dtype=given.dtype)
    held, *others = read_answers(given.states, given.count + 2)
    learned = [each for shard in others for each in shard] or held
    trainer = LookaheadTrainer(engine.model, given.count, given.rate)
    given.out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    until, losses = start + 60 * given.minutes, list[float]()
    while trainer.step < given.steps and time.time() < until:
        losses.append(trainer.train(learned, until, start))
        last = trainer.step >= given.steps or time.time() >= until
        if trainer.step % 20 == 0 or last:
            line: dict[str, object] = {"step": trainer.step, "loss": round(sum(losses) / len(losses), 4)}
            line |= trainer.accuracy(held[:: max(1, len(held) // (32 if last else 8))])
            losses = []
            print(json.dumps(line), flush=True)
            append_log(given.out, line)
            save_tensors(given.out / FILE, {"embeddings": trainer.embeddings})


if __name__ == "__main__":
    main()
