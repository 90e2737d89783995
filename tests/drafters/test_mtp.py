"""A model's own layer for multi-token prediction: found in each family's layout, computed as the family does, used, and
reported if its files are broken. Outputs equal plain decoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, cache_utils, modeling_layers

from copyspec.drafters.predictors import mtp_layer
from copyspec.drafters.predictors.heads import DraftHeads, weights_of
from copyspec.drafters.predictors.mtp_files import load_mtp
from copyspec.drafters.predictors.mtp_layer import CONTEXT, MTP_ACCURACY, TAIL, MtpLayer
from copyspec.models.errors import LoadError
from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.base import LAST
from tests.drafters.test_heads import add_heads, plain, rows, run
from tests.helpers import mtp
from tests.helpers.cpu_graph import CpuGraph
from tests.helpers.models import random_ids, tiny
from tests.helpers.pairs import PairRows


@pytest.mark.parametrize("name", mtp.FAMILIES)
def test_each_familys_layout(name: str, tmp_path: Path) -> None:
    """Drafts of two tokens, with a branch, after seven pairs that are read in two passes."""
    model = mtp.write(name, tmp_path)
    with torch.inference_mode():  # as a caller may have entered it
        heads = DraftHeads(load_mtp(model), model)
        layer = heads.bound.heads
    assert isinstance(layer, MtpLayer) and heads.layers == (LAST,)
    size = model.config.hidden_size
    drawn = torch.Generator().manual_seed(1)
    before, tokens = torch.randn(7, size, generator=drawn), torch.randn(10, size, generator=drawn)
    # What the model's last norm made of the states that Ernie's layer is trained on.
    states = model.base_model.norm(before) if name == "Ernie 4.5" else before

    def expected(pairs: torch.Tensor, more: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        next_, inputs = mtp.reference(name, model, pairs, torch.cat([tokens[:7], more]))
        return next_[-1], inputs[-1]

    with torch.inference_mode():
        read, row = PairRows(CONTEXT), torch.zeros(1, 1, dtype=torch.long)
        layer.begin(read.read((states[:3], tokens[:3])))
        root = layer.begin(read.read((states[3:], tokens[3:7])))
        after, inputs = expected(before, tokens[:0])
        torch.testing.assert_close(layer.head_inputs(root.features[0, 0]), inputs, atol=1e-4, rtol=1e-3)
        children = layer.follow(root, (row, torch.tensor([[0, 0]])), tokens[None, 7:9])
        leaf = layer.follow(children, (row, torch.tensor([[1]])), tokens[None, 9:10])
        two = torch.cat([before, after[None]])
        for child, token in zip(children.features[0], tokens[7:9], strict=True):
            then, inputs = expected(two, token[None])
            torch.testing.assert_close(layer.head_inputs(child), inputs, atol=1e-4, rtol=1e-3)
        _, inputs = expected(torch.cat([two, then[None]]), tokens[8:10])
        torch.testing.assert_close(layer.head_inputs(leaf.features[0, 0]), inputs, atol=1e-4, rtol=1e-3)


STATIC = {"DeepSeek-V3", "GLM-4 MoE", "MiMo", "Ernie 4.5"}
"""Families whose models have static passes: the others have states."""

PLAIN: dict[tuple[str, float], list[list[int]]] = {}
"""What each family writes without drafts at a temperature."""


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Any]:
    """A family's target, with static passes or without: made, tested and recorded once."""
    model_of = cache(lambda name: mtp.write(name, tmp_path_factory.mktemp("model")))
    static = StaticOptions(use="always", new_graph=CpuGraph)
    return cache(lambda name, is_static: wrap(model_of(name), static=static if is_static else None))


@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(("name", "copies"), [(name, number % 2 == 0) for number, name in enumerate(mtp.FAMILIES)])
def test_output_equals_plain_decoding(
    name: str, copies: bool, temperature: float, is_static: bool, target_of: Callable[[str, bool], Any]
) -> None:
    if is_static and name not in STATIC:
        pytest.skip("no static passes")
    target, requests = target_of(name, is_static), rows(temperature)
    model = target.model
    if (name, temperature) not in PLAIN:
        PLAIN[name, temperature] = plain(target, requests)
    heads = DraftHeads(load_mtp(model), model)
    for request in requests:
        add_heads(request, heads, copies=copies)
    drafted = run(target, requests)
    assert [tokens for tokens, _ in drafted] == PLAIN[name, temperature]
    assert sum(stats.num_draft_tokens_per_source.get("heads", 0) for _, stats in drafted) > 0
    assert not is_static or "eager" not in {stats.runner for _, stats in drafted}
    assert weights_of(model)[0] is heads.bound.shared or heads.bound.shared.equal(weights_of(model)[0])


def test_a_layer_that_knows_the_target_is_accepted(tmp_path: Path) -> None:
    """Without attention and perceptrons both see the last token's embedding alone, and predict the same from it."""
    family = mtp.FAMILIES["MiMo"]
    plain, size = tiny(family.model), SIZE
    drawn = mtp.mtp_tensors(family, plain)
    changes = {key: torch.zeros_like(tensor) for key, tensor in drawn.items() if "o_proj" in key or "down_proj" in key}
    changes[f"{family.projection}.weight"] = torch.cat([torch.zeros(size, size), torch.eye(size)], 1)
    changes |= {f"{norm}.weight": torch.ones(size) for norm in (family.token_norm, family.norm)}
    model = mtp.write("MiMo", tmp_path, changes)
    for layer in model.base_model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    target, requests = wrap(model), rows(0.0)
    expected = [tokens for tokens, _ in run(target, requests)]
    heads = DraftHeads(load_mtp(model), model)
    for request in requests:
        add_heads(request, heads, copies=False)
    drafted = run(target, requests)
    assert [tokens for tokens, _ in drafted] == expected
    accepted = sum(stats.num_accepted_tokens_per_source.get("heads", 0) for _, stats in drafted)
    assert accepted > 0.4 * sum(map(len, expected)) and heads.reliability.top1_accuracy > MTP_ACCURACY


Q, HEAD = "mtp.layers.0.self_attn.q_proj.weight", "model.layers.2.shared_head.head.weight"
EXPERT, SIZE = "mtp.layers.0.mlp.experts.3.up_proj.weight", 32


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Qwen3.5", {"mtp.fc.weight": None}, "hold a layer .* as in Qwen3-Next, Qwen3.5, but no 'mtp.fc.weight': get"),
        ("Qwen3.5", {Q: None, f"{Q}_1": torch.ones(1)}, rf"but no '{Q}' \(but '{Q}_1'\)"),
        ("Qwen3.5", {Q: torch.ones(3, SIZE)}, rf"'{Q}' has shape \[3, 32\], and the model needs \[64, 32\]: get"),
        ("Qwen3.5", {Q: torch.ones(64, SIZE).long()}, f"'{Q}' has dtype I64, and layers that are quantised"),
        ("Qwen3.5", {Q: torch.ones(64, SIZE).to(torch.float8_e4m3fn)}, f"'{Q}' has dtype F8_E4M3, and layers"),
        ("Qwen3.5", {Q: torch.full((64, SIZE), torch.nan)}, f"'{Q}' has values that are no numbers"),
        ("Qwen3.5", {f"{Q}_scale_inv": torch.ones(1)}, f"'{Q}_scale_inv' has no place in a layer of Qwen3_5Decoder"),
        ("Qwen3-Next", {EXPERT: None}, f"no '{EXPERT}'"),
        ("GLM-4 MoE", {HEAD: torch.ones(5, SIZE)}, rf"'{HEAD}' has shape \[5, 32\], and the model needs \[96, 32\]"),
        ("MiMo", {"model.mtp_layers.0.input_proj.weight": None}, "no 'model.mtp_layers.0.input_proj.weight'"),
        ("Ernie 4.5", {"model.mtp_emb_norm.0.weight": torch.ones(7)}, r"'model.mtp_emb_norm.0.weight' has shape \[7\]"),
    ],
)
def test_broken_layers_are_told(
    name: str, changes: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    model = mtp.write(name, tmp_path, changes)
    with pytest.raises(LoadError, match=f"draft_model='mtp' cannot be used: .*{message}"):
        load_mtp(model)


def test_files_without_a_layer_are_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="the model was not loaded from files"):
        load_mtp(tiny("llama"))
    tiny("llama").save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(LoadError, match="hold no layer for multi-token prediction, in none of the layouts of"):
        load_mtp(model)
    shorter = AutoModelForCausalLM.from_pretrained(tmp_path, num_hidden_layers=1)
    with pytest.raises(LoadError, match="hold no layer for multi-token prediction"):
        load_mtp(shorter)  # the file's second layer is none
    file = tmp_path / mtp.WEIGHTS
    save_file(load_file(file) | {"mtp.0.e_proj.weight": torch.ones(1)}, tmp_path / "other.safetensors")
    (tmp_path / "other.safetensors").replace(file)
    with pytest.raises(LoadError, match=r"hold 'mtp\.0\.e_proj\.weight', in none of the layouts that are read"):
        load_mtp(model)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(LoadError, match="is a pointer of Git LFS"):
        load_mtp(model)
    file.unlink()
    outside = "../other.safetensors", "names a file outside of the folder"
    for place, message in (outside, (None, "holds no safetensors")):
        if place is not None:
            index = {"metadata": {}, "weight_map": {"mtp.fc.weight": place}}
            (tmp_path / f"{mtp.WEIGHTS}.index.json").write_text(json.dumps(index))
        else:
            (tmp_path / f"{mtp.WEIGHTS}.index.json").unlink()
        with pytest.raises(LoadError, match=message):
            load_mtp(model)


@pytest.mark.parametrize("same", [True, False])
def test_output_weights_and_embeddings_of_the_layers_own(same: bool, tmp_path: Path) -> None:
    """Copies of the model's are not kept; others are used."""
    plain = tiny("deepseek_v3")
    output, table = (tensor.detach().clone() for tensor in weights_of(plain))
    changes = {HEAD: output, HEAD.replace("shared_head.head", "embed_tokens"): table}
    model = mtp.write(
        "DeepSeek-V3", tmp_path, {key: tensor if same else tensor.flip(0) for key, tensor in changes.items()}
    )
    bound = DraftHeads(load_mtp(model), model).bound
    assert isinstance(bound.heads, MtpLayer) and (bound.heads.output is None) is same
    assert bound.shared.equal(output if same else output.flip(0))
    assert bound.embeddings.equal(table if same else table.flip(0))


def test_weights_in_several_files(tmp_path: Path) -> None:
    """As large checkpoints are stored; the index tells which files there are."""
    model = mtp.write("Qwen3-Next", tmp_path)
    expected = load_mtp(model).heads
    tensors = load_file(tmp_path / mtp.WEIGHTS)
    (tmp_path / mtp.WEIGHTS).unlink()
    names = {key: f"part-{number % 3}.safetensors" for number, key in enumerate(tensors)}
    for name in set(names.values()):
        save_file({key: tensor for key, tensor in tensors.items() if names[key] == name}, tmp_path / name)
    index = {"metadata": {}, "weight_map": names}
    (tmp_path / f"{mtp.WEIGHTS}.index.json").write_text(json.dumps(index))
    layer = load_mtp(model).heads
    assert isinstance(expected, MtpLayer) and isinstance(layer, MtpLayer)
    pairs = zip(expected.state_dict().items(), layer.state_dict().items(), strict=True)
    assert all(ours[0] == theirs[0] and ours[1].equal(theirs[1]) for ours, theirs in pairs)


def test_a_long_text_keeps_the_latest_pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Older pairs than are kept are forgotten, and what is read piece by piece is what is read at once."""
    model = mtp.write("GLM-4 MoE", tmp_path)
    layer = DraftHeads(load_mtp(model), model).bound.heads
    assert isinstance(layer, MtpLayer)
    states, tokens = torch.randn(2, 60, SIZE)
    with torch.inference_mode():
        rows, whole = PairRows(20), PairRows(20)
        for place in range(0, 36, 2):
            nodes = layer.begin(rows.read((states[place : place + 2], tokens[place : place + 2])))
        assert rows.memory.tensors[0].shape[1] <= 64
        monkeypatch.setattr(mtp_layer, "CHUNK", 3)
        whole.before = [36 - 20]
        assert TAIL < 20
        same = layer.begin(whole.read((states[16:36], tokens[16:36])))
    torch.testing.assert_close(nodes.features, same.features, atol=1e-4, rtol=1e-3)


@pytest.mark.skipif(
    not hasattr(getattr(modeling_layers, "MtpModel", None), "forward_layer"),
    reason="this release of transformers runs no such layer by itself",
)
@pytest.mark.parametrize("name", ["DeepSeek-V3", "GLM-4 MoE"])
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    model: Any = mtp.write(name, tmp_path)
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2.*"]  # it knows the numbers of published models
    theirs = modeling_layers.MtpModel.from_pretrained(model)
    layer = DraftHeads(load_mtp(model), model).bound.heads
    assert isinstance(layer, MtpLayer)
    states, ids = torch.randn(6, SIZE), torch.tensor(random_ids(6))
    with torch.inference_mode():
        nodes = layer.begin(PairRows(CONTEXT).read((states, model.get_input_embeddings()(ids))))
        cache = cache_utils.MtpCache(config=model.config.get_mtp_config())
        output = theirs.forward_layer(0, states[None], torch.arange(1, 7)[None], cache, input_ids=ids[None])
    torch.testing.assert_close(nodes.features[0, 0], output[0, -1], atol=1e-5, rtol=1e-4)
