"""Whole decoder layers in float32, for CPU passes of few tokens.

Beside its linear layers, a decoder layer runs some forty operations, which for a few tokens take as long to start as
the linear layers take to read their weights. The compiled module runs a layer of Llama's kind in one call
(`native/layer.c`): norms, products, rotary positions, attention to each row's own keys with the pass's masks, and the
gated MLP. Its results equal PyTorch's within rounding, as those of two numbers of rows do; those of a token do not
depend on the other tokens of the pass. The first pass of a model runs both and compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from copyspec.targets.cpu.compiled import _linear
from copyspec.targets.hooks.llama_layers import LlamaLayer, ReplacedLayer, Rotary
from copyspec.targets.hooks.modules import OWN, parameters_of
from copyspec.targets.rows.passes import Pass, PassCache, RowCache

if TYPE_CHECKING:
    from numpy.typing import NDArray


MAX_TOKENS = {"avx512": 128, "avx2": 512}
"""Tokens of a pass up to which the compiled layer is used: as far as the module multiplies about as fast as PyTorch
does."""

TOLERANCE = 1e-4  # of the comparison, relative to the largest output

TRIED = 48  # tokens of a comparison: a tree after as many cached ones, and the single token after it

_HEAD_SIZES = range(16, 1025, 16)

Weights = tuple[Any, Any]  # of a linear layer, as arrays


def most_tokens() -> int:
    """The tokens of a pass up to which the compiled layer is used on this processor."""
    return MAX_TOKENS[_linear.instructions()]


class FastLayer(ReplacedLayer):
    """A decoder layer that the compiled module runs."""

    cache_kind = PassCache

    def __init__(self, parts: LlamaLayer, weights: Sequence[Callable[[], Weights | None]]) -> None:
        """`weights`: for each linear layer, a function that returns its arrays, or None if they cannot be read."""
        super().__init__(parts)
        self.module, self.names = parts.layer, vars(parts.layer)
        """The model's own layer, and its `__dict__`."""
        self._weights = weights
        self._most_tokens = most_tokens()
        self._heads = self._key_heads = self._head_size = 0
        self._epsilon = self._scaling = 0.0

    @staticmethod
    def fits(parts: LlamaLayer) -> bool:
        """Whether the module can run a layer of these sizes."""
        size = parts.attention.head_dim
        epsilons = {norm.variance_epsilon for norm in parts.norms if norm is not None}
        return isinstance(size, int) and size in _HEAD_SIZES and len(epsilons) == 1 and parts.has_plain_norms()

    def prepare(self) -> bool:
        """Read the layer's sizes and factors. Returns whether the module can run the layer, whose parts may have been
        changed or replaced since the last call."""
        parts, attention = self._parts, self._attention
        if "forward" in self.names or not parts.is_unchanged():
            return False
        if not all([OWN.issubset(parameters_of(linear)) for linear in parts.linears]) or not parts.has_plain_norms():
            return False
        self._head_size, self._scaling = attention.head_dim, attention.scaling  # type: ignore[assignment]
        self._heads, self._key_heads = (linear.out_features // self._head_size for linear in parts.linears[:2])
        self._epsilon = parts.norms[0].variance_epsilon  # type: ignore[union-attr, assignment]
        return True

    def is_right(self, rotary: Rotary) -> bool:
        """Whether the results equal the layer's own within rounding, for a tree and for a single token. `rotary`: the
        model's cosines and sines of positions."""
        drawn = torch.Generator().manual_seed(0)
        size = self._parts.linears[0].in_features
        visible = torch.rand((TRIED, 2 * TRIED), generator=drawn, device="cpu") < 0.5
        visible[:, TRIED:] &= torch.ones((TRIED, TRIED), dtype=torch.bool, device="cpu").tril()
        visible[:, TRIED:].fill_diagonal_(True)
        mask = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]
        caches = ours, theirs = PassCache(), PassCache()
        rows = [[RowCache()], [RowCache()]]
        for start, count, seen in ((0, TRIED, mask[..., TRIED:]), (TRIED, TRIED, mask), (2 * TRIED, 1, None)):
            hidden = torch.randn((1, count, size), generator=drawn, device="cpu")
            positions = torch.arange(start, start + count, device="cpu").unsqueeze(0)
            position_embeddings, seen = rotary(hidden, positions), None if seen is None else seen.contiguous()
            work = Pass([start], [0, count], [1], np.zeros((2, count), np.int64), [None])
            for cache, of_cache in zip(caches, rows, strict=True):
                cache.work, cache.rows, cache.is_plain = work, of_cache, seen is None
            expected = self._forward(
                hidden,
                attention_mask=seen,
                position_ids=positions,
                use_cache=True,
                position_embeddings=position_embeddings,
                **{self._cache: theirs},
            )
            output = self._run(hidden, seen, ours, *position_embeddings)
            if output is None or not (output - expected).abs().max() <= TOLERANCE * expected.abs().max():
                return False
        return True

    def _run(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        cache: PassCache,
        cosines: torch.Tensor,
        sines: torch.Tensor,
    ) -> torch.Tensor | None:
        """The layer's output, [1, T, D]; its keys and values are written to the rows' buffers. None if this is not a
        pass that the module can run."""
        tokens = hidden.shape[1]
        if tokens > self._most_tokens or len(hidden) > 1 or torch.is_grad_enabled() or cosines.shape != sines.shape:
            return None
        for tensor in (hidden, cosines, sines):
            if tensor.dtype is not torch.float32 or type(tensor) is not torch.Tensor or not tensor.is_contiguous():
                return None
        if cosines.shape[:2] != hidden.shape[:2] or cache.work.first[-1] != tokens:
            return None
        products = [weight() for weight in self._weights]
        if any(product is None for product in products):
            return None
        table = self._table(hidden, mask, cache)
        if table is None:
            return None
        norms = [None if norm is None else norm.weight.detach().numpy() for norm in self._parts.norms]  # type: ignore[operator]
        rotary = cosines.data_ptr(), sines.data_ptr(), cosines.shape[2]
        sizes = self._heads, self._key_heads, self._head_size, self._epsilon
        output = torch.empty_like(hidden)
        _linear.layer(
            output.data_ptr(),
            hidden.data_ptr(),
            tokens,
            (tuple(products), tuple(norms), sizes, rotary),
            self._scaling,
            table,
            torch.get_num_threads(),
        )
        return output

    def _table(self, hidden: torch.Tensor, mask: torch.Tensor | None, cache: PassCache) -> NDArray[np.int64] | None:
        """The rows of the pass for the module, [B, 7]. None if their caches or masks are not such as it reads."""
        work = cache.work
        known = work.tables.get(id(mask))
        if known is None:
            if (of_pass := _table_of(mask, cache)) is None:
                return None
            known = work.tables[id(mask)] = mask, of_pass  # with the mask, whose id no other gets then
        table = known[1]
        number: int = self._attention.layer_idx  # type: ignore[assignment]
        places = []
        for row, end in zip(cache.rows, table[:, 5].tolist(), strict=True):
            buffers = row.layers.get(number)
            if buffers is None or end >= buffers.place[2]:
                like = hidden.new_empty((self._key_heads, 0, self._head_size))
                buffers = row.layer(number, end, like, like)
            if buffers.dtypes != _FLOATS:
                return None  # a pass under autocast may have written others
            places.append(buffers.place)
        table[:, 1:4] = places
        return table


_FLOATS = (torch.float32, torch.float32)


def _table_of(mask: torch.Tensor | None, cache: PassCache) -> NDArray[np.int64] | None:
    """The table without the places of buffers, which every layer has of its own."""
    work = cache.work
    masks: Sequence[torch.Tensor | None]
    if cache.attention is not None:
        masks = cache.attention.masks(mask)
    elif len(work.starts) > 1 or (mask is None and not cache.is_plain):
        return None
    else:
        masks = [mask]
    sizes = zip(masks, work.first, work.first[1:], work.ends(), strict=False)
    if not all([visible is None or _is_added(visible, last - first, end) for visible, first, last, end in sizes]):
        return None
    table = np.zeros((len(work.starts), 7), np.int64)
    table[:, 0], table[:, 4], table[:, 5] = work.first[:-1], work.starts, work.ends()
    table[:, 6] = [0 if visible is None else visible.data_ptr() for visible in masks]
    return table


def _is_added(mask: torch.Tensor, tokens: int, slots: int) -> bool:
    """Whether a mask is a plain tensor that is added to the scores of these slots."""
    is_plain = mask.dtype is torch.float32 and type(mask) is torch.Tensor and mask.is_contiguous() and mask.is_cpu
    return is_plain and mask.shape == (1, 1, tokens, slots)
