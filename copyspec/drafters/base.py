"""The drafter's seam: one verb to propose, one to be told what was kept, and one, if wanted, to see the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from copyspec.budget import Budget
from copyspec.targets.hooks.states import LAST
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch

    from copyspec.targets.hooks.states import RowStates


class Drafter(Protocol):
    """Drafts for one row. Made with the row's prompt and sources, it follows the output token by token.

    What it drafts never changes the output: the target's own token, noise included, decides at every node. A drafter
    that copies knows nothing of that noise; a model may draw with it (`LanguageModelDrafter` says why that is exact).

    A drafter that has a method `observe(scored: ScoredDraft)` is shown the target's logits after every pass, before
    `accept`; where it also has an attribute `observes`, only while that is true. Where an attribute `wants_states` is
    true, it is given the target's last hidden states too, and of the layers in `wanted_layers`, where it has that, what
    they were given.
    """

    def propose(self, budget: Budget) -> DraftTree:
        """A tree of continuations of the output so far, at most `budget.max_nodes` nodes. It may be empty."""
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """Tells which tokens joined the output since the last call: the accepted path and the target's own token."""
        ...


class ScoredDraft:
    """What one pass of the target said of a row's draft."""

    def __init__(self, tree: DraftTree, logits: torch.Tensor, states: RowStates | None = None) -> None:
        """`logits`: after the root and after each node of `tree`. [1 + m, V]
        `states`: of the tokens that the pass read, the last of them root and nodes; None where nobody wanted them, or
        where the pass keeps none. Valid until the next pass."""
        self.tree = tree
        self.logits = logits
        self._states = states

    @property
    def states(self) -> torch.Tensor | None:
        """What the target's output head made the logits of, [1 + m, D]; None where they were not kept."""
        if self._states is None:
            return None
        return self._states[LAST][-1 - len(self.tree) :]

    def read_states(self, layers: Sequence[int] = (LAST,)) -> torch.Tensor | None:
        """States of all tokens that the pass read, as far as they were kept: of a prompt, then root and nodes. Those of
        several layers stand side by side. [c + m, D * layers]"""
        import torch

        if self._states is None or any(layer not in self._states for layer in layers):
            return None
        return torch.cat([self._states[layer] for layer in layers], -1)

    def top(self, count: int) -> list[list[tuple[int, float]]]:
        """The likeliest tokens after the root and each node, with their probabilities, read in one copy. [1 + m]"""
        import torch

        with torch.inference_mode():
            best = self.logits.float().softmax(-1).topk(min(count, self.logits.shape[-1]))
            table = torch.stack([best.indices.double(), best.values.double()], -1).tolist()
        return [[(int(token), probability) for token, probability in row] for row in table]


def observes(drafter: object) -> bool:
    """Whether it is to be shown the target's logits."""
    return callable(getattr(drafter, "observe", None)) and bool(getattr(drafter, "observes", True))


def wants_states(drafter: object) -> bool:
    """Whether it is to be given the target's hidden states."""
    return observes(drafter) and bool(getattr(drafter, "wants_states", False))


def wanted_layers(drafter: object) -> Sequence[int]:
    """Layers of the target whose inputs it is to be given beside the last states."""
    found: Sequence[int] = getattr(drafter, "wanted_layers", ())
    return found
