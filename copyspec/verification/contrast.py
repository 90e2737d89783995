"""Contrastive decoding: prefer the tokens to which a model gives higher scores than a weaker model does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from copyspec.checks import check_number

if TYPE_CHECKING:
    import torch

DEFAULT_STRENGTH = 0.5
DEFAULT_CUTOFF = 0.1

DISTANCE = 2.0**33
"""Excluded tokens are so far below the others that their probability is 0 at every temperature. -inf would leave no
token where a grammar or a logits processor forbids all others. A power of two keeps small differences."""


@dataclass(frozen=True, slots=True)
class ContrastOptions:
    """How the logits of two models are combined. Raises ValueError with the option, its value and the valid range.

    The score is (1 + strength) * target - strength * weaker model. Tokens with less than cutoff times the probability
    of the target's best token are excluded (Li et al. 2023, arXiv 2210.15097, in the form of O'Brien and Lewis 2023,
    arXiv 2309.09117, equation 2, also used by speculative contrastive decoding: Yuan et al. 2024, arXiv 2311.08981).
    """

    strength: float = DEFAULT_STRENGTH  # beta
    cutoff: float = DEFAULT_CUTOFF  # alpha

    def __post_init__(self) -> None:
        check_number("contrast_strength", self.strength, low=0.0, high=100.0, why="0: the model alone, cut off")
        check_number("contrast_cutoff", self.cutoff, low=0.0, high=1.0, open_low=True, why="1: the best token alone")

    def __call__(self, expert: torch.Tensor, amateur: torch.Tensor) -> torch.Tensor:
        """Combine two models' logits, [..., V] each, into scores in float32. Those of excluded tokens are below all
        others, in the target's order."""
        expert, amateur = expert.float(), amateur.float()
        best = expert.amax(-1, keepdim=True)
        is_excluded = expert < best + math.log(self.cutoff)
        # A token that the weaker model forbids (-inf) counts as its least likely one, not as infinitely better.
        amateur = amateur.maximum(amateur.masked_fill(amateur == -math.inf, math.inf).amin(-1, keepdim=True))
        scores = (1.0 + self.strength) * expert - self.strength * amateur
        lowest = scores.masked_fill(is_excluded, 0.0).amin(-1, keepdim=True)
        return scores.where(~is_excluded, lowest - DISTANCE * (best - expert + 1.0))
