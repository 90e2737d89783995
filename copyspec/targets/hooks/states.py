"""Hidden states of a target pass, for drafters that read them: the inputs of the output head and of some layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from copyspec.targets.base import LAST
from copyspec.targets.hooks.modules import decoder_layers, output_head

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(eq=False)
class HiddenStates:
    """The hidden states of a model's last pass."""

    head: torch.Tensor | None = None  # input of the output head, [1, T or N, D]
    last: torch.Tensor | None = None  # the base model's output for all tokens, [1, T, D]
    inner: dict[int, torch.Tensor] = field(default_factory=dict)  # inputs of the requested layers, [1, T, D]

    def copied(self, tokens: int, scored: int) -> HiddenStates:
        """A copy without the padding behind so many tokens, whose memory no later pass writes to. `scored`: states that
        the output head was given."""
        head, last = self.head, self.last
        return HiddenStates(
            None if head is None else head[:, :scored].clone(),
            None if last is None else last[:, :tokens].clone(),
            {number: states[:, :tokens].clone() for number, states in self.inner.items()},
        )

    def of_rows(
        self, first: Sequence[int], scored: Sequence[int], *, is_last: bool | None = None
    ) -> list[dict[int, torch.Tensor]] | None:
        """The states of each row, whose tokens are first[r] .. first[r + 1] - 1, the last scored[r] of them scored: the
        output head's inputs under LAST, at all tokens where the base model's output matches them, else at the scored
        ones; and the inputs of layers by their number. None if nothing was recorded.

        `is_last`: what `gives_last` has found; None: find out."""
        head = self.head
        if head is None:
            return None
        wanted = scored_tokens(first, scored)
        if head.shape[1] == first[-1] != len(wanted):
            head = head[:, wanted]
        whole = self.last if is_last is not False else None
        if whole is not None and (is_last or self.gives_last(first, scored)):
            head = whole
        rows: list[dict[int, torch.Tensor]] = []
        before = 0
        for begin, end, count in zip(first, first[1:], scored, strict=False):
            places = slice(begin, end) if head is whole else slice(before, before + count)
            inner = {number: states[0, begin:end] for number, states in self.inner.items()}
            rows.append({LAST: head[0, places], **inner})
            before += count
        return rows

    def gives_last(self, first: Sequence[int], scored: Sequence[int]) -> bool:
        """Whether the output head is given what the base model returns, as it is: some models transform it before. A
        property of the model, and on a device a read that waits for the pass."""
        head, whole, wanted = self.head, self.last, scored_tokens(first, scored)
        if head is None or whole is None:
            return False
        if head.shape[1] == first[-1] != len(wanted):
            head = head[:, wanted]
        return whole.shape[::2] == head.shape[::2] and whole[:, wanted].equal(head)


def scored_tokens(first: Sequence[int], scored: Sequence[int]) -> list[int]:
    """The last scored[r] of the tokens first[r] .. first[r + 1] - 1 of each row. [N]"""
    ends = zip(first[1:], scored, strict=True)
    return [token for end, count in ends for token in range(end - count, end)]


@contextmanager
def hidden_states(model: PreTrainedModel, layers: Sequence[int] = ()) -> Iterator[HiddenStates]:
    """Record the states of each pass while the context is active. Stays empty for models without an output head."""
    states = HiddenStates()
    head = output_head(model)
    if head is None:
        yield states
        return

    # An interrupt may come between the registration of a hook and the end of its context: the hook then stays, but
    # does nothing once the states are gone.
    living = ref(states)

    def keep_head(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if (alive := living()) is not None:
            alive.head = arguments[0]

    def keep_last(module: nn.Module, arguments: object, output: Any) -> None:
        alive, state = living(), getattr(output, "last_hidden_state", None)
        if alive is not None and state is not None:
            alive.last = state

    def keep_layer(number: int) -> Any:
        def keep(module: nn.Module, arguments: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]) -> None:
            if (alive := living()) is not None:
                alive.inner[number] = arguments[0] if arguments else named["hidden_states"]

        return keep

    with ExitStack() as hooks:
        hooks.callback(head.register_forward_pre_hook(keep_head).remove)
        hooks.callback(model.base_model.register_forward_hook(keep_last).remove)
        all_layers = decoder_layers(model)
        for number in layers:
            hooks.callback(all_layers[number].register_forward_pre_hook(keep_layer(number), with_kwargs=True).remove)
        yield states
