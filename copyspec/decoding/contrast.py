"""The weaker model of contrastive decoding: it scores the trees that the target verifies, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyspec.targets.base import Session, Target
from copyspec.tree import DraftTree
from copyspec.verification.contrast import ContrastOptions

if TYPE_CHECKING:
    import torch


class Contrast:
    """One row's. Speculative contrastive decoding (Yuan et al. 2024, arXiv 2311.08981): what the weaker model says of
    each node of a tree is known with what the target says of it, so that drafts are verified by the contrast."""

    def __init__(self, amateur: Target, options: ContrastOptions) -> None:
        self._amateur, self._options = amateur, options
        self._session: Session | None = None

    @property
    def max_length(self) -> int | None:
        """Positions that the weaker model can hold."""
        return self._amateur.max_length

    def scores(
        self, prompt: Sequence[int], output: Sequence[int], tree: DraftTree, logits: torch.Tensor
    ) -> torch.Tensor:
        """What tokens are picked from after `prompt` and `output` and after each node of `tree`, given the target's
        logits there. [1 + m, V]"""
        if self._session is None:
            self._session = self._amateur.open([prompt])
        chain = [*self._amateur.start(prompt), *output][self._session.lengths[0] :]
        said = self._session.score([chain], [tree])[0, : len(logits)]
        return self._options(logits, said.to(logits.device))

    def keep(self, path: Sequence[int]) -> None:
        """The accepted nodes of the last tree."""
        if self._session is not None:
            self._session.keep([path])

    def close(self) -> None:
        """Frees the weaker model's cache."""
        if self._session is not None:
            self._session.close()
            self._session = None
