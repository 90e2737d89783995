"""Whole decoder layers for CPU passes of few tokens, in float32.

Beside its linear layers, a decoder layer runs some forty operations, which for a few tokens take as long to start as
the linear layers take to read their weights. The compiled module (`native/layer.c`) runs a layer of Llama's kind in one
call: norms, products, rotary positions, attention over the tree cache with the pass's mask, and the gated MLP. Its
results equal PyTorch's within rounding, as those of two numbers of rows do. Each layer's first pass runs both and
compares them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from copyspec.targets.cache import TreeCache
from copyspec.targets.hooks.llama_layers import LlamaLayer, is_unchanged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

try:
    import copyspec.targets._linear as _linear
except ImportError:  # the source is native/layer.c
    _linear = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

MOST_TOKENS = 128
"""Tokens of a pass, over all rows, up to which the compiled layer is faster."""

TOLERANCE = 1e-4  # of the comparison with the model's own layer, relative to the largest output

_HEAD_SIZES = 16  # they are a multiple of this

Weights = tuple[Any, Any]  # of a linear layer, as arrays


class FastLayer:
    """A decoder layer that the compiled module runs."""

    def __init__(self, parts: LlamaLayer, weights: Sequence[Callable[[], Weights | None]]) -> None:
        """`weights`: for each linear layer, a function that returns its arrays, or None if they cannot be read."""
        self.names = vars(parts.layer)
        """The layer's `__dict__`."""
        self._parts = parts
        self._weights = weights
        self._forward = parts.layer.forward
        self._attention = parts.attention
        self._sizes: tuple[object, ...] = ()
        self._compared: set[bool] = set()  # for passes with a mask, and without
        self.is_right = True
        """Whether its results equal the layer's own, as far as they were compared."""

    @staticmethod
    def fits(parts: LlamaLayer) -> bool:
        """Whether the module can run a layer of these sizes."""
        size = parts.attention.head_dim
        norms = [norm for norm in parts.norms if norm is not None]
        return (
            isinstance(size, int)
            and size % _HEAD_SIZES == 0
            and len({norm.variance_epsilon for norm in norms}) == 1
            and all(norm.weight.dtype == torch.float32 and norm.weight.is_contiguous() for norm in norms)  # type: ignore[union-attr, operator]
        )

    def prepare(self) -> bool:
        """Read the layer's sizes and factors. Returns whether the module can run it: no part has a hook or another
        forward that would be skipped."""
        parts, attention = self._parts, self._attention
        inner = (attention, parts.layer.mlp, *parts.linears, *(norm for norm in parts.norms if norm is not None))
        if not self.is_right or "forward" in self.names or not all(is_unchanged(each) for each in inner):  # type: ignore[arg-type]
            return False
        size, epsilon = attention.head_dim, parts.norms[0].variance_epsilon  # type: ignore[union-attr]
        heads, key_heads = (each.out_features // size for each in parts.linears[:2])  # type: ignore[operator]
        self._sizes = heads, key_heads, size, epsilon, attention.scaling
        return True

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: object = None,
        use_cache: bool | None = False,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **more: Any,
    ) -> torch.Tensor:
        """The layer's forward, for passes of `TreeSession`; any other pass runs its own."""
        ours: torch.Tensor | None = None
        is_compared = (attention_mask is None) in self._compared
        if type(past_key_values) is TreeCache and position_embeddings is not None and self.is_right and is_compared:
            ours = self._run(hidden_states, attention_mask, past_key_values, *position_embeddings)
        if ours is not None:
            return ours
        theirs: torch.Tensor = self._forward(
            hidden_states,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
            **more,
        )
        if type(past_key_values) is TreeCache and position_embeddings is not None and self.is_right and not is_compared:
            ours = self._run(hidden_states, attention_mask, past_key_values, *position_embeddings)
            if ours is not None:
                self._compare(ours, theirs)
                self._compared.add(attention_mask is None)
        return theirs

    def _compare(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        self.is_right = bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())
        if not self.is_right:
            logger.info("layer %s is run by torch: the module's results differ", self._attention.layer_idx)

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
        given = (hidden, cosines, sines) if mask is None else (hidden, cosines, sines, mask)
        if batch * columns > MOST_TOKENS or torch.is_grad_enabled():
            return None
        for each in given:
            if each.dtype is not torch.float32 or type(each) is not torch.Tensor or not each.is_contiguous():
                return None
        write = cache.write
        slots: NDArray[np.int64] | None = None if write.slots is None else write.slots.numpy()
        if mask is None:
            if slots is not None or not write.plain:
                return None
        elif mask.shape[1:] != (1, columns, write.stop) or mask.shape[0] not in (1, batch):
            return None
        if cosines.shape != sines.shape or cosines.shape[0] not in (1, batch) or cosines.shape[1] != columns:
            return None
        if batch != (cache.rows if write.row is None else 1):
            return None
        products = tuple([each() for each in self._weights])
        norms = tuple([None if norm is None else norm.weight.detach().numpy() for norm in self._parts.norms])  # type: ignore[operator, union-attr]
        if any(each is None for each in products):
            return None
        _, key_heads, head_size, *_ = self._sizes
        layer = cache.layer(self._attention.layer_idx)  # type: ignore[arg-type]
        if not layer.is_initialized:
            like = hidden.new_empty((batch, key_heads, 0, head_size))  # type: ignore[arg-type]
            layer.lazy_initialization(like, like)
        keys, values = layer.buffers()
        output = torch.empty_like(hidden)
        capacity = keys.shape[2]
        row = 4 * (write.row or 0) * keys.stride(0)
        _linear.layer(
            output.data_ptr(),
            hidden.data_ptr(),
            batch,
            columns,
            products,
            norms,
            self._sizes,
            (cosines.data_ptr(), sines.data_ptr(), cosines.shape[2], cosines.shape[0] > 1),
            (keys.data_ptr() + row, values.data_ptr() + row, capacity, write.start, write.stop, slots),
            None if mask is None else (mask.data_ptr(), mask.shape[0] > 1),
            torch.get_num_threads(),
        )
        return output
