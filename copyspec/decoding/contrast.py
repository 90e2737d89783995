"""The weaker model of contrastive decoding, which scores the trees that the target verifies, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyspec.targets.base import Session, Target
from copyspec.tree import DraftTree
from copyspec.verification.contrast import ContrastOptions

if TYPE_CHECKING:
    import torch


class Contrast:
    """The weaker model's view of one row: speculative contrastive decoding (Yuan et al. 2024, arXiv 2311.08981).

    Both models score each node of the tree, so that drafts are verified against the contrasted logits.
    """

    def __init__(self, amateur: Target, options: ContrastOptions) -> None:
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
                    f"a prompt of {len(tokens)} tokens does not fit into the model of contrast=, which reads {limit}; "
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
        amateur_logits = self._session.score([uncached], [tree])[0, : len(logits)]
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
