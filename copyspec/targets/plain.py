"""Plain decoding of models that cannot take a draft back: each row with the model's own cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache

from copyspec.targets.rows import RowSessions
from copyspec.targets.session import check_rows
from copyspec.targets.wrapped import WrappedModel

if TYPE_CHECKING:
    from copyspec.targets.base import Session
    from copyspec.tree import DraftTree

_INNER_STATE = ("conv1d_state", "recurrent_states")
"""Attributes in which RecurrentGemma keeps the state of its last call, on its own modules."""


class PlainTarget(WrappedModel):
    """A decoder-only model that is only ever given the next token."""

    supports_trees = False
    supports_drafts = False
    is_encoder_decoder = False

    def _open(self, prompts: Sequence[Sequence[int]]) -> Session:
        return RowSessions([PlainSession(self) for _ in prompts])

    def start(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)


class PlainSession:
    """One row. It steps as `generate` does, through the two methods by which a model describes its own state."""

    def __init__(self, target: PlainTarget) -> None:
        self._model, self._facts = target.model, target.facts
        self._generation: Any = target.model  # by the methods of GenerationMixin, which its types do not show
        self._ids = torch.empty((1, 0), dtype=torch.long, device=target.facts.device)
        self._state: dict[str, object] = {"use_cache": True}
        if self._generation._supports_default_dynamic_cache():  # type: ignore[operator]
            config = self._generation.config.get_text_config(decoder=True)
            name = "cache_params" if "cache_params" in target.facts.arguments else "past_key_values"
            self._state[name] = DynamicCache(config=config)
        parts = [(part, name) for part in target.model.modules() for name in _INNER_STATE if hasattr(part, name)]
        self._inner: dict[tuple[torch.nn.Module, str], object] = dict.fromkeys(parts)

    @property
    def lengths(self) -> Sequence[int]:
        return [self._ids.shape[1]]

    @torch.inference_mode()
    def score(self, chains: Sequence[Sequence[int]], trees: Sequence[DraftTree]) -> torch.Tensor:
        check_rows(1, chains, trees)
        if len(trees[0]):
            raise ValueError(f"{type(self._model).__name__} is decoded plainly: trees must be empty")
        first = self._ids.shape[1] == 0
        new = torch.tensor([list(chains[0])], device=self._facts.device)
        self._ids = torch.cat([self._ids, new], dim=1)
        self._state["attention_mask"] = torch.ones_like(self._ids)
        inputs = self._generation.prepare_inputs_for_generation(
            self._ids, next_sequence_length=None if first else 1, is_first_iteration=first, **self._state
        )
        with self._inner_state():
            outputs = self._model(**inputs, return_dict=True)
        self._state = self._generation._update_model_kwargs_for_generation(outputs, self._state)
        logits: torch.Tensor = outputs.logits[:, -1:]
        return logits

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Nothing to do: the chain is in the model's state already, and there are no drafts."""

    def trim(self, lengths: Sequence[int]) -> None:
        raise NotImplementedError(f"{type(self._model).__name__} cannot go back to an earlier token")

    def select(self, rows: Sequence[int]) -> None:
        if list(rows) != [0]:
            raise ValueError(f"a session of one row keeps row 0, got {list(rows)!r}")

    def join(self, other: Session) -> None:
        raise NotImplementedError("a session of one row is joined by others inside RowSessions")

    def close(self) -> None:
        self._state, self._inner = {}, {}

    @contextmanager
    def _inner_state(self) -> Iterator[None]:
        """For its length the model holds this row's state, and then again what it held before."""
        before = {place: getattr(*place) for place in self._inner}
        for (part, name), state in self._inner.items():
            setattr(part, name, state)
        try:
            yield
        finally:
            self._inner = {place: getattr(*place) for place in before}
            for (part, name), state in before.items():
                setattr(part, name, state)
