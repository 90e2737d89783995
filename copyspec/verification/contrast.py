"""Contrastive decoding: what a model says above what a weaker one says, too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec.checks import check_number

if TYPE_CHECKING:
    import torch

DEFAULT_STRENGTH = 0.5
DEFAULT_CUTOFF = 0.1


@dataclass(frozen=True, slots=True)
class ContrastOptions:
    """How two models' logits become one. Raises ValueError that names the option, its value and what it may be.

    The target's logits count 1 + strength, the weaker model's -strength; tokens that the target gives less than
    cutoff times the probability of its best one are out (Li et al. 2023, arXiv 2210.15097, in the form of O'Brien and
    Lewis 2023, arXiv 2309.09117, equation 2, which speculative contrastive decoding takes: Yuan et al. 2024, arXiv
    2311.08981).
    """

    strength: float = DEFAULT_STRENGTH  # beta
    cutoff: float = DEFAULT_CUTOFF  # alpha

    def __post_init__(self) -> None:
        check_number("contrast_strength", self.strength, low=0.0, high=100.0, why="0: the model alone, cut off")
        check_number("contrast_cutoff", self.cutoff, low=0.0, high=1.0, open_low=True, why="1: the best token alone")

    def __call__(self, expert: torch.Tensor, amateur: torch.Tensor) -> torch.Tensor:
        """Scores in float32; -inf for what is cut off. [..., V] each"""
        expert, amateur = expert.float(), amateur.float()
        least = expert.amax(-1, keepdim=True) + math.log(self.cutoff)
        scores = (1.0 + self.strength) * expert - self.strength * amateur
        return scores.masked_fill(expert < least, -math.inf)
