"""Recurrences over all tokens of a pass at once, each of which follows its parent in a tree.

transformers runs them token by token, or in chunks of one sequence. A chunk needs no sequence: with decays summed along
each path, and the ancestors of a token in place of those before it, the same products give what every token reads. With
a delta rule (arXiv 2412.06464, equation 7; with a decay by channel arXiv 2510.26692), one triangular system gives what
every token writes; Mamba 2 (arXiv 2405.21060, section 6) writes its inputs. Mamba 1 decays each number of its state in
its own way, for which no product would be cheaper than its steps: they are taken level by level, from states that are
kept for the level above alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from copyspec.targets.recurrent.paths import Paths, TreePart

PIECE_BYTES = 1 << 26
"""Memory of the decays between tokens that are there at a time, of some heads, or of some tokens of one."""

_EPSILON = 1e-6  # of the norm of queries and keys

After = Callable[[int], torch.Tensor]
"""The state after a token of the pass, without the dimension of the batch."""

Rule = Callable[..., tuple[Any, After]]
"""Takes the mixer, transformers' function for one token, the paths, and that function's arguments, with tokens in place
of the batch; the states are those of the rows. Returns what it returns, and the states."""


def delta_rule(
    mixer: nn.Module,
    own: object,
    paths: Paths,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Any, After]:
    """`query`, `key`: [T, 1, h, K]; `value`: [T, 1, H, V]; `g`, the logarithm of the decay: [T, 1, H], or [T, 1, H, K]
    by channel; `beta`: [T, 1, H]; `initial_state`: [B, H, K, V]."""
    queries, keys, values = (_heads_first(tensor[:, 0]) for tensor in (query, key, value))
    if use_qk_l2norm_in_kernel:
        queries, keys = (
            tensor * torch.rsqrt((tensor * tensor).sum(-1, keepdim=True) + _EPSILON) for tensor in (queries, keys)
        )
    queries = queries * queries.shape[-1] ** -0.5
    decays = g[:, 0] if g.dim() == 4 else g[:, 0].unsqueeze(-1)
    memory = Memory(paths, initial_state, keys, decays.transpose(0, 1))
    mixed = memory.mix(queries, values, _heads_first(beta[:, 0].unsqueeze(-1)))
    return (mixed.transpose(0, 1).unsqueeze(1).to(query.dtype), initial_state), memory


def mamba2(
    mixer: nn.Module,
    own: object,
    paths: Paths,
    state: torch.Tensor,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    z: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, After]:
    """`state`: [B, H, P, N]; `hidden_states`, `dt`, `z`: [T, H, P]; `A`: [H, P, N]; `B`, `C`: [T, h, N]; `D`,
    `dt_bias`: [H, P]. `A`, `dt` and `dt_bias` are the same in all of a head. transformers keeps the steps of prompts
    within the mixer's `time_step_limit`, and those of single tokens as they are."""
    steps = dt[..., 0] if dt_bias is None else dt[..., 0] + dt_bias[:, 0].to(dt.dtype)
    steps = _heads_first((nn.functional.softplus(steps) if dt_softplus else steps).unsqueeze(-1))
    limit = getattr(mixer, "time_step_limit", None)
    if limit is not None and paths.is_prompt is not None:
        steps = torch.where(paths.is_prompt.unsqueeze(-1), steps.clamp(*limit), steps)
    memory = Memory(paths, state.transpose(2, 3), _heads_first(B), steps * A[:, :1, :1].float(), transposed=True)
    mixed = memory.mix(_heads_first(C), steps * _heads_first(hidden_states)).transpose(0, 1)
    mixed = mixed if D is None else mixed + hidden_states * D
    mixed = mixed if z is None else mixed * nn.functional.silu(z)
    return mixed.to(hidden_states.dtype), memory


def stepped(
    mixer: nn.Module, own: Callable[..., Any], paths: Paths, *args: Any, **named: Any
) -> tuple[torch.Tensor | tuple[torch.Tensor, torch.Tensor], After]:
    """transformers' own function for one token, level by level: any of those in `RULES`, with its arguments."""
    given = inspect.signature(own).bind(*args, **named).arguments
    given |= given.pop("kwargs", {})
    name = "state" if "state" in given else "initial_state"
    before: torch.Tensor = given.pop(name)
    limit = getattr(mixer, "time_step_limit", None)
    if limit is not None and paths.is_prompt is not None:  # see `mamba2`
        bias = given.pop("dt_bias", None)
        steps = given["dt"] if bias is None else given["dt"] + bias
        steps = nn.functional.softplus(steps) if given.pop("dt_softplus", False) else steps
        given["dt"] = torch.where(paths.is_prompt.view(-1, *[1] * (steps.dim() - 1)), steps.clamp(*limit), steps)
    if "A" in given and given["A"].dim() == 3:
        given["A"] = given["A"][:, :1, :1]  # the same in all of a head
    of_tokens = {key: given.pop(key) for key in _OF_TOKENS & given.keys() if given[key] is not None}

    def step(states: torch.Tensor, tokens: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs of some tokens, and the states after them. `states`: before them, which may be written to."""
        here = {key: value[tokens] for key, value in of_tokens.items()}
        result = own(**here, **given, **{name: states})
        return result if isinstance(result, tuple) else (result, states)

    def after(token: int) -> torch.Tensor:
        last = before[paths.rows[token]].unsqueeze(0).clone()
        for ancestor in paths.to(token):
            last = step(last, [ancestor])[1]
        return last[0]

    states, parts, order = before, list[torch.Tensor](), list[torch.Tensor]()
    for tokens, places in paths.levels:
        mixed, states = step(states[places], tokens)
        parts.append(mixed)
        order.append(tokens)
    outputs = torch.cat(parts)[torch.cat(order).argsort()]
    return (outputs if name == "state" else (outputs, before)), after


RULES: Mapping[str, Rule] = {
    "torch_recurrent_gated_delta_rule": delta_rule,
    "recurrent_kimi_delta_attention": delta_rule,
    "mamba2_selective_state_update": mamba2,
    "mamba_selective_state_update": stepped,
}
"""By the name of transformers' function for one token."""

_OF_TOKENS = frozenset({"query", "key", "value", "g", "beta", "hidden_states", "dt", "B", "C", "z"})
"""The arguments of these functions that have a number for each token, [T, ...]."""

STEPPED = frozenset({"mamba_selective_state_update"})
"""Those that take tokens level by level."""


def _heads_first(values: torch.Tensor) -> torch.Tensor:
    """[T, H, D] as [H, T, D], in float32."""
    return values.transpose(0, 1).float()


class TokenWrites(NamedTuple):
    """What tokens write into the states of their rows."""

    keys: torch.Tensor  # [..., h, T, K]
    updates: torch.Tensor  # [..., H, T, V]
    totals: torch.Tensor  # logarithms of the decay from the row's state to each token, [..., H, T, K or 1]

    def into(self, states: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
        """States, [..., H, K, V], after these tokens, which are a path. `padding`, [..., 1, T, 1]: tokens that are none
        of it, before the others."""
        last = self.totals[..., -1:, :]
        decays = last - self.totals
        if padding is not None:
            decays = decays.masked_fill(padding, -torch.inf)
        keys = of_heads(self.keys, self.totals.shape[-3])
        with torch.autocast(keys.device.type, enabled=False):  # the states would lose precision
            written = (decays.float().exp() * keys).transpose(-1, -2) @ self.updates
        return last.float().exp().transpose(-1, -2) * states + written


def of_heads(shared: torch.Tensor, count: int, heads: slice = slice(None)) -> torch.Tensor:
    """Queries or keys of these heads, of `count`, from those that several heads share, [..., h, T, K]."""
    groups = shared.shape[-3]
    if groups == count:
        return shared[..., heads, :, :]
    numbers = torch.arange(count, device=shared.device)[heads] // (count // groups)
    return shared[..., numbers, :, :]


class Memory:
    """States that map keys to values, of the rows of a pass, and what its tokens write into them."""

    def __init__(
        self,
        paths: Paths,
        states: torch.Tensor,
        keys: torch.Tensor,
        decays: torch.Tensor,
        *,
        transposed: bool = False,
    ) -> None:
        """`states`: [B, H, K, V]; `keys`: [h, T, K], each shared by H / h heads; `decays`: their logarithms, [H, T, K]
        by channel or [H, T, 1]; `transposed`: whether the model keeps states as [B, H, V, K]."""
        self._paths, self._states, self.transposed = paths, states, transposed
        # Decays are differences of these sums from the row's state to each token, which may be large.
        wide = torch.float32 if decays.device.type == "mps" else torch.float64
        totals = torch.cat([part.ancestors.to(wide) @ decays[:, part.tokens].to(wide) for part in paths.parts], 1)
        self.written = TokenWrites(keys, torch.empty(0), totals)

    def mix(self, queries: torch.Tensor, values: torch.Tensor, betas: torch.Tensor | None = None) -> torch.Tensor:
        """What the queries, [h, T, K], read behind what their tokens write: these values, [H, T, V], or with `betas`,
        [H, T, 1], so much of what they differ by from what the keys read before. [H, T, V]"""
        updates, mixed = values if betas is None else torch.empty_like(values), torch.empty_like(values)
        self.written = TokenWrites(self.written.keys, updates, self.written.totals)
        both = torch.stack([queries] if betas is None else [queries, self.written.keys])
        for part in self._paths.parts:
            count = len(part.ancestors)
            for heads in _pieces(len(values), 16 * count * count):
                here = heads, part.tokens
                left = of_heads(both, len(values), heads)[:, :, part.tokens]
                with torch.autocast(values.device.type, enabled=False):  # the states would lose precision
                    recalled, products = self._held(left, part, heads), self._products(left, part, heads)
                    if betas is not None:
                        updates[here] = torch.linalg.solve_triangular(
                            betas[here] * products[1], betas[here] * (values[here] - recalled[1]),
                            upper=False, unitriangular=True,
                        )  # fmt: skip
                    mixed[here] = recalled[0] + products[0] @ updates[here]
        return mixed

    def __call__(self, token: int) -> torch.Tensor:
        """The state after a token, [H, K, V], or [H, V, K] if it is transposed."""
        path = self._paths.to(token)
        of_path = TokenWrites(*[tensor[:, path] for tensor in self.written])
        after = of_path.into(self._states[self._paths.rows[token]])
        return after.transpose(1, 2) if self.transposed else after

    def _held(self, left: torch.Tensor, part: TreePart, heads: slice) -> torch.Tensor:
        """What queries or keys, [..., n, K], read from the states of their rows, [..., n, V]."""
        return part.read(left * self.written.totals[heads, part.tokens].float().exp(), self._states[:, heads])

    def _products(self, left: torch.Tensor, part: TreePart, heads: slice) -> torch.Tensor:
        """The products of queries or keys with the keys of their ancestors, which have decayed. [..., n, n]"""
        count = len(self.written.totals)
        keys = of_heads(self.written.keys, count, heads)[:, part.tokens]
        totals, others = self.written.totals[heads, part.tokens], ~part.ancestors
        if totals.shape[-1] == 1:
            decays = (totals - totals.transpose(1, 2)).masked_fill(others, -torch.inf).float().exp()
            return decays * (left @ keys.transpose(1, 2))
        rows = list[torch.Tensor]()
        for piece in _pieces(len(others), 16 * keys.numel()):
            apart = totals[:, piece, None] - totals[:, None]
            decays = apart.masked_fill(others[piece].unsqueeze(-1), -torch.inf).float().exp()
            product = (decays * keys[:, None]) @ left[:, :, piece].permute(1, 2, 3, 0)
            rows.append(product.permute(3, 0, 1, 2))
        return torch.cat(rows, dim=2)


def _pieces(count: int, size: int) -> Iterator[slice]:
    """So many things of so many bytes each, in pieces of PIECE_BYTES, or one."""
    step = max(1, PIECE_BYTES // size)
    return (slice(start, start + step) for start in range(0, count, step))
