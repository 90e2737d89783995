"""Hidden states: what a model's output head and some of its layers are given, for drafters that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(slots=True)
class HiddenStates:
    """Of the passes of a model, the newest last."""

    head: list[torch.Tensor] = field(default_factory=list)  # what the output head was given, [B, kept, D]
    last: list[torch.Tensor] = field(default_factory=list)  # what it might have been given, [B, Q, D]
    inner: dict[int, list[torch.Tensor]] = field(default_factory=dict)  # what each of these layers was given, [B, Q, D]

    def of_pass(self) -> dict[int, torch.Tensor] | None:
        """Of the last pass: what the head was given by LAST, of more tokens than it was given where they are known, and
        what the layers were given by their numbers. [B, Q, D] each; None where nothing was kept."""
        if not self.head:
            return None
        head = self.head[-1]
        if self.last and self.last[-1].shape == (head.shape[0], self.last[-1].shape[1], head.shape[2]):
            whole = self.last[-1]
            if whole[:, -head.shape[1] :].equal(head):  # some models change states on their way to the head
                head = whole
        return {LAST: head} | {layer: kept[-1] for layer, kept in self.inner.items() if kept}


LAST = -1
"""In place of a layer: what the output head is given."""

RowStates = Mapping[int, "torch.Tensor"]
"""One row's states of one pass, by layer or LAST: at the chain's tokens, as far as they were kept, and at the tree's
nodes. [c + m, D] each"""


def output_head(model: PreTrainedModel) -> nn.Module | None:
    """What makes logits of the last hidden states."""
    head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return head


def real_weight(module: nn.Module | None) -> torch.Tensor | None:
    """The weights of a layer [V, D], also where accelerate has put them on disk or into another memory: read from there
    then, and not kept by the model. None where it has none."""
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
    """The layers of a decoder as Llama has them; none where they are kept elsewhere."""
    from torch import nn

    layers = getattr(model.base_model, "layers", None)
    return layers if isinstance(layers, nn.ModuleList) else ()  # type: ignore[return-value]


@contextmanager
def hidden_states(model: PreTrainedModel, layers: Sequence[int] = ()) -> Iterator[HiddenStates]:
    """For its length, the states of each pass are kept. Empty for models without an output head."""
    found = HiddenStates()
    head = output_head(model)
    if head is None:
        yield found
        return

    def keep_head(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        found.head.append(arguments[0])

    def keep_last(module: nn.Module, arguments: object, output: Any) -> None:
        if (state := getattr(output, "last_hidden_state", None)) is not None:
            found.last.append(state)

    def keep_layer(number: int) -> Any:
        def keep(module: nn.Module, arguments: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]) -> None:
            found.inner.setdefault(number, []).append(arguments[0] if arguments else named["hidden_states"])

        return keep

    with ExitStack() as hooks:
        hooks.callback(head.register_forward_pre_hook(keep_head).remove)
        hooks.callback(model.base_model.register_forward_hook(keep_last).remove)
        held = decoder_layers(model)
        for number in layers:
            hooks.callback(held[number].register_forward_pre_hook(keep_layer(number), with_kwargs=True).remove)
        yield found
