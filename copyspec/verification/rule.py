"""The seam of `rule=`: other ways to choose tokens than the target's own (`walk`, `picking`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from copyspec.options import SamplingOptions
    from copyspec.targets.base import Target
    from copyspec.tree import DraftTree
    from copyspec.verification.picking import Picker, Picks


class Rule(Protocol):
    """A rule that accepts draft tokens, or scores them with a second model. It is frozen and stateless."""

    name: ClassVar[str]

    @property
    def model(self) -> object:
        """The second model, given like `draft_model`; it drafts, too. None: the rule needs none."""

    def check(self, sampling: SamplingOptions) -> None:
        """Raise ValueError if the rule cannot decode with these options."""

    def uses_drafts(self, sampling: SamplingOptions) -> bool:
        """Whether the output depends on what is drafted: `picks` then takes the place of the default."""

    def picks(self, picker: Picker, logits: torch.Tensor, tree: DraftTree) -> Picks:
        """The picks of one row and step; `logits` [1 + m, V] of the root and each node of `tree`."""

    def rescorer(self, model: Target) -> Rescorer:
        """One row's view of the second model."""


class Rescorer(Protocol):
    """Replaces the target's logits of one row by scores of its own, at the root and at each node of a draft."""

    @property
    def max_length(self) -> int | None:
        """Number of positions that its model supports."""

    def check(self, prompt: Sequence[int]) -> None:
        """Raise ValueError for a prompt that its model cannot read."""

    def scores(
        self, prompt: Sequence[int], output: Sequence[int], tree: DraftTree, logits: torch.Tensor
    ) -> torch.Tensor:
        """Scores after `prompt` and `output`, and after each node of `tree`, [1 + m, V], from the target's logits."""

    def keep(self, path: Sequence[int]) -> None:
        """Keep the accepted nodes of the last tree."""

    def close(self) -> None:
        """Free what it holds."""
