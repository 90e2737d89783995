"""The base class of targets: a model and the facts read from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from copyspec.targets.facts import ModelFacts, read_device, read_dtype, read_facts
from copyspec.targets.linears import FastLinears

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from copyspec.targets.base import Session


class WrappedModel(ABC):
    """A model with its facts. It may be moved to another device or dtype between sessions, so these are reread."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts, *, supports_trees: bool = True) -> None:
        """`supports_trees`: False if only chains, one row at a time, match the model's plain logits."""
        self.model = model
        self.supports_trees = supports_trees
        self.vocab_size, self.max_length = facts.vocab_size, facts.max_length
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        held, weight = self._facts, self.model.get_input_embeddings().weight
        if weight.device == held.device and weight.dtype == held.zero.dtype:
            return held
        # Offloaded or quantised weights name neither the device nor the dtype of passes.
        if read_device(self.model) != held.device or read_dtype(self.model) != held.zero.dtype:
            self._facts = read_facts(self.model)
            self.__dict__.pop("linears", None)
        return self._facts

    @cached_property
    def linears(self) -> FastLinears:
        """The model's fast linear layers, for passes of few tokens."""
        return FastLinears(self.model)

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> Session:
        """Open a session with one row per prompt. Raises ValueError for a model in training mode."""

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


def training_error(model: PreTrainedModel) -> ValueError:
    """The error for a model in training mode."""
    name = type(model).__name__
    return ValueError(f"{name} is in training mode, where dropout makes its output random; call model.eval() first")
