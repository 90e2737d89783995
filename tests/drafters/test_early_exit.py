"""Early exit: the first layers alone, with the model's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.targets import wrap
from copyspec.tree import DraftTree
from tests.helpers.models import random_ids, tiny


def without_later_layers(model: PreTrainedModel, layers: int, ids: list[int]) -> torch.Tensor:
    """Logits if the later layers do nothing, [L, V]: their outputs are replaced by their inputs."""

    def skip(module: object, args: tuple[torch.Tensor, ...], kwargs: object, output: object) -> object:
        return (args[0], *output[1:]) if isinstance(output, tuple) else args[0]

    later = list(model.base_model.layers)[layers:]
    handles = [layer.register_forward_hook(skip, with_kwargs=True) for layer in later]
    try:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0]
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "exaone4", "mixtral", "phi", "smollm3", "olmo2"])
def test_against_a_model_whose_later_layers_do_nothing(name: str) -> None:
    layers = 4
    model = tiny(name, num_hidden_layers=layers, **_per_layer(name, layers))
    names = set(model.state_dict())
    ids = random_ids(11)
    for count in (1, 3):
        shallow = early_exit(model, count)
        session = wrap(shallow).open([ids])
        scored = session.score([ids], [DraftTree([5, 6], [-1, 0], [0.5] * 2, [None] * 2)])[0]
        expected = without_later_layers(model, count, [*ids, 5, 6])[-3:]
        torch.testing.assert_close(scored, expected, atol=1e-4, rtol=1e-4)
    assert set(model.state_dict()) == names
    assert model.config.num_hidden_layers == layers == len(model.base_model.layers)


def test_weights_are_shared() -> None:
    model: Any = tiny("llama", num_hidden_layers=3)
    model.model.layers[0].self_attn.train()
    shallow = early_exit(model, 1)
    assert model.model.layers[0].self_attn.training, "flags of shared modules stay"
    ours = {id(parameter) for parameter in shallow.parameters()}
    assert ours < {id(parameter) for parameter in model.parameters()}
    assert not shallow.training


def test_hybrid_models_are_left_after_a_layer_that_attends() -> None:
    kinds = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
    model = tiny("qwen3_5_text", num_hidden_layers=4, layer_types=kinds)
    with pytest.raises(ValueError, match=r"the first 2 layers of Qwen3_5ForCausalLM do not attend.* at least 3"):
        early_exit(model, 2)
    assert wrap(early_exit(model, 3)).supports_drafts


@pytest.mark.parametrize("layers", [0, 2, -1, True, "1"])
def test_number_of_layers_is_checked(layers: object) -> None:
    with pytest.raises(ValueError, match=r"layers must be an integer from 1 to 1, got"):
        early_exit(tiny("llama"), layers)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_architectures_without_a_list_of_layers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"has no list of layers .* give a smaller model as draft_model"):
        early_exit(tiny(name), 1)


def _per_layer(name: str, layers: int) -> dict[str, object]:
    """Settings of the test models that have one entry per layer."""
    if name in ("gemma2", "exaone4"):
        return {"layer_types": ["sliding_attention", "full_attention"] * (layers // 2)}
    return {"no_rope_layers": [1, 0] * (layers // 2)} if name == "smollm3" else {}
