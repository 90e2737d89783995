"""Plain decoding, row by row as `generate` does it, for models that cannot take back a rejected draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from copyspec.targets.causal import WrappedModel, training_error
from copyspec.targets.generation import Arguments, prepared
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.hooks.step import next_arguments
from copyspec.targets.rows import RowSessions
from copyspec.targets.seq2seq import first_tokens
from copyspec.targets.tree_cache import check_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session
    from copyspec.targets.facts import ModelFacts
    from copyspec.targets.hooks.states import RowStates
    from copyspec.tree import DraftTree

_INNER_STATE = ("conv1d_state", "recurrent_states")
"""Attributes in which RecurrentGemma stores the state of its last call on its own modules."""


class PlainTarget(WrappedModel):
    """A target that only ever scores the next token."""

    supports_drafts = False

    def __init__(self, model: PreTrainedModel, facts: ModelFacts) -> None:
        super().__init__(model, facts, supports_trees=False)

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0, *, keeps_states: bool = False) -> Session:
        if self.model.training:
            raise training_error(self.model)
        return RowSessions([PlainSession(self, prompt) for prompt in prompts])

    def start(self, prompt: Sequence[int]) -> list[int]:
        return first_tokens(self.model) if self.is_encoder_decoder else list(prompt)


class PlainSession:
    """One row, which starts and steps like `generate`, through the model's own methods for preparing inputs."""

    runner = "eager"
    is_settled = True
    computed = None

    def __init__(self, target: PlainTarget, prompt: Sequence[int]) -> None:
        self._model, self._facts = target.model, target.facts
        self._generation: Any = target.model  # typed Any, since its type does not show GenerationMixin's methods
        self._prompt = list(prompt)
        self._ids = torch.empty((1, 0), dtype=torch.long, device=target.facts.device)
        self._arguments: Arguments = {}
        parts = [(part, name) for part in target.model.modules() for name in _INNER_STATE if hasattr(part, name)]
        self._inner: dict[tuple[torch.nn.Module, str], object] = dict.fromkeys(parts)

    @property
    def lengths(self) -> Sequence[int]:
        return [self._ids.shape[1]]

    def score_with_states(
        self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[torch.Tensor, Sequence[RowStates] | None]:
        return self.score(uncached, trees), None  # no drafter can use them

    @in_inference_mode
    def score(self, uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> torch.Tensor:
        check_rows(1, uncached, trees)
        if len(trees[0]):
            raise ValueError(f"{type(self._model).__name__} is decoded plainly: trees must be empty")
        ids = list(uncached[0])
        if not self._ids.shape[1]:
            first = ids[:1] if self._model.config.is_encoder_decoder else ids
            prompt = self._prompt if self._model.config.is_encoder_decoder else ids
            self._ids, self._arguments = prepared(self._model, prompt, first, use_cache=True)
            logits = self._pass(is_first=True)
            ids = ids[len(first) :]
        for token in ids:
            new = torch.tensor([[token]], device=self._ids.device)
            self._ids = torch.cat([self._ids, new], dim=1)
            logits = self._pass(is_first=False)
        return logits

    def _pass(self, *, is_first: bool) -> torch.Tensor:
        """Run one step of `generate`; return the logits after the last token, [1, 1, V]."""
        step = None if is_first or not self._arguments["use_cache"] else 1
        inputs = self._generation.prepare_inputs_for_generation(
            self._ids, next_sequence_length=step, is_first_iteration=is_first, **self._arguments
        )
        with self._inner_state():
            outputs = self._model(**inputs, return_dict=True)
        self._arguments = next_arguments(
            self._generation, outputs, self._arguments, is_encoder_decoder=self._model.config.is_encoder_decoder
        )
        logits: torch.Tensor = outputs.logits[:, -1:]
        return logits

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Do nothing: the tokens are already in the model's state, and there are no drafts."""

    def trim(self, lengths: Sequence[int]) -> None:
        raise NotImplementedError(f"{type(self._model).__name__} cannot go back to an earlier token")

    def select(self, rows: Sequence[int]) -> None:
        if list(rows) != [0]:
            raise ValueError(f"a session of one row keeps row 0, got {list(rows)!r}")

    def join(self, other: Session) -> None:
        raise NotImplementedError("a session of one row is joined by others inside RowSessions")

    def close(self) -> None:
        self._arguments, self._inner = {}, {}

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
