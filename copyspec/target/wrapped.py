"""What every target is: a model, and what it says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from copyspec.target.facts import ModelFacts, read_device, read_facts

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class WrappedModel:
    """The facts of a model, which may be moved to another device between sessions."""

    def __init__(self, model: PreTrainedModel, facts: ModelFacts) -> None:
        self.model = model
        self._facts = facts

    @property
    def facts(self) -> ModelFacts:
        if read_device(self.model) != self._facts.device:
            self._facts = read_facts(self.model)
        return self._facts

    @property
    def vocab_size(self) -> int:
        return self._facts.vocab_size

    @property
    def max_length(self) -> int | None:
        return self._facts.max_length

    @property
    def device(self) -> torch.device:
        return self.facts.device
