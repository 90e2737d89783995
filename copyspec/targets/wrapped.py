"""The base class of targets: a model and the facts read from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyspec.targets.facts import ModelFacts, read_device, read_dtype, read_facts
from copyspec.targets.linears import FastLinears

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session


class WrappedModel(ABC):
    """A model with its facts. It may be moved to another device or dtype between sessions, so these are reread."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts) -> None:
        self.model = model
        self._facts = facts
        self._linears: FastLinears | None = None

    @property
    def facts(self) -> ModelFacts:
        held = self._facts
        if read_device(self.model) != held.device or read_dtype(self.model) != held.zero.dtype:
            self._facts, self._linears = read_facts(self.model), None
        return self._facts

    @property
    def linears(self) -> FastLinears:
        """The model's fast linear layers, for passes of few tokens."""
        if self._linears is None:
            self._linears = FastLinears(self.model)
        return self._linears

    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> Session:
        check_mode(self.model)
        return self._open(prompts, new_tokens)

    @abstractmethod
    def _open(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Session:
        """Implements `open`, after `check_mode`."""

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    @property
    def max_length(self) -> int | None:
        return self._facts.max_length

    @property
    def device(self) -> torch.device:
        return self.facts.device


def last_logits(logits: torch.Tensor, kept: int) -> torch.Tensor:
    """The logits at the last `kept` positions. Raises ValueError if the model's forward gave others than [B, Q, V]."""
    if logits.dim() != 3 or logits.shape[1] < kept:
        raise ValueError(
            f"the model's forward returned logits of shape {list(logits.shape)}, but [rows, at least {kept}, "
            "vocabulary] is needed: was it replaced by one that returns only the last ones?"
        )
    return logits[:, -kept:]


def check_mode(model: PreTrainedModel) -> None:
    """Raise ValueError if the model is in training mode."""
    if model.training:
        name = type(model).__name__
        raise ValueError(f"{name} is in training mode, where dropout makes its output random; call model.eval() first")
