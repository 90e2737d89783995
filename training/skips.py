"""Search for blocks that a model may skip while it drafts: ``python -m training.skips --data DIR --out FILE``.

Draft & Verify (Zhang et al. 2024, arXiv 2309.08168) searches for the set of attention and MLP blocks that saves the
most time at the least loss of accuracy. Its objective, time per token, is computed here from two counts, so that a busy
machine does not distort it: the share of the model's next tokens that the lighter model predicts, on outputs of the
model, and the share of the weights that it reads. The search is evolutionary and changes a few blocks of the best set
at a time. The best set is written after every improvement, and a run resumes from it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from copyspec.drafters.predictors.skipping import SkipSet, load_skips, without_blocks
from copyspec.filesystem import replacing
from training.chat_requests import Requests
from training.outputs import answered_chats

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_DRAFT = 8  # maximum draft length that the objective considers
CHANGES = 3  # maximum number of blocks changed per try
START_SHARE = 0.4  # share of the blocks skipped by the first set: those in the middle


@dataclass(frozen=True)
class Score:
    """How good a skip set is."""

    speed: float  # tokens per pass time of the full model, at the best draft length
    agreement: float  # share of the model's next tokens it predicts
    cost: float  # time of its pass, relative to the full model
    draft: int  # best draft length


class Judge:
    """Scores skip sets on texts for which the model's own next tokens are known."""

    def __init__(self, model: PreTrainedModel, texts: Sequence[tuple[list[int], int]]) -> None:
        """`texts`: token ids, and the index at which the model's own output begins."""
        self._model, self._texts = model, texts
        with torch.inference_mode():
            self._own = [
                model(torch.tensor([ids]), use_cache=False).logits[0, start - 1 : -1].argmax(-1) for ids, start in texts
            ]
        stack = cast("torch.nn.ModuleList", model.base_model.layers)
        self._attention = [_weights(layer.get_submodule("self_attn")) for layer in stack]
        self._mlp = [_weights(layer.get_submodule("mlp")) for layer in stack]
        self._whole = sum(self._attention) + sum(self._mlp) + _weights(model.get_input_embeddings())

    @property
    def layers(self) -> int:
        return len(self._mlp)

    @torch.inference_mode()
    def score(self, skips: SkipSet) -> Score:
        lighter = without_blocks(self._model, skips)
        right = total = 0
        for (ids, start), own in zip(self._texts, self._own, strict=True):
            said = lighter(torch.tensor([ids]), use_cache=False).logits[0, start - 1 : -1].argmax(-1)
            right, total = right + int((said == own).sum()), total + len(own)
        skipped = sum(self._attention[each] for each in skips.attention) + sum(self._mlp[each] for each in skips.mlp)
        return best_draft(right / max(total, 1), 1 - skipped / self._whole)


def best_draft(agreement: float, cost: float) -> Score:
    """The best draft length: n tokens cost n passes of the lighter model and one pass of the full model."""
    found = [
        Score(sum(agreement**k for k in range(n + 1)) / (1 + n * cost), agreement, cost, n)
        for n in range(1, MAX_DRAFT + 1)
    ]
    return max(found, key=lambda each: each.speed)


def search(judge: Judge, out: Path, first: SkipSet, *, tries: int, until: float, seed: int) -> Score:
    """Search by changing the best set a little at a time."""
    rng, best, held = random.Random(seed), judge.score(first), first
    _write(out, judge, held, best)
    for number in range(tries):
        if time.time() > until:
            break
        attention, mlp = set(held.attention), set(held.mlp)
        for _ in range(rng.randint(1, CHANGES)):
            rng.choice((attention, mlp)).symmetric_difference_update({rng.randrange(judge.layers)})
        if len(attention) == judge.layers:
            continue
        tried = SkipSet(frozenset(attention), frozenset(mlp))
        score = judge.score(tried)
        if score.speed > best.speed:
            best, held = score, tried
            _write(out, judge, held, best)
            print(json.dumps({"try": number, **_figures(best)}), flush=True)
    return best


def middle(layers: int) -> SkipSet:
    """A first set: blocks between the first and the last layers."""
    count = int(START_SHARE * layers)
    blocks = frozenset(range((layers - count) // 2, (layers + count) // 2))
    return SkipSet(blocks, blocks)


def _write(out: Path, judge: Judge, skips: SkipSet, score: Score) -> None:
    with replacing(out) as file:
        file.write(json.dumps({**skips.to_dict(judge.layers), "measured": _figures(score)}).encode() + b"\n")


def _figures(score: Score) -> dict[str, float]:
    return {
        "speed": round(score.speed, 4), "agreement": round(score.agreement, 4), "cost": round(score.cost, 4),
        "draft": score.draft,
    }  # fmt: skip


def _weights(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16", help="data type of the model during the search")
    given = parser.parse_args(arguments)
    import copyspec

    until = time.time() + 60 * given.minutes
    engine = copyspec.load(given.model, dtype=given.dtype)
    requests, rng = Requests(given.data), random.Random(given.seed)
    texts = answered_chats(engine, requests, rng, given.rows, given.tokens, sampled=0.0)
    judge = Judge(engine.model, texts)
    if given.out.is_file():
        first = load_skips(given.out, engine.model)
    else:
        first = max(middle(judge.layers), SkipSet(frozenset(), frozenset()), key=lambda each: judge.score(each).speed)
    best = search(judge, given.out, first, tries=given.tries, until=until, seed=given.seed)
    print(json.dumps(_figures(best)))


if __name__ == "__main__":
    main()
