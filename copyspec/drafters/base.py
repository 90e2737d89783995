"""The drafter interface: `propose` a draft tree, `accept` the tokens that were kept, and if wanted `observe` logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from copyspec.budget import Budget
from copyspec.targets.base import LAST, RowStates
from copyspec.tree import DraftTree

if TYPE_CHECKING:
    import torch


class Rider(Protocol):
    """A network whose steps ride on a pass: they follow the accepted paths on the device, and their results come with
    the read of the picks."""

    def ride(
        self, rows: Sequence[tuple[Any, ScoredDraft]], picks: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[list[float]], None]] | None:
        """Compute drafts for these predictors after `picks`, the tokens picked at all nodes of the pass, [N]. Returns
        float32 numbers, [n], and what takes them on the host; None if that fails."""


Riders = dict["Rider", "list[tuple[Any, ScoredDraft]]"]
"""The networks that ride on a pass, and their rows."""


class Drafter(Protocol):
    """Drafts for one row (one sequence of the batch). It is made with the row's prompt and sources.

    Under the default rule the draft never changes the output: each output token is the argmax of the target's scores
    plus the noise of its position, whatever was drafted. The draft only decides whether the target's forward pass has
    already been made, so a draft model may draw with the same noise (coupled drafting). The other verification rules
    draw random numbers of their own, independent of this noise; for them such a draft is deterministic, like a copy.

    Optional members: a method `observe(scored: ScoredDraft)` receives the target's logits after every forward pass,
    before `accept`; if the drafter also has an attribute `observes`, only while that is true. If `wants_states` is
    true, `scored` carries the target's last hidden states, and the inputs of the layers listed in `wanted_layers`.
    `unmeasured`: seconds of the last `propose` that tell nothing about the next ones, such as those in which a draft
    model was loaded; they do not count against the row's drafts.
    `begin(budget)` is called for all rows of a pass before `propose` is, with the same budget: rows that need a step of
    one network say so, and the first `propose` takes it for all of them.
    """

    def propose(self, budget: Budget) -> DraftTree:
        """Return a tree of continuations of the output, of at most `budget.max_nodes` nodes; it may be empty."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output: the accepted path of the last tree and the target's own next token."""


class ScoredDraft:
    """The target's logits, and hidden states if they were kept, for one row's draft tree in one forward pass."""

    def __init__(
        self,
        tree: DraftTree,
        logits: torch.Tensor,
        states: RowStates | None = None,
        riders: Riders | None = None,
        start: int = 0,
    ) -> None:
        """`logits`: after the root and after each node of `tree`. [1 + m, V]
        `states`: hidden states of the tokens that the pass read, ending with the root and the nodes; None if nobody
        asked for them or the pass keeps none. Valid until the next pass.
        `riders`: to which a network's rows may be added; None: the host reads more than the picks.
        `start`: place of the root among the picks of the pass."""
        self.tree, self.riders, self.start = tree, riders, start
        self._logits = logits
        self._copy: torch.Tensor | None = None
        self._states = states

    @property
    def logits(self) -> torch.Tensor:
        """The target's logits after the root and after each node, [1 + m, V]: a copy, since tokens are still picked
        from the original."""
        if self._copy is None:
            self._copy = self._logits.clone()
        return self._copy

    @property
    def states(self) -> torch.Tensor | None:
        """The inputs of the target's output head, one for each row of `logits`, [1 + m, D]; None if not kept."""
        if self._states is None:
            return None
        return self._states[LAST][-1 - len(self.tree) :]

    def read_states(self, layers: Sequence[int] = (LAST,)) -> torch.Tensor | None:
        """Hidden states of all tokens that the pass read: prompt tokens if any, then the root and the nodes. The states
        of several layers are concatenated. [c + m, D * layers]; None if one of the layers was not kept."""
        import torch

        states = self.states_of(layers)
        return None if states is None else torch.cat(states, -1)

    def states_of(self, layers: Sequence[int]) -> list[torch.Tensor] | None:
        """As `read_states`, for each layer. [c + m, D] each"""
        if self._states is None or any(layer not in self._states for layer in layers):
            return None
        return [self._states[layer] for layer in layers]

    def top(self, count: int) -> list[list[tuple[int, float]]]:
        """The `count` most likely tokens after the root and each node, with their probabilities. [1 + m]

        They are copied to the host in one transfer."""
        import torch

        from copyspec.targets.hooks.inference import inference_mode

        with inference_mode(True):
            best = self._logits.float().softmax(-1).topk(min(count, self._logits.shape[-1]))
            table = torch.stack([best.indices.double(), best.values.double()], -1).tolist()
        return [[(int(token), probability) for token, probability in row] for row in table]


class Composite:
    """Passes the target's logits and hidden states on to the drafters or predictors that it consists of."""

    _parts: Sequence[object]

    @property
    def observes(self) -> bool:
        """As `Drafter.observes`: whether one of the parts needs the logits."""
        return any(map(observes, self._parts))

    @property
    def wants_states(self) -> bool:
        """As `Drafter.wants_states`."""
        return any(map(wants_states, self._parts))

    @property
    def wanted_layers(self) -> Sequence[int]:
        """As `Drafter.wanted_layers`."""
        return sorted({layer for part in self._parts for layer in wanted_layers(part)})

    def observe(self, scored: ScoredDraft) -> None:
        """Pass `scored` on to every part that observes."""
        for part in self._parts:
            if observes(part):
                part.observe(scored)  # type: ignore[attr-defined]


def observes(drafter: object) -> bool:
    """Whether `drafter` is to receive the target's logits."""
    return callable(getattr(drafter, "observe", None)) and bool(getattr(drafter, "observes", True))


def wants_states(drafter: object) -> bool:
    """Whether `drafter` is to receive the target's hidden states."""
    return observes(drafter) and bool(getattr(drafter, "wants_states", False))


def wanted_layers(drafter: object) -> Sequence[int]:
    """The target layers whose inputs `drafter` is to receive in addition to the last hidden states."""
    layers: Sequence[int] = getattr(drafter, "wanted_layers", ())
    return layers
