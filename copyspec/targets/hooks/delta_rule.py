"""The gated delta rule over all tokens of a pass at once, each of which follows its parent in a tree.

transformers runs the rule token by token or in chunks of one sequence. A chunk needs no sequence: with decays summed
along each path, and the ancestors of a token in place of those before it, one triangular system gives what every token
writes into the state (arXiv 2412.06464, equation 7). The short convolution before it reads the last inputs of a path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from copyspec.targets.detours import original
from copyspec.targets.hooks.recurrence import State

_CONVOLUTION, _RULE = "causal_conv1d_update", "torch_recurrent_gated_delta_rule"
_EPSILON = 1e-6  # of the norm of queries and keys
CONV, RECURRENT = ("conv_states", 0), ("recurrent_states", 0)


def follows_rule(mixer: nn.Module) -> bool:
    """Whether a mixer's forward calls the functions that are replaced here, and is its class's own."""
    forward = original(mixer, "forward")
    own = getattr(type(mixer), "forward", None)
    raw = inspect.unwrap(own) if own is not None else None
    names = getattr(getattr(raw, "__code__", None), "co_names", ())
    return getattr(forward, "__func__", None) is own and {_CONVOLUTION, _RULE} <= {*names}


class Paths:
    """Where the tokens of a pass stand in the trees of their rows."""

    def __init__(self, places: Sequence[int], parents: Sequence[int], spans: Sequence[range], device: torch.device):
        """`places`: of the tokens in the pass; `parents`: by token, the one before it; -1: it follows the row's state.
        [T] each. `spans`: the tokens of each row."""
        self.rows = [row for row, span in enumerate(spans) for _ in span]
        """The row of each token."""
        self.places, self.spans, self.device, self._parents = places, spans, device, parents
        count = len(parents)
        self.ancestors = torch.zeros((count, count), dtype=torch.bool)
        """Whether token i follows token j, or is it. [T, T]"""
        for token, parent in enumerate(parents):
            if parent >= 0:
                self.ancestors[token] = self.ancestors[parent]
            self.ancestors[token, token] = True
        self.ancestors = self.ancestors.to(device)
        self._columns: dict[int, torch.Tensor] = {}

    def columns(self, width: int) -> torch.Tensor:
        """The last 1 + `width` inputs of each path, [T, 1 + width], among `width` ones of each row's state and those of
        the tokens."""
        if width not in self._columns:
            held, last = len(self.spans) * width, list[list[int]]()
            for token, (parent, row) in enumerate(zip(self._parents, self.rows, strict=True)):
                before = last[parent][1:] if parent >= 0 else range(row * width, (row + 1) * width)
                last.append([*before, held + token])
            self._columns[width] = torch.tensor(last, device=self.device)
        return self._columns[width]


class TreeRule:
    """One run of a mixer over the tokens of a pass, from the states of their rows."""

    def __init__(self, paths: Paths, convolution: torch.Tensor, states: torch.Tensor) -> None:
        """`convolution`: the last inputs of each row, [B, D, W]; `states`: [B, H, K, V]."""
        self._paths, self._convolution, self._states = paths, convolution, states
        self._inputs: torch.Tensor
        self._written: tuple[torch.Tensor, ...]

    def forward(self, mixer: nn.Module) -> Callable[..., Any]:
        """The mixer's forward for tokens as a batch, [T, 1, D], with the functions of this run."""
        raw: Any = inspect.unwrap(type(mixer).forward)
        names = {**raw.__globals__, _CONVOLUTION: self._convolve, _RULE: self._recur}
        forward = FunctionType(raw.__code__, names, raw.__name__, raw.__defaults__, raw.__closure__)
        forward.__kwdefaults__ = raw.__kwdefaults__
        return forward.__get__(mixer)

    def state(self, token: int) -> State:
        """The row's states after this token."""
        keys, updates, decays, total = self._written
        path = self._paths.ancestors[token].nonzero()[:, 0]
        written = (decays[:, token, path].unsqueeze(-1) * keys[:, path]).transpose(1, 2) @ updates[:, path]
        before = total[:, token, None, None].exp() * self._states[self._paths.rows[token]]
        after = (before + written).to(self._states.dtype)
        columns = self._paths.columns(self._convolution.shape[-1])[token, 1:]
        return {CONV: self._inputs[:, columns].unsqueeze(0), RECURRENT: after.unsqueeze(0)}

    def _convolve(
        self,
        hidden_states: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """`hidden_states`: [T, D, 1]; `weight`: [D, kernel]. [T, D, 1]"""
        columns, kernel = self._paths.columns(conv_state.shape[-1]), weight.shape[-1]
        held = self._convolution.transpose(0, 1).flatten(1)  # [D, B * W]
        self._inputs = torch.cat([held, hidden_states[:, :, 0].T], dim=1)
        window = self._inputs[:, columns[:, -kernel:]].to(weight.dtype)  # [D, T, kernel]
        mixed = (window * weight.unsqueeze(1)).sum(-1)
        mixed = mixed if bias is None else mixed + bias.unsqueeze(1)
        mixed = mixed if activation is None else ACT2FN[activation](mixed)
        return mixed.T.unsqueeze(-1).to(hidden_states.dtype)

    def _recur(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor | None = None,
        use_qk_l2norm_in_kernel: bool = False,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`query`, `key`: [T, 1, h, K]; `value`: [T, 1, H, V]; `g`, the logarithm of the decay, and `beta`:
        [T, 1, H]. The outputs, [T, 1, H, V], and the rows' states as they were."""
        queries, keys, values = (each[:, 0].transpose(0, 1).float() for each in (query, key, value))
        betas = beta[:, 0].T.float().unsqueeze(-1)
        if use_qk_l2norm_in_kernel:
            queries, keys = (
                each * torch.rsqrt((each * each).sum(-1, keepdim=True) + _EPSILON) for each in (queries, keys)
            )
        queries = queries * queries.shape[-1] ** -0.5
        if len(keys) < len(values):  # each is shared by several heads of values
            queries, keys = (each.repeat_interleave(len(values) // len(keys), 0) for each in (queries, keys))
        ancestors = self._paths.ancestors
        total = g[:, 0].T.float() @ ancestors.T.float()  # from the row's state to each token, [H, T]
        decays = (total.unsqueeze(2) - total.unsqueeze(1)).masked_fill(~ancestors, -torch.inf).exp()
        both = torch.stack([keys, queries])
        remembered = torch.cat(
            [
                both[:, :, span.start : span.stop] @ self._states[row].float()
                for row, span in enumerate(self._paths.spans)
            ],
            dim=2,
        )
        remembered = remembered * total.exp().unsqueeze(-1)
        transposed = keys.transpose(1, 2)
        updates = torch.linalg.solve_triangular(
            betas * decays * (keys @ transposed), betas * (values - remembered[0]), upper=False, unitriangular=True
        )
        mixed = remembered[1] + (decays * (queries @ transposed)) @ updates
        self._written = keys, updates, decays, total
        return mixed.transpose(0, 1).unsqueeze(1).to(query.dtype), initial_state
