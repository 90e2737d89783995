"""Which target a model gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from copyspec.target.base import Target, UnsupportedModelError
from copyspec.target.causal import CausalTarget
from copyspec.target.facts import check_kinds, is_recurrent, read_facts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def make_target(model: PreTrainedModel, on_unsupported: Literal["error", "plain"]) -> Target:
    """See `copyspec.target.wrap`."""
    if on_unsupported not in ("error", "plain"):
        raise ValueError(f'on_unsupported must be "error" or "plain", got {on_unsupported!r}')
    facts = read_facts(model)
    if is_recurrent(model):
        raise UnsupportedModelError(f"{type(model).__name__} has recurrent layers")
    check_kinds(model, facts)
    return CausalTarget(model, facts)
