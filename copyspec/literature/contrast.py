"""Contrastive decoding: prefer the tokens to which a model gives higher scores than a weaker model does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn

from copyspec.common.checks import check_number
from copyspec.targets.base import Session, Target
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.options import SamplingOptions
    from copyspec.verification.picking import Picker

DISTANCE = 2.0**33
"""Excluded tokens are so far below the others that their probability is 0 at every temperature. -inf would leave no
token where a grammar or a logits processor forbids all others. A power of two keeps small differences."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """For `rule=`: a weaker `model`, given like `draft_model`, whose scores are subtracted from the target's.

    The score is (1 + strength) * target - strength * weaker model. Tokens with less than cutoff times the probability
    of the target's best token are excluded (Li et al. 2023, arXiv 2210.15097, in the form of O'Brien and Lewis 2023,
    arXiv 2309.09117, equation 2, also used by speculative contrastive decoding: Yuan et al. 2024, arXiv 2311.08981).
    Raises ValueError for a number out of range.
    """

    name: ClassVar[str] = "contrast"

    model: object
    strength: float = 0.5  # beta
    cutoff: float = 0.1  # alpha

    def __post_init__(self) -> None:
        check_number("strength", self.strength, low=0.0, high=100.0, why="0: the model alone, cut off")
        check_number("cutoff", self.cutoff, low=0.0, high=1.0, open_low=True, why="1: the best token alone")

    def check(self, sampling: SamplingOptions) -> None:
        """It decodes with any options."""

    def uses_drafts(self, sampling: SamplingOptions) -> bool:
        """False: drafts are verified by the contrasted scores, which do not depend on them."""
        return False

    def picks(self, picker: Picker, logits: torch.Tensor, tree: DraftTree) -> NoReturn:
        """Not called: the default picks from the contrasted scores."""
        raise NotImplementedError

    def rescorer(self, model: Target) -> Contrasted:
        """One row's view of the weaker model."""
        return Contrasted(model, self)

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


class Contrasted:
    """The weaker model's view of one row: speculative contrastive decoding (Yuan et al. 2024, arXiv 2311.08981).

    Both models score each node of the tree, so that drafts are verified against the contrasted logits.
    """

    def __init__(self, amateur: Target, options: Contrast) -> None:
        self._amateur, self._options = amateur, options
        self._session: Session | None = None

    @property
    def max_length(self) -> int | None:
        """Number of positions that the weaker model supports."""
        return self._amateur.max_length

    def check(self, prompt: Sequence[int]) -> None:
        """Raise ValueError for a prompt that the weaker model cannot read."""
        amateur = self._amateur
        for tokens, limit in ((prompt, amateur.encoder_length), (amateur.start(prompt), amateur.max_length)):
            if limit is not None and len(tokens) > limit:
                raise ValueError(
                    f"a prompt of {len(tokens)} tokens does not fit into the model of rule=, which reads {limit}; "
                    "shorten it, or take a weaker model that reads as much as the model"
                )

    def scores(
        self, prompt: Sequence[int], output: Sequence[int], tree: DraftTree, logits: torch.Tensor
    ) -> torch.Tensor:
        """Contrasted scores after `prompt` and `output`, and after each node of `tree`, [1 + m, V], from the target's
        logits there."""
        if self._session is None:
            self._session = self._amateur.open([prompt])
        uncached = [*self._amateur.start(prompt), *output][self._session.lengths[0] :]
        amateur_logits = self._session.score([uncached], [tree])[0]
        return self._options(logits, amateur_logits.to(logits.device))

    def keep(self, path: Sequence[int]) -> None:
        """Keep the accepted nodes of the last tree in the weaker model's cache."""
        if self._session is not None:
            self._session.keep([path])

    def close(self) -> None:
        """Free the weaker model's cache."""
        if self._session is not None:
            self._session.close()
            self._session = None
