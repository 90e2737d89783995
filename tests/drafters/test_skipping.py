"""Skipped blocks: compared with hooks that undo them; equal outputs, wrong files reported, and the search improves."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.drafters.predictors.skipping import SkipSet, load_skips, without_blocks
from copyspec.models.errors import LoadError
from copyspec.targets import wrap
from copyspec.tree import DraftTree
from tests.helpers.models import random_ids, tiny
from tests.helpers.texts import new_engine
from training.skips import Judge, best_draft, middle, search


def with_zeros(model: PreTrainedModel, skips: SkipSet, ids: list[int]) -> torch.Tensor:
    """Logits if the outputs of the skipped blocks are zeros, [L, V]."""
    handles = [
        part.register_forward_hook(lambda _, __, out: (out[0] * 0, *out[1:]) if isinstance(out, tuple) else out * 0)
        for number, layer in enumerate(model.base_model.layers)
        for part, numbers in ((layer.self_attn, skips.attention), (layer.mlp, skips.mlp))
        if number in numbers
    ]
    try:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0]
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "mixtral"])
def test_against_blocks_that_add_nothing(name: str) -> None:
    model = tiny(name, num_hidden_layers=4, **({"layer_types": None} if name == "gemma2" else {}))
    ids, tree = random_ids(11), DraftTree([5, 6], [-1, 0], [0.5] * 2, [None] * 2)
    for skips in (SkipSet(frozenset({1}), frozenset({2, 3})), SkipSet(frozenset({0, 2}), frozenset({0, 2}))):
        lighter = without_blocks(model, skips)
        scored = wrap(lighter).open([ids]).score([ids], [tree])[0]
        expected = with_zeros(model, skips, [*ids, 5, 6])[-3:]
        torch.testing.assert_close(scored, expected, atol=1e-4, rtol=1e-4)
    assert len(model.base_model.layers) == model.config.num_hidden_layers == 4


def written(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps(SkipSet(frozenset({1}), frozenset()).to_dict(2) | changes))
    return path


def test_output_equals_plain_decoding(tmp_path: Path) -> None:
    engine = new_engine()
    path, text = written(tmp_path / "skips.json"), "The cat sat on the mat, and the dog"
    for options in ({}, {"temperature": 0.9, "seed": 4}):
        plain = engine.generate(text, max_new_tokens=24, drafter="none", **options)
        for drafter in ("auto", "model"):
            drafted = engine.generate(text, max_new_tokens=24, drafter=drafter, draft_model=f"skip:{path}", **options)
            assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 7}, "for a model of 7 layers, and this one has 2"),
        ({"attention": [5]}, "'attention' is not a list of layers from 0 to 1"),
        ({"mlp": "all"}, "'mlp' is not a list"),
        ({"format": 1}, "has format=1"),
    ],
)
def test_wrong_files_are_told(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=message):
        load_skips(written(tmp_path / "skips.json", **changes), tiny("llama"))


def test_models_without_such_blocks_are_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="there is no such file"):
        load_skips(tmp_path / "nothing.json", tiny("llama"))
    with pytest.raises(ValueError, match="has no layers with self_attn and mlp"):
        without_blocks(tiny("gpt2"), SkipSet(frozenset({0}), frozenset()))
    with pytest.raises(ValueError, match="must leave some attention"):
        without_blocks(tiny("llama"), SkipSet(frozenset({0, 1}), frozenset()))


def test_the_search_improves_and_goes_on(tmp_path: Path) -> None:
    model = tiny("llama", num_hidden_layers=4)
    with torch.no_grad():
        model.model.layers[2].self_attn.o_proj.weight.zero_()  # a block without effect
        model.model.layers[2].mlp.down_proj.weight.zero_()
    judge = Judge(model, [(random_ids(20, seed=seed), 4) for seed in range(2)])
    out = tmp_path / "skips.json"
    nothing = SkipSet(frozenset(), frozenset())
    first = judge.score(nothing)
    assert first.agreement == 1.0 and first.cost == 1.0
    best = search(judge, out, nothing, tries=40, until=time.time() + 60, seed=0)
    assert best.speed > first.speed
    found = load_skips(out, model)
    assert (found.attention | found.mlp) and judge.score(found) == best
    assert middle(4).attention == {1}
    assert best_draft(0.0, 0.5).speed < 1 < best_draft(0.9, 0.1).speed
