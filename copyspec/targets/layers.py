"""Whole decoder layers for CPU passes of few tokens.

Beside its linear layers, a decoder layer runs some forty operations, which for a few tokens take as long to start as
the linear layers take to read their weights. The compiled module runs a layer of Llama's kind in one call
(`native/layer.c`): norms, products, rotary positions, attention over the tree cache with the pass's mask, and the gated
MLP. In float32 its results equal PyTorch's within rounding, as those of two numbers of rows do. In bfloat16 they must
be bitwise equal to PyTorch's, as those of the module's attention are on some processors (`cpu_attention.py`): there,
each row of a batch is bitwise equal to the row decoded alone. Elsewhere the module runs the parts before and after
PyTorch's attention (`native/bfloat16_layer.c`). The first passes of a model run both and compare them.
"""

from __future__ import annotations

import logging
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from copyspec.targets import cpu_attention
from copyspec.targets.compiled import _linear
from copyspec.targets.hooks.llama_layers import (
    FusedAttention,
    LlamaLayer,
    ReplacedLayer,
    Rotary,
    fused_attention,
)
from copyspec.targets.hooks.weights import OWN, parameters_of
from copyspec.targets.tree_cache import TreeCache, Write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from copyspec.targets._linear import LayerParts

logger = logging.getLogger(__name__)

MAX_TOKENS = {torch.float32: 128, torch.bfloat16: 64}
"""Tokens of a pass, over all rows, up to which the compiled layer is used; in float32 without padding, and in bfloat16
where attention is PyTorch's."""

AVX2_TOKENS = 512
"""The same in float32 with AVX2: up to there, the module multiplies about as fast as PyTorch does."""

AT_ONCE = 128
"""Rows of one call of the module, which leaves passes of more to PyTorch; in bfloat16 also computed tokens, of which a
pass of more makes several calls."""

TOLERANCE = 1e-4  # of the float32 comparison, relative to the largest output

TRIALS = {torch.float32: 1, torch.bfloat16: 3}
"""Comparisons of a layer with the model's own: in bfloat16 another order of a sum changes one of thirty thousand
outputs."""

TRIED = 48  # tokens of a comparison: a tree after as many cached ones, and the single token after it

_HEAD_SIZES = range(16, 1025, 16)

Weights = tuple[Any, Any]  # of a linear layer, as arrays


def most_tokens(dtype: torch.dtype) -> int:
    """The tokens of a pass up to which the compiled layer is used on this processor, see `MAX_TOKENS`."""
    is_avx2 = dtype == torch.float32 and _linear.instructions("f") == "avx2"
    return AVX2_TOKENS if is_avx2 else MAX_TOKENS[dtype]


class Pass(NamedTuple):
    """One pass through a layer."""

    hidden: torch.Tensor  # [B, Q, D]
    mask: torch.Tensor | None
    cache: TreeCache
    parts: LayerParts
    """The layer as the compiled module takes it, with the rotary positions of this pass."""


class HeadInput(NamedTuple):
    """The padded input of the output head, [rows, columns, D], in a pass of one thread."""

    rows: int
    columns: int
    tokens: torch.Tensor
    """The columns of all rows that are not padding, as indices into rows * columns."""
    thread: int


@dataclass
class RunningPass:
    """The facts about the running pass that its layers use."""

    prompt: int = 0
    """Leading tokens that a prompt's own pass multiplies together in plain decoding; 0: none."""
    columns: int = 0  # all tokens of the pass
    head_input: HeadInput | None = None  # if some of it is padding


class FastLayer(ReplacedLayer):
    """A decoder layer that the compiled module runs."""

    cache_kind = TreeCache
    dtype: torch.dtype
    leaves_out_padding = False
    """Whether tokens without a slot are not computed; their outputs are zeros."""
    attends = False
    """Whether the module computes attention in bfloat16, each row of a batch bitwise equal to the row alone."""

    def __init__(self, parts: LlamaLayer, weights: Sequence[Callable[[], Weights | None]]) -> None:
        """`weights`: for each linear layer, a function that returns its arrays, or None if they cannot be read."""
        super().__init__(parts)
        self.module, self.names = parts.layer, vars(parts.layer)
        """The model's own layer, and its `__dict__`."""
        self._weights = weights
        self._most_tokens = most_tokens(self.dtype)
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
        if not all([OWN.issubset(parameters_of(each)) for each in parts.linears]) or not parts.has_plain_norms():
            return False
        self._head_size, self._scaling = attention.head_dim, attention.scaling  # type: ignore[assignment]
        self._heads, self._key_heads = (each.out_features // self._head_size for each in parts.linears[:2])
        self._epsilon = parts.norms[0].variance_epsilon  # type: ignore[union-attr, assignment]
        return True

    def is_right(self, rotary: Rotary) -> bool:
        """Whether the results equal the layer's own, for a tree and for a single token: bit by bit in bfloat16, within
        rounding in float32. `rotary`: the model's cosines and sines of positions."""
        drawn = torch.Generator().manual_seed(0)
        size = self._parts.linears[0].in_features
        visible = torch.rand((TRIED, 2 * TRIED), generator=drawn, device="cpu") < 0.5
        visible[:, TRIED:] &= torch.ones((TRIED, TRIED), dtype=torch.bool, device="cpu").tril()
        visible[:, TRIED:].fill_diagonal_(True)
        mask = torch.where(visible, 0.0, torch.finfo(self.dtype).min).to(self.dtype)[None, None]
        for _ in range(TRIALS[self.dtype]):
            ours, theirs = TreeCache(1), TreeCache(1)
            for start, columns, seen in ((0, TRIED, mask[..., TRIED:]), (TRIED, TRIED, mask), (2 * TRIED, 1, None)):
                hidden = torch.randn((1, columns, size), generator=drawn, device="cpu").to(self.dtype)
                positions = torch.arange(start, start + columns, device="cpu").unsqueeze(0)
                turned, seen = rotary(hidden, positions), None if seen is None else seen.contiguous()
                ours.write = theirs.write = Write(start, start + columns, plain=seen is None)
                expected = self._forward(
                    hidden,
                    attention_mask=seen,
                    position_ids=positions,
                    use_cache=True,
                    position_embeddings=turned,
                    **{self._cache: theirs},
                )
                found = self._run(hidden, seen, ours, *turned)
                if found is None or not self._is_close(found, expected):
                    return False
        return True

    @staticmethod
    def _is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
        if ours.dtype == torch.bfloat16:
            return torch.equal(ours, theirs)
        return bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())

    def _run(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        cache: TreeCache,
        cosines: torch.Tensor,
        sines: torch.Tensor,
    ) -> torch.Tensor | None:
        """The layer's output, [B, Q, D]; its keys and values are written to the cache. None if this is not a pass that
        the module can run."""
        batch, columns, _ = hidden.shape
        tokens = (cache.write.tokens if self.leaves_out_padding else 0) or batch * columns
        if tokens > self._most_tokens or torch.is_grad_enabled():
            return None
        for each in (hidden, cosines, sines):
            if each.dtype is not self.dtype or type(each) is not torch.Tensor or not each.is_contiguous():
                return None
        if cosines.shape != sines.shape or cosines.shape[0] not in (1, batch) or cosines.shape[1] != columns:
            return None
        if batch != (cache.rows if cache.write.row is None else 1) or not self._reads(cache):
            return None
        products = [each() for each in self._weights]
        if any(each is None for each in products):
            return None
        norms = [None if norm is None else self._array(norm.weight) for norm in self._parts.norms]  # type: ignore[arg-type]
        rotary = cosines.data_ptr(), sines.data_ptr(), cosines.shape[2], cosines.shape[0] > 1
        sizes = self._heads, self._key_heads, self._head_size, self._epsilon
        return self._compute(Pass(hidden, mask, cache, (tuple(products), tuple(norms), sizes, rotary)))

    def _reads(self, cache: TreeCache) -> bool:
        """Whether the cached keys and values are of the layer's dtype: a pass under autocast may have written others,
        and the module is only given their addresses."""
        layer = cache.layer(self._attention.layer_idx)  # type: ignore[arg-type]
        if not layer.is_initialized:
            return True
        return all([each is not None and each.dtype is self.dtype for each in (layer.keys, layer.values)])

    def _buffers(self, hidden: torch.Tensor, cache: TreeCache) -> tuple[int, int, int]:
        """Addresses of the pass's first row of keys and of values, [H, S, D], and the number of slots."""
        layer = cache.layer(self._attention.layer_idx)  # type: ignore[arg-type]
        if not layer.is_initialized:
            like = hidden.new_empty((len(hidden), self._key_heads, 0, self._head_size))
            layer.lazy_initialization(like, like)
        keys, values = layer.buffers()
        row = keys.element_size() * (cache.write.row or 0) * keys.stride(0)
        return keys.data_ptr() + row, values.data_ptr() + row, keys.shape[2]

    @abstractmethod
    def _compute(self, given: Pass) -> torch.Tensor | None:
        """`_run` for tensors that fit."""

    @staticmethod
    @abstractmethod
    def _array(weight: torch.Tensor) -> NDArray[Any]:
        """A norm's weight, as the compiled module reads it."""


class Float32Layer(FastLayer):
    """A layer in float32."""

    dtype = torch.float32
    leaves_out_padding = True

    def _compute(self, given: Pass) -> torch.Tensor | None:
        hidden, mask, cache, parts = given
        (batch, columns, _), write = hidden.shape, cache.write
        if batch > AT_ONCE:
            return None
        slots: NDArray[np.int64] | None = None if write.slots is None else write.slots.numpy()
        if not (slots is None and write.plain if mask is None else _is_added(mask, batch, columns, write.stop)):
            return None
        keys, values, capacity = self._buffers(hidden, cache)
        output = torch.empty_like(hidden)
        _linear.layer(
            output.data_ptr(),
            hidden.data_ptr(),
            batch,
            columns,
            parts,
            self._scaling,
            (keys, values, capacity, write.start, write.stop, slots),
            None if mask is None else (mask.data_ptr(), mask.shape[0] > 1),
            torch.get_num_threads(),
        )
        return output

    @staticmethod
    def _array(weight: torch.Tensor) -> NDArray[Any]:
        return weight.detach().numpy()


class Bfloat16Layer(FastLayer):
    """A layer in bfloat16, with packed weights."""

    dtype = torch.bfloat16

    def __init__(
        self,
        parts: LlamaLayer,
        weights: Sequence[Callable[[], Weights | None]],
        running: RunningPass,
        k_block: int,
    ) -> None:
        """`k_block`: inputs per partial sum in the products of single tokens."""
        super().__init__(parts, weights)
        self._running, self._k_block, self._registers = running, k_block, 0

    def prepare(self) -> bool:
        if not super().prepare():
            return False
        self._registers = cpu_attention.registers(self._heads, self._key_heads, self._head_size)
        self.attends = self._registers > 0 and fused_attention(self._attention) is not None
        self.leaves_out_padding = self.attends
        self._most_tokens = sys.maxsize if self.attends else MAX_TOKENS[self.dtype]
        return True

    def _compute(self, given: Pass) -> torch.Tensor | None:
        parts = given.parts
        attend = fused_attention(self._attention)
        # Prompt tokens must equal a many-token product bitwise; this path computes single-token ones.
        if attend is None or self._running.prompt or any(weight.dtype != np.uint32 for weight, *_ in parts[0]):  # type: ignore[misc, has-type]
            return None
        whole = self._compute_whole(given)
        return self._compute_halves(given, attend) if whole is None else whole

    def _compute_whole(self, given: Pass) -> torch.Tensor | None:
        """`_compute` for a pass whose attention the module computes."""
        hidden, mask, cache, parts = given
        batch, columns, _ = hidden.shape
        fits = self.attends and batch <= AT_ONCE
        seen = cpu_attention.seen_by(mask, cache.write, batch, columns) if fits else None
        if seen is None:
            return None
        count = len(seen.places)
        output = torch.empty_like(hidden) if count == batch * columns else torch.zeros_like(hidden)
        buffers, threads = self._buffers(hidden, cache), torch.get_num_threads()
        for first in range(0, count, AT_ONCE):  # a token attends to none after it
            some = [each[first : first + AT_ONCE] for each in seen]
            _linear.bfloat16_layer(
                output.data_ptr(),
                hidden.data_ptr(),
                batch,
                columns,
                parts,
                self._k_block,
                _silu(),
                (*buffers, self._scaling, *some, self._registers),  # type: ignore[arg-type]
                threads,
            )
        return output

    def _compute_halves(self, given: Pass, attend: FusedAttention) -> torch.Tensor | None:
        """`_compute` around PyTorch's attention."""
        hidden, mask, cache, parts = given
        (batch, columns, _), size = hidden.shape, self._head_size
        if batch * columns > MAX_TOKENS[self.dtype]:
            return None
        counts = [batch * columns * each * size for each in (self._heads, self._key_heads, self._key_heads)]
        made = hidden.new_empty(sum(counts))
        shared = batch, columns, parts, self._k_block, _silu(), torch.get_num_threads()
        _linear.half_layer(made.data_ptr(), hidden.data_ptr(), 0, *shared)
        queries, keys, values = [
            each.view(batch, columns, -1, size).transpose(1, 2) for each in made.split_with_sizes(counts)
        ]
        keys, values = cache.update(keys, values, self._attention.layer_idx)  # type: ignore[arg-type]
        attended = attend(queries, keys, values, mask, self._scaling).reshape(batch, columns, -1).contiguous()
        output = torch.empty_like(hidden)
        _linear.half_layer(output.data_ptr(), hidden.data_ptr(), attended.data_ptr(), *shared)
        return output

    @staticmethod
    def _array(weight: torch.Tensor) -> NDArray[Any]:
        return _bits(weight)


def _is_added(mask: torch.Tensor, batch: int, columns: int, keys: int) -> bool:
    """Whether a mask is a plain tensor that is added to the scores of these keys."""
    is_plain = mask.dtype is torch.float32 and type(mask) is torch.Tensor and mask.is_contiguous()
    return is_plain and mask.shape[0] in (1, batch) and mask.shape[1:] == (1, columns, keys)


def _bits(tensor: torch.Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = tensor.detach().view(torch.uint16).numpy()
    return bits


@cache
def _silu() -> NDArray[np.uint16]:
    """PyTorch's SiLU of every bfloat16, indexed by its bit pattern. [65536]"""
    numbers = torch.arange(1 << 16, dtype=torch.int32, device="cpu").to(torch.uint16).view(torch.bfloat16)
    return _bits(torch.nn.functional.silu(numbers))
