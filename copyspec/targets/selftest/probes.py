"""Short calls of `generate` that show what a model makes of padding, token types and other rows: its configuration does
not say.

The answers hold for the life of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch

from copyspec.targets.model.facts import forward_arguments, read_device, vocabulary_size
from copyspec.targets.model.generation import settings
from copyspec.targets.model.locks import lock_of
from copyspec.targets.selftest.trial import MismatchError, check

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Masked = Literal["before", "between"]
"""Where an attention mask hides tokens: before all others, or between them."""

STEPS = 3  # tokens that are generated: the first is read with the prompt, the others one by one

TOKENS = 6  # that the model reads besides masked ones

_HIDDEN: Mapping[Masked, int] = {"before": 0, "between": 2}  # how many tokens precede the masked ones

_answers: WeakKeyDictionary[PreTrainedModel, dict[str, bool]] = WeakKeyDictionary()


def skips_masked(model: PreTrainedModel, where: Masked) -> bool:
    """Whether `generate` gives a row with masked tokens the logits of the row without them."""

    def padded() -> dict[str, torch.Tensor]:
        ids, at = _ids(model), _HIDDEN[where]
        hidden = ids[:, :3].flip(1)
        parts = [ids[:, :at], hidden, ids[:, at:]]
        mask = torch.cat([torch.full_like(part, int(part is not hidden)) for part in parts], dim=1)
        return {"input_ids": torch.cat(parts, dim=1), "attention_mask": mask}

    return _answer(model, where, padded)


def ignores_zero_types(model: PreTrainedModel) -> bool:
    """Whether `token_type_ids` of zeros change no logits. GPT-2 adds the embedding of token 0 for each."""
    if "token_type_ids" not in forward_arguments(model):
        return True

    def typed() -> dict[str, torch.Tensor]:
        ids = _ids(model)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}

    return _answer(model, "token_type_ids", typed)


def reads_rows_alone(model: PreTrainedModel) -> bool:
    """Whether `generate` gives a row of a batch the logits of the row alone. RWKV's mixes the states of the rows."""

    def together() -> dict[str, torch.Tensor]:
        ids = _ids(model)
        rows = torch.cat([ids, ids.flip(1)])
        return {"input_ids": rows, "attention_mask": torch.ones_like(rows)}

    return _answer(model, "rows", together)


def _answer(model: PreTrainedModel, name: str, changed: Any) -> bool:
    answers = _answers.setdefault(model, {})
    if name not in answers:
        with lock_of(model):
            ids = _ids(model)
            expected = _logits(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
            try:
                check(_logits(model, changed()), expected, name, model)
                answers[name] = True
            except MismatchError:
                answers[name] = False
    return answers[name]


def _ids(model: PreTrainedModel) -> torch.Tensor:
    """Distinct tokens, none of them among the first ones, which are often special. [1, TOKENS]"""
    size = vocabulary_size(model)
    first = min(size // 2, 100)
    return torch.arange(first, first + TOKENS, device=read_device(model)).remainder(size).unsqueeze(0)


def _logits(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The logits of the first row in a few steps that repeat one token, [STEPS, V]."""
    generator: Any = model  # typed Any, since its type does not show GenerationMixin's methods
    config = settings(model, new_tokens=STEPS, return_dict_in_generate=True, output_logits=True)
    token = int(inputs["input_ids"][0, -1])
    output = generator.generate(**inputs, generation_config=config, prefix_allowed_tokens_fn=lambda *_: [token])
    return torch.cat([logits[:1] for logits in output.logits])
