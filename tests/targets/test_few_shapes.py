"""What passes on a GPU cost, counted on other devices: few shapes of attention, no copies of grouped keys, and one copy
from the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.model import facts
from copyspec.tree import DraftTree
from tests.helpers import models

EAGER = StaticOptions(use="never")
TREE = DraftTree([20, 21, 22, 23], [-1, 0, -1, 2], [0.5] * 4, [None] * 4)


class Operators(TorchDispatchMode):
    """Records the (queries, keys) of attention, and the bytes of new tensors with `keys` keys or values."""

    def __init__(self, keys: int = 0) -> None:
        super().__init__()
        self.shapes: list[tuple[int, int]] = []
        self.cloned, self.keys = 0, keys

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().split("::")[1].split(".")[0]
        if "scaled_dot_product" in name:
            self.shapes.append((args[0].shape[2], args[1].shape[2]))
        elif isinstance(out, torch.Tensor) and self.keys in out.shape[:-1]:
            storages = {leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
            if out.untyped_storage()._cdata not in storages:
                self.cloned += out.numel() * out.element_size()
        return out


def test_six_shapes_of_attention_in_500_tokens() -> None:
    """Trees of any size up to 32 nodes, prompts of two hundred tokens, a single row: each new shape is a new plan."""
    model = models.tiny("llama", max_position_embeddings=1024, num_hidden_layers=1)
    target = wrap(model, static=StaticOptions(use="always"))
    prompt = models.random_ids(200, seed=1)
    session = target.open([prompt], 500)
    chain, length = list(prompt), 0
    with Operators() as seen:
        while length < 500:
            size = (7 * length) % 33
            session.score([chain], [DraftTree.of_chain([5 + node for node in range(size)])])
            path = range(size // 3)
            session.keep([list(path)])
            chain, length = [9], length + 1 + len(path)
    session.close()
    assert len(seen.shapes) > 80 and len(set(seen.shapes)) <= 6, set(seen.shapes)


LLAMA3_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}


@pytest.fixture(scope="module")
def large() -> PreTrainedModel:
    """Two layers of Llama-3-8B's shape, on the meta device."""
    config = LlamaConfig(**LLAMA3_8B, num_hidden_layers=2, vocab_size=1024, max_position_embeddings=8192)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


@pytest.mark.parametrize(("options", "group"), [(EAGER, 4), (StaticOptions(use="always"), 4), (EAGER, 1)])
def test_keys_of_grouped_heads_are_not_copied(
    options: StaticOptions, group: int, large: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if group == 1:  # control group: as transformers does it
        monkeypatch.setattr(facts, "group_size", lambda *_: 1)
    prompt = list(range(700))
    session = wrap(large, static=options).open([prompt], 100)
    session.score([prompt], [TREE])
    session.keep([[0, 1]])
    tokens, slots = (5, 700 + 2 + 5) if options is EAGER else (8, 1024)
    with Operators(keys=slots) as seen:
        logits = session.score([[9]], [TREE])[0]
    assert logits.shape == (5, 1024) and logits.device.type == "meta"
    assert seen.shapes == [(group * tokens, slots)] * 2
    assert seen.cloned == (0 if group > 1 else 2 * 2 * 32 * slots * 128 * 2)
    session.close()


def test_only_what_is_laid_out_comes_from_the_host_at_7b() -> None:
    """Uses the meta device: copies are counted by device. The model must be unchanged afterwards."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(max_position_embeddings=2048), dtype=torch.bfloat16).eval()
    before = anatomy(model)
    prompt = list(range(300))
    session = wrap(model, static=StaticOptions(use="always")).open([prompt], 100)
    session.score([prompt], [TREE])
    session.keep([[2, 3]])
    copies: list[tuple[str, tuple[int, ...]]] = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            hosts = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"]
            if isinstance(out, torch.Tensor) and out.device.type == "meta" and hosts:
                copies.append((func.name(), tuple(hosts[0].shape)))
            return out

    with Copies():
        logits = session.score([[9]], [TREE])[0]
    assert logits.shape == (5, 32000) and [name for name, _ in copies] == ["aten::copy_"]
    session.close()
    assert anatomy(model) == before


def anatomy(model: PreTrainedModel) -> list[object]:
    """Collect configuration, modules, their attributes and hooks."""
    parts: list[object] = [model.config.to_dict(), model.config._attn_implementation]
    for name, module in model.named_modules():
        parts.append((name, type(module), sorted(vars(module)), len(module._forward_hooks), module.training))
    return parts
