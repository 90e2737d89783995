"""Grouped attention with masks on a CPU: the bits of transformers' own, without copies of the keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from copyspec.targets import wrap
from copyspec.targets.hooks.grouped import NAME, grouped_attention_forward
from copyspec.tree import DraftTree
from tests.helpers import models


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns, in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not result._is_view():
            self.numbers = max(self.numbers, result.numel())
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("key_heads", "group"), [(3, 3), (1, 8), (4, 1)])
@pytest.mark.parametrize("nodes", [1, 2, 9, 33])
def test_bits_are_those_of_transformers(dtype: torch.dtype, key_heads: int, group: int, nodes: int) -> None:
    torch.manual_seed(nodes)
    module = cast("torch.nn.Module", SimpleNamespace(num_key_value_groups=group, is_causal=True))
    for rows, keys in ((1, 40), (1, 533), (3, 200)):
        query = torch.randn(rows, nodes, key_heads * group, 64).to(dtype).transpose(1, 2)
        key, value = torch.randn(2, rows, key_heads, keys + 100, 64).to(dtype)[:, :, :, :keys].unbind()
        seen = torch.rand(rows, 1, nodes, keys) < 0.8
        seen[..., 0] = True
        mask = torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)
        theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.125)
        with Largest() as seen_by:
            output, _ = grouped_attention_forward(module, query, key, value, mask, scaling=0.125)
        assert torch.equal(output, theirs)
        assert nodes == 1 or seen_by.numbers <= output.numel()


def test_passes_with_masks_use_it_and_others_the_models_own() -> None:
    model = models.tiny("llama")
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    before, seen = model.config._attn_implementation, list[str]()
    model.model.layers[0].register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    session = wrap(model).open([[5, 6, 7]])
    session.score([[5, 6, 7]], [DraftTree()])
    session.keep([()])
    session.score([[8]], [DraftTree([5, 6], [-1, -1], [0.5, 0.4])])
    session.keep([()])
    session.close()
    assert seen == [before, NAME]
    assert model.config._attn_implementation == before
