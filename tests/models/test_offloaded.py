"""Models whose layers are on several devices or on disk, as placed by `device_map` and accelerate."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import copyspec
from copyspec.targets import wrap
from tests.drafters.test_heads import write
from tests.helpers import models
from tests.helpers.texts import byte_level, llama
from tests.helpers.trees import Rows

accelerate = pytest.importorskip("accelerate")


def test_layers_on_cpu_and_disk(tmp_path: Path) -> None:
    tokenizer = byte_level()
    plain = copyspec.Engine(llama(len(tokenizer)), tokenizer)
    model = copy.deepcopy(plain.model)
    places = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(model.config.num_hidden_layers)}
    spread = accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert any(parameter.is_meta for parameter in spread.parameters())
    engine = copyspec.Engine(spread, tokenizer)
    prompts = ["The cat sat on the mat, and the dog sat on the cat. " * 3, "He goes to school"]
    options: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True}
    wanted = [result.token_ids for result in plain.generate(prompts, prompts, **options)]
    for prefix_cache in (False, True, True):
        results = engine.generate(prompts, prompts, prefix_cache=prefix_cache, **options)
        assert [result.token_ids for result in results] == wanted
    assert results[0].stats.num_cached_tokens > 0


def test_heads_draft_for_a_model_on_disk(tmp_path: Path) -> None:
    """LLMCad: the drafter is in memory, and the model's weights are read for each pass."""
    tokenizer = byte_level()
    plain = copyspec.Engine(llama(len(tokenizer)), tokenizer)
    folder = write(tmp_path / "heads", plain.model)
    engine = copyspec.Engine(accelerate.disk_offload(copy.deepcopy(plain.model), str(tmp_path / "disk")), tokenizer)
    options: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True, "draft_model": f"heads:{folder}"}
    drafted, wanted = (one.generate("He goes to school", drafter="model", **options) for one in (engine, plain))
    assert all(parameter.is_meta for parameter in engine.model.parameters())
    assert drafted.token_ids == wanted.token_ids and drafted.stats.num_draft_tokens_per_source["heads"] > 0


# transformers 5.17 says so at each `generate` of a model whose weights are offloaded, which the self-test calls.
@pytest.mark.filterwarnings("ignore:You are calling .generate")
@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "mamba"])
def test_trees_of_mixers_whose_weights_are_offloaded(name: str) -> None:
    """transformers' decorators fetch them: a mixer without weights of its own has no hook itself."""
    model = accelerate.cpu_offload(models.tiny(name), execution_device=torch.device("cpu"))
    target = wrap(model)
    assert target.supports_trees
    rows = Rows(model, target, (11, 4))
    assert max(rows.step() for _ in range(3)) < 2e-3
    rows.session.close()
