"""Score margins: how close the choice of a token was."""

from __future__ import annotations

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
    """Raise ValueError if the token at output position `position` was picked from scores, [V], that are NaN."""
    if bool(scores[token].isnan()):
        raise ValueError(
            f"the model's scores are NaN at output token {position}: its weights are damaged, or too large for their "
            "type (try dtype='float32')"
        )


def best_two(scores: torch.Tensor) -> Margin:
    """Return the two best of one position's scores, [V]."""
    values, tokens = scores.float().topk(2)
    (score, runner_up_score), (token, runner_up) = values.tolist(), tokens.tolist()
    return Margin(token=token, score=score, runner_up=runner_up, runner_up_score=runner_up_score)
