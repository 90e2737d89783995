"""Mixers over all tokens of a pass at once: their forwards, with the functions that read and write states replaced.

The tokens of a pass are given to a mixer as a batch of single tokens, so that it computes in its own way what needs no
other token. Its short convolution reads the last inputs of a path, and its recurrence, if it has one, is that of
`recurrences`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from copyspec.targets.hooks.detours import original
from copyspec.targets.hooks.recurrence import State
from copyspec.targets.recurrent.paths import Paths
from copyspec.targets.recurrent.recurrences import RULES, STEPPED, After, Memory, Rule, TokenWrites, stepped

_CONVOLUTION, _UPDATE = "causal_conv1d_update", "update_recurrent_state"
CONV, RECURRENT = ("conv_states", 0), ("recurrent_states", 0)


def takes_trees(mixer: nn.Module) -> bool:
    """Whether a mixer's forward calls the functions that are replaced here, and is its class's own."""
    forward = original(mixer, "forward")
    own = getattr(type(mixer), "forward", None)
    names = set(getattr(getattr(_unwrapped(own), "__code__", None), "co_names", ()))
    if getattr(forward, "__func__", None) is not own or any(hasattr(module, "_hf_hook") for module in mixer.modules()):
        return False  # accelerate's hooks fetch weights, also through transformers' decorators, which are left out here
    return _CONVOLUTION in names and (_UPDATE not in names or len(names & RULES.keys()) == 1)


def takes_passes(mixer: nn.Module) -> bool:
    """Whether what a mixer does with trees has shapes and branches that do not depend on them."""
    return takes_trees(mixer) and STEPPED.isdisjoint(_unwrapped(type(mixer).forward).__code__.co_names)


def _unwrapped(forward: Any) -> Any:
    """A forward without transformers' own decorators, which do nothing here; those of a program may do anything."""
    return inspect.unwrap(
        forward,
        stop=lambda outer: not getattr(outer, "__globals__", {}).get("__name__", "").startswith("transformers."),
    )


def of_tokens(tokens: int, change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """An argument of a mixer with a number for each token of the pass, [1, T, ...], changed; others as they are."""
    if isinstance(value, tuple):
        return tuple(of_tokens(tokens, change, item) for item in value)
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[:2] != (1, tokens):
        return value
    return change(value)


class TreeRun:
    """One run of a mixer over the tokens of a pass, from the states of their rows."""

    def __init__(self, paths: Paths, *, is_exact: bool = False) -> None:
        """`is_exact`: give each token the bits that it has in a run of one token."""
        self._paths, self._is_exact = paths, is_exact
        self._inputs: torch.Tensor  # of the convolution: those of the rows' states, and of the tokens; [B * W + T, D]
        self._window: torch.Tensor  # the rows' states, [B, D, W]
        self._recurs = False
        self._after: list[After] = []  # by call of the recurrence: some mixers make one for each head

    @property
    def token_inputs(self) -> torch.Tensor:
        """The inputs of the convolution that are those of tokens, [T, D]."""
        return self._inputs[self._window.shape[0] * self._window.shape[2] :]

    def written(self) -> tuple[TokenWrites, bool]:
        """What the tokens write, of all heads, and whether the model keeps its states transposed. Only of a mixer that
        takes passes (`takes_passes`)."""
        memories = [memory for memory in self._after if isinstance(memory, Memory)]
        parts = zip(*[memory.written for memory in memories], strict=True)
        written = memories[0].written if len(memories) == 1 else TokenWrites(*map(torch.cat, parts))
        return written, memories[0].transposed

    def forward(self, mixer: nn.Module) -> Callable[..., Any]:
        """The mixer's forward for tokens as a batch, [T, 1, D], with the functions of this run."""
        raw = _unwrapped(type(mixer).forward)
        names: dict[str, Any] = {**raw.__globals__, _CONVOLUTION: self._convolve}
        for name in RULES.keys() & raw.__code__.co_names:
            rule = stepped if self._is_exact else RULES[name]
            names[name], self._recurs = partial(self._recur, rule, mixer, names[name]), True
        forward = FunctionType(raw.__code__, names, raw.__name__, raw.__defaults__, raw.__closure__)
        forward.__kwdefaults__ = raw.__kwdefaults__
        return forward.__get__(mixer)

    @torch.no_grad()
    def state(self, token: int, before: State) -> State:
        """The row's states after this token. `before`: those of any row, for their shapes and types."""
        columns = self._paths.columns(self._window.shape[-1])[token, 1:]
        state = {CONV: self._inputs[columns].T}
        if self._after:
            state[RECURRENT] = torch.stack([after(token) for after in self._after])
        return {key: value.to(before[key].dtype).reshape(before[key].shape) for key, value in state.items()}

    def _recur(self, rule: Rule, mixer: nn.Module, own: Callable[..., Any], *args: Any, **named: Any) -> Any:
        result, after = rule(mixer, own, self._paths, *args, **named)
        self._after.append(after)
        return result

    def _convolve(
        self,
        hidden_states: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """`hidden_states`: [T, D, 1]; `conv_state`: [B, D, W]; `weight`: [D, kernel]. [T, D, 1]"""
        columns, kernel = self._paths.columns(conv_state.shape[-1]), weight.shape[-1]
        self._window = conv_state
        self._inputs = torch.cat([conv_state.transpose(1, 2).flatten(0, 1), hidden_states[:, :, 0]])
        windows = self._inputs[columns[:, -kernel:]].to(weight.dtype)  # [T, kernel, D]
        if weight.element_size() < 4:  # rounds as single tokens do
            mixed = nn.functional.conv1d(windows.transpose(1, 2), weight.unsqueeze(1), bias, groups=len(weight))
        else:  # takes a fraction of its time on a CPU
            mixed = (windows * weight.T).sum(1).unsqueeze(-1)
            mixed = mixed if bias is None else mixed + bias.unsqueeze(-1)
        mixed = mixed if activation is None else ACT2FN[activation](mixed)
        mixed = mixed.to(hidden_states.dtype)
        return self._paths.whole(mixed) if self._recurs else mixed
