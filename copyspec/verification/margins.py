"""Score margins: how close the choice of a token was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Margin:
    """The two best scores at an output token, after processors (and noise when sampling)."""

    token: int
    score: float
    runner_up: int
    runner_up_score: float


def check_picked(scores: torch.Tensor, token: int, position: int) -> None:
    """Raise ValueError if the token at output position `position` was picked from scores, [V], that are NaN or all
    -inf."""
    if not float(scores[token]) > -math.inf:
        raise ValueError(why_unpicked(scores, position))


def why_unpicked(scores: torch.Tensor, position: int, *, changed: bool = False) -> str:
    """Why no token can be picked from scores that are NaN or all -inf. `changed`: the model's own held no NaN."""
    if not bool(scores.isnan().any()):
        return (
            f"every token's score is -inf at output token {position}: logit_bias or a logits_processor forbids all "
            "tokens"
        )
    if changed:
        return f"a logits_processor turned the model's scores into NaN at output token {position}"
    return (
        f"the model's scores are NaN at output token {position}: its weights are damaged, or too large for their "
        "type (try dtype='float32'), or a logits_processor returned inf"
    )


def best_two(scores: torch.Tensor) -> Margin:
    """Return the two best of one position's scores, [V]."""
    values, tokens = scores.float().topk(2)
    (score, runner_up_score), (token, runner_up) = values.tolist(), tokens.tolist()
    return Margin(token=token, score=score, runner_up=runner_up, runner_up_score=runner_up_score)
