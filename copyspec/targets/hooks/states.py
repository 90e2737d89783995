"""Hidden states: what a model's output head is given, for drafters that read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


def output_head(model: PreTrainedModel) -> nn.Module | None:
    """What makes logits of the last hidden states."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


@contextmanager
def head_inputs(model: PreTrainedModel) -> Iterator[list[torch.Tensor]]:
    """For its length, what the output head is given in each pass, [B, Q, D], is kept in the list. Empty for models
    without such a head."""
    inputs: list[torch.Tensor] = []
    head = output_head(model)
    if head is None:
        yield inputs
        return

    def keep(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        inputs.append(arguments[0])

    handle = head.register_forward_pre_hook(keep)
    try:
        yield inputs
    finally:
        handle.remove()
