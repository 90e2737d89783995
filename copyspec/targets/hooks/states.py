"""Hidden states of a target pass, for drafters that read them: the inputs of the output head and of some layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(eq=False)
class HiddenStates:
    """The hidden states of a model's passes, latest last."""

    head: list[torch.Tensor] = field(default_factory=list)  # inputs of the output head, [B, kept, D]
    last: list[torch.Tensor] = field(default_factory=list)  # the base model's output for all tokens, [B, Q, D]
    inner: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # inputs of the requested layers, [B, Q, D]

    def of_pass(self) -> dict[int, torch.Tensor] | None:
        """The last pass's states, [B, Q, D]: the output head's input under LAST, for all tokens where the base model's
        output matches it, and the inputs of layers by their number. None if nothing was recorded."""
        if not self.head:
            return None
        head = self.head[-1]
        if self.last and self.last[-1].shape == (head.shape[0], self.last[-1].shape[1], head.shape[2]):
            whole = self.last[-1]
            if whole[:, -head.shape[1] :].equal(head):  # some models transform states before the head
                head = whole
        return {LAST: head} | {layer: kept[-1] for layer, kept in self.inner.items() if kept}


LAST = -1
"""Key for the output head's input, in place of a layer number."""

RowStates = Mapping[int, "torch.Tensor"]
"""One row's states of one pass, by layer or LAST, [c + m, D] each: at the c last uncached tokens that were
recorded, and at the tree's m nodes."""


def output_head(model: PreTrainedModel) -> nn.Module | None:
    """The module that computes logits from the last hidden states; None if there is none."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def real_weight(module: nn.Module | None) -> torch.Tensor | None:
    """A layer's weights [V, D], or None. Weights that accelerate has offloaded to disk or CPU memory are read from
    there, without loading them into the model."""
    weight: torch.Tensor | None = getattr(module, "weight", None)
    if weight is None or not weight.is_meta:
        return weight
    hook = getattr(module, "_hf_hook", None)
    for each in (hook, *getattr(hook, "hooks", ())):
        if getattr(each, "weights_map", None) is not None:
            found: torch.Tensor = each.weights_map["weight"]
            return found
    return None


def decoder_layers(model: PreTrainedModel) -> Sequence[nn.Module]:
    """The decoder's layers if they are stored as in Llama, else none."""
    from torch import nn

    layers = getattr(model.base_model, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else ()  # type: ignore[return-value]


@contextmanager
def hidden_states(model: PreTrainedModel, layers: Sequence[int] = ()) -> Iterator[HiddenStates]:
    """Record the states of each pass while the context is active. Stays empty for models without an output head."""
    found = HiddenStates()
    head = output_head(model)
    if head is None:
        yield found
        return

    # An interrupt may come between the registration of a hook and the end of its context: the hook then stays, but
    # does nothing once the states are gone.
    living = ref(found)

    def keep_head(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if (kept := living()) is not None:
            kept.head.append(arguments[0])

    def keep_last(module: nn.Module, arguments: object, output: Any) -> None:
        kept, state = living(), getattr(output, "last_hidden_state", None)
        if kept is not None and state is not None:
            kept.last.append(state)

    def keep_layer(number: int) -> Any:
        def keep(module: nn.Module, arguments: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]) -> None:
            if (kept := living()) is not None:
                kept.inner.setdefault(number, []).append(arguments[0] if arguments else named["hidden_states"])

        return keep

    with ExitStack() as hooks:
        hooks.callback(head.register_forward_pre_hook(keep_head).remove)
        hooks.callback(model.base_model.register_forward_hook(keep_last).remove)
        held = decoder_layers(model)
        for number in layers:
            hooks.callback(held[number].register_forward_pre_hook(keep_layer(number), with_kwargs=True).remove)
        yield found
