"""Decoder layers of Llama's kind in static passes, with what is between their products in few kernels.

A layer of transformers launches forty kernels, of which nine are its products and its attention. On a GPU the others
take a third of a 7B model's pass over a draft tree, though they read little: about two microseconds each. Here they are
four (`layer_kernels`). Before it is used on a model, a small pass is compared with the model's own (`refusals`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from copyspec.targets.hooks.detours import detour
from copyspec.targets.hooks.llama_layers import ReplacedLayer, attention_of, is_unchanged, llama_layers
from copyspec.targets.static.buffers import StaticCache
from copyspec.targets.static.triton_kernels import kernels_run

if TYPE_CHECKING:
    from copyspec.targets.hooks.llama_layers import LlamaLayer

WIDEST = 1 << 16
"""Numbers per token up to which one program computes a norm."""


class FusedLayer(ReplacedLayer):
    """One layer in static passes, whose forward is replaced while `fused` is active."""

    cache_kind = StaticCache

    def __init__(self, parts: LlamaLayer) -> None:
        super().__init__(parts)
        self.module = parts.layer
        first, second, of_queries, of_keys = parts.norms
        assert first is not None and second is not None
        self._norms = first, second
        self._head_norms = None if of_queries is None or of_keys is None else (of_queries, of_keys)
        self._epsilon = float(first.variance_epsilon)  # type: ignore[arg-type]

    @staticmethod
    def fits(parts: LlamaLayer) -> bool:
        """Whether no part has a hook or another forward that would be skipped, and all have the kernels' sizes."""
        size = parts.attention.head_dim
        return (
            is_unchanged(parts.layer)
            and parts.is_unchanged()
            and isinstance(size, int)
            and size % 2 == 0
            and parts.linears[0].in_features <= WIDEST
            and len({norm.variance_epsilon for norm in parts.norms if norm is not None}) == 1
            and parts.has_plain_norms()
        )

    def _run(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        cache: StaticCache,
        cosines: torch.Tensor,
        sines: torch.Tensor,
    ) -> torch.Tensor | None:
        if cosines.shape[2] != self._attention.head_dim:  # only a part of each head is turned
            return None
        kernels = _kernels(hidden)
        of_queries, of_keys, of_values, output, gate, up, down = self._parts.linears
        (before_attention, before_mlp), attention = self._norms, self._attention
        _, normed = kernels.rms_norm(hidden, None, before_attention.weight, self._epsilon)
        keys, values = cache.static_layers[attention.layer_idx].buffers  # type: ignore[index]
        queries = kernels.place_heads(
            of_queries(normed),
            cache.writer.finite(of_keys(normed), 1),
            cache.writer.finite(of_values(normed), 1),
            (cosines, sines),
            None if self._head_norms is None else tuple(norm.weight for norm in self._head_norms),
            self._epsilon,
            (keys, values),
            cache.writer.places,
        )
        attended = attention_of(attention)(queries, keys, values, mask, attention.scaling)  # type: ignore[arg-type]
        attended = output(attended.reshape(*hidden.shape[:2], -1))
        hidden, normed = kernels.rms_norm(hidden, attended, before_mlp.weight, self._epsilon)
        result: torch.Tensor = hidden + down(kernels.silu_times(gate(normed), up(normed)))
        return result


def fused_layers(model: torch.nn.Module, device: torch.device) -> list[FusedLayer]:
    """The layers of a model that can be run with few kernels; none if one of them cannot."""
    if device.type != "cpu" and not kernels_run(device):  # on a CPU, tests run all but the kernels with torch's
        return []
    parts = list(llama_layers(model))
    return [FusedLayer(part) for part in parts] if all(FusedLayer.fits(part) for part in parts) else []


@contextmanager
def fused(layers: Sequence[FusedLayer]) -> Iterator[None]:
    """Run these layers with few kernels in this thread while the context is active."""
    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(detour(layer.module, "forward", layer.forward))
        yield


def _kernels(tensor: torch.Tensor) -> Any:
    """The module whose functions run on this tensor: Triton's, or this one, with torch's operators, as their
    reference."""
    if not tensor.is_cuda:
        return sys.modules[__name__]
    from copyspec.targets.static import layer_kernels

    return layer_kernels


def rms_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + added, and that sum divided by its root mean square, times weight. [B, Q, D]; `added` None: x alone."""
    total = x if added is None else x + added
    return total, _normed(total, weight, epsilon)


def place_heads(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
    cache: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
) -> torch.Tensor:
    """Normalise the heads of queries and keys if there are `norms`, turn them by their positions, and write keys and
    values into the cache.

    `queries` [B, Q, H * D]; `keys` and `values` [B, Q, Hkv * D]; `angles`: cosines and sines [1 or B, Q, D]; `norms`:
    weights [D] for queries and keys; `cache`: keys and values [B, Hkv, S, D]; `slots` [B, Q]. Returns the queries,
    [B, H, Q, D].
    """
    rows, size = torch.arange(len(slots), device=slots.device).unsqueeze(1), angles[0].shape[2]
    by_head = [tensor.view(*tensor.shape[:2], -1, size) for tensor in (queries, keys, values)]
    for place, weight in enumerate(norms or ()):
        by_head[place] = _normed(by_head[place], weight, epsilon)
    cosines, sines = (angle.unsqueeze(2) for angle in angles)
    for place in (0, 1):
        low, high = by_head[place].chunk(2, dim=3)
        by_head[place] = by_head[place] * cosines + torch.cat([-high, low], dim=3) * sines
    for buffer, written in zip(cache, by_head[1:], strict=True):
        buffer[rows, :, slots] = written
    return by_head[0].transpose(1, 2)


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, of one shape."""
    return torch.nn.functional.silu(gate) * up


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * exact.to(x.dtype)
