"""Decoding as `generate` does it, row by row, through the model's own methods and its own cache, for models whose
passes cannot be made otherwise: with chains of draft tokens where the model reads several tokens at once, or without
drafts.

Before a draft is read, the cache is copied. If some of it is rejected, the copy takes its place, and the accepted
tokens are read again together with the next draft, so that no pass is added; after MAX_WAITING such tokens, they are
read in a pass of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from copyspec.targets.base import Scores
from copyspec.targets.eager.causal import WrappedModel, only_chain
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.step import next_arguments
from copyspec.targets.model.facts import training_error
from copyspec.targets.model.generation import Arguments, prepared
from copyspec.targets.rows.passes import check_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import RowStates, Session
    from copyspec.targets.model.facts import ModelFacts
    from copyspec.tree import DraftTree

MAX_WAITING = 32
"""Accepted tokens that are read again with each draft, at most."""

_INNER_STATE = ("conv1d_state", "recurrent_states")
"""Attributes in which RecurrentGemma stores the state of its last call on its own modules."""


class PlainTarget(WrappedModel):
    """A target that steps as `generate` does. Without `supports_drafts` it only ever scores the next token."""

    is_plain = True

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, *, supports_drafts: bool = False) -> None:
        super().__init__(model, facts, supports_trees=False)
        self.supports_drafts = supports_drafts

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        if self.model.training:
            raise training_error(self.model)
        return PlainSession(self, prompts)


class _Draft(NamedTuple):
    """A draft that was read."""

    before: tuple[Arguments, torch.Tensor, dict[tuple[torch.nn.Module, str], object]]
    tokens: list[int]  # read before it in the same pass
    chain: list[int]


class PlainSession:
    """Rows, each of which starts and steps like `generate`."""

    runner = "eager"
    is_settled = True
    computes = None
    most_tokens = most_nodes = sys.maxsize

    def __init__(self, target: PlainTarget, prompts: Sequence[Sequence[int]]) -> None:
        self._target = target
        self._rows: list[PlainRow] = []
        self.add(prompts)

    @property
    def lengths(self) -> Sequence[int]:
        return [row.length for row in self._rows]

    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> Scores:
        check_rows(len(self._rows), uncached, trees)
        return Scores.of_rows([*map(PlainRow.score, self._rows, uncached, trees)])

    def score_with_states(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        return self.score(uncached, trees), None  # no drafter can use them

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in zip(self._rows, paths, strict=False):
            row.keep(path)

    def trim(self, lengths: Sequence[int]) -> None:
        for row, length in zip(self._rows, lengths, strict=True):
            row.trim(length)

    def select(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        self._rows += [PlainRow(self._target, prompt) for prompt in prompts]

    def close(self) -> None:
        self._rows = []


class PlainRow:
    """One row, run through the model's own methods for preparing inputs."""

    def __init__(self, target: PlainTarget, prompt: Sequence[int]) -> None:
        self._model, self._supports_drafts = target.model, target.supports_drafts
        self._generation: Any = target.model  # typed Any, since its type does not show GenerationMixin's methods
        self._prompt = list(prompt)
        self._ids = torch.empty((1, 0), dtype=torch.long, device=target.facts.device)
        self._arguments: Arguments = {}
        self._waiting: list[int] = []  # accepted tokens that the cache does not hold
        self._draft: _Draft | None = None  # of the last pass
        parts = [(part, name) for part in target.model.modules() for name in _INNER_STATE if hasattr(part, name)]
        self._inner: dict[tuple[torch.nn.Module, str], object] = dict.fromkeys(parts)

    @property
    def length(self) -> int:
        """Number of tokens that are cached, or accepted and waiting."""
        return self._ids.shape[1] + len(self._waiting)

    @in_inference_mode
    def score(self, uncached: Sequence[int], tree: DraftTree) -> torch.Tensor:
        """The logits after the last uncached token and each node, [1 + m, V]."""
        ids, chain = list(uncached), list(only_chain(tree))
        if chain and not self._supports_drafts:
            raise ValueError(f"{type(self._model).__name__} is decoded plainly: trees must be empty")
        logits: torch.Tensor | None = None
        if not self._ids.shape[1]:
            reads = self._model.config.is_encoder_decoder
            first = ids[:1] if reads else ids[: len(ids) - bool(chain and len(ids) > 1)]  # a prompt is read once
            prompt = self._prompt if reads else first
            self._ids, self._arguments = prepared(self._model, [prompt], [first], use_cache=True)
            logits = self._pass(len(first), is_first=True)
            ids = ids[len(first) :]
        if chain and ids and len(self._waiting) >= MAX_WAITING:
            self._read(self._waiting)
            self._waiting = []
        if not chain:
            for token in [*self._waiting, *ids]:
                logits = self._read([token])
            self._waiting, self._draft = [], None
            assert logits is not None
            return logits[0, -1:]
        before = deepcopy(self._arguments), self._ids, {place: deepcopy(value) for place, value in self._inner.items()}
        tokens = [*self._waiting, *ids]
        self._draft = _Draft(before, tokens, chain)
        if tokens:
            return self._read([*tokens, *chain])[0, -1 - len(chain) :]
        assert logits is not None  # the draft follows the first pass at once
        return torch.cat([logits[0, -1:], self._read(chain)[0, -len(chain) :]])

    def _read(self, tokens: Sequence[int]) -> torch.Tensor:
        """The logits after each of some more tokens, [1, n, V]."""
        new = torch.tensor([list(tokens)], device=self._ids.device)
        self._ids = torch.cat([self._ids, new], dim=1)
        if len(tokens) > 1:
            self._arguments = next_arguments(self._generation, self._arguments, count=len(tokens) - 1)
        return self._pass(len(tokens), is_first=False)

    def _pass(self, count: int, *, is_first: bool) -> torch.Tensor:
        """Run one step of `generate` on the last `count` tokens; return the logits that it gives."""
        step = None if is_first or not self._arguments["use_cache"] else count
        inputs = self._generation.prepare_inputs_for_generation(
            self._ids, next_sequence_length=step, is_first_iteration=is_first, **self._arguments
        )
        if not is_first:
            inputs.pop("logits_to_keep", None)
        with self._inner_state():
            outputs = self._model(**inputs, return_dict=True)
        self._arguments = next_arguments(self._generation, self._arguments, outputs)
        logits: torch.Tensor = outputs.logits
        return logits

    def keep(self, path: Sequence[int]) -> None:
        """Go back to before the last draft, unless all of it was accepted."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        accepted = len(path)
        if accepted == len(draft.chain):
            self._waiting = []
            return
        self._arguments, self._ids, self._inner = draft.before
        self._waiting = [*draft.tokens, *draft.chain[:accepted]]

    def trim(self, length: int) -> None:
        """Begin anew, unless nothing is cut."""
        if length != self.length:
            self._ids, self._arguments, self._waiting = self._ids[:, :0], {}, []
            self._inner = dict.fromkeys(self._inner)
        self._draft = None

    @contextmanager
    def _inner_state(self) -> Iterator[None]:
        """Let the model hold this row's recurrent state while the context is active, then restore the previous one."""
        before = {place: getattr(*place) for place in self._inner}
        for (part, name), state in self._inner.items():
            setattr(part, name, state)
        try:
            yield
        finally:
            self._inner = {place: getattr(*place) for place in before}
            for (part, name), state in before.items():
                setattr(part, name, state)
