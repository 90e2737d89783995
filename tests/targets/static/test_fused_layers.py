"""Layers that static passes run with few kernels: the Triton kernels (interpreted, or compiled if there is a GPU)
against torch's operators, and whole models against their own layers."""

from __future__ import annotations

import logging
from functools import partial
from types import ModuleType

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.hooks import llama_layers
from copyspec.targets.static import buffers, fused_layers, triton_kernels
from copyspec.targets.static.static_target import StaticTarget
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.targets.static.test_static_equal import LENGTHS, expected_of, run
from tests.targets.static.test_tree_kernel import DEVICE, require_kernels

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

FUSED = ("llama", "mistral", "qwen2", "qwen3")
OTHERS = ("gemma3_text", "gpt2", "t5", "qwen3_moe")
TYPES = {"float32": (torch.float32, 2e-6), "bfloat16": (torch.bfloat16, 8e-3 if DEVICE == "cuda" else 3e-2)}
"""Dtypes, and the largest difference, as a share of the largest number: the last bit, since norms are summed in another
order. Triton's interpreter truncates in bfloat16 where a GPU rounds."""


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    require_kernels()
    from copyspec.targets.static import layer_kernels

    return layer_kernels


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("width", [32, 80])
@pytest.mark.parametrize("is_added", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_norms(kind: str, is_added: bool, width: int, kernels: ModuleType) -> None:
    dtype, limit = TYPES[kind]
    x, added, weight = (drawn(*shape, dtype=dtype, seed=n) for n, shape in enumerate([(2, 9, width)] * 2 + [(width,)]))
    extra = added if is_added else None
    expected = fused_layers.rms_norm(x, extra, weight, 1e-6)
    outputs = kernels.rms_norm(x.to(DEVICE), None if extra is None else extra.to(DEVICE), weight.to(DEVICE), 1e-6)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert (ours.cpu() - theirs).abs().max() <= limit * theirs.abs().max()


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("shared_angles", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_heads_are_turned_and_stored(kind: str, shared_angles: bool, has_norms: bool, kernels: ModuleType) -> None:
    dtype, limit = TYPES[kind]
    rows, columns, heads, key_heads, size, capacity = 1, 5, 4, 2, 24, 40
    make = partial(drawn, dtype=dtype)
    queries, keys, values = (make(rows, columns, n * size, seed=n) for n in (heads, key_heads, key_heads))
    turn = drawn(1 if shared_angles else rows, columns, size, dtype=torch.float32, seed=9)
    angles = turn.cos().to(dtype), turn.sin().to(dtype)
    norms = (make(size, seed=5), make(size, seed=6)) if has_norms else None
    slots = torch.tensor([[7, 8, 9, 0, 11]])
    # Views of larger buffers, as in a pool.
    caches = [make(3, rows + 1, key_heads, capacity, size, seed=7) for _ in range(2)]
    expected = fused_layers.place_heads(
        queries, keys, values, angles, norms, 1e-6, (caches[0][1, :rows], caches[0][2, :rows]), slots
    )
    ours = caches[1].to(DEVICE)
    move = partial(torch.Tensor.to, device=DEVICE)
    placed = kernels.place_heads(
        *map(move, (queries, keys, values)), tuple(map(move, angles)), norms and tuple(map(move, norms)), 1e-6,
        (ours[1, :rows], ours[2, :rows]), slots.to(DEVICE),
    )  # fmt: skip
    assert (placed.cpu() - expected).abs().max() <= limit * expected.abs().max()
    assert (ours.cpu() - caches[0]).abs().max() <= limit * caches[0].abs().max()
    assert torch.equal(ours.cpu()[0], caches[0][0]) and torch.equal(ours.cpu()[:, rows], caches[0][:, rows])


@pytest.mark.parametrize("kind", TYPES)
def test_gates(kind: str, kernels: ModuleType) -> None:
    dtype, limit = TYPES[kind]
    gate, up = (drawn(2, 9, 100, dtype=dtype, seed=seed) * 3 for seed in (0, 1))
    expected = fused_layers.silu_times(gate, up)
    product = kernels.silu_times(gate.to(DEVICE), up.to(DEVICE)).cpu()
    assert (product - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("columns", [1, 33, 129])
def test_moves(columns: int, kernels: ModuleType) -> None:
    """Slots that others are read from are overwritten, as when a path off the first chain is kept."""
    ours, theirs = (drawn(3, 2, 300, 24, dtype=torch.float32) for _ in range(2))
    count = columns // 3
    sources, targets = torch.zeros(columns, dtype=torch.long), torch.zeros(columns, dtype=torch.long)
    sources[:count] = torch.arange(5, 5 + 2 * count, 2)
    targets[:count] = torch.arange(4, 4 + count)
    buffers.move(theirs, sources, targets)
    on_device = ours.to(DEVICE)
    kernels.move(on_device, sources.to(DEVICE), targets.to(DEVICE))
    assert torch.equal(on_device.cpu(), theirs)


def target_of(model: PreTrainedModel, **options: object) -> StaticTarget:
    target = wrap(model, static=StaticOptions(use="always", **options))  # type: ignore[arg-type]
    assert isinstance(target, StaticTarget)
    target.open([[1, 2, 3]]).close()
    return target


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("attention", ["masks", "tree"])
def test_models_decode_what_generate_does(name: str, attention: str) -> None:
    model = models.tiny(name)
    assert len(target_of(model, attention=attention)._fused) == 2
    before = [dict(vars(module)) for module in model.modules()]
    options = StaticOptions(use="always", attention=attention, new_graph=CpuGraph)  # type: ignore[arg-type]
    expected = expected_of(model, LENGTHS)
    assert run(model, options, expected)[0] == expected
    target = target_of(model, attention=attention)
    assert all(layer.computed for layer in target._fused) and target.layers_by == "fused (2)"
    assert [set(vars(module)) for module in model.modules()] == [set(names) for names in before]


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_keep_their_layers(name: str) -> None:
    assert not target_of(models.tiny(name))._fused


@pytest.mark.parametrize("name", ["mlp", "mlp.act_fn"])
def test_what_somebody_replaced_is_run(name: str) -> None:
    model = models.tiny("llama")
    part = model.model.layers[1].get_submodule(name)  # type: ignore[union-attr, index]
    part.forward = lambda x: 0 * x  # type: ignore[method-assign]
    assert not target_of(model)._fused


def test_kernels_that_do_not_run_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a GPU, or a C compiler, their launch raises an error."""
    cuda = torch.device("cuda:7")
    monkeypatch.setattr(triton_kernels, "find_spec", lambda name: object())
    triton_kernels.kernels_run.cache_clear()
    with caplog.at_level(logging.WARNING, "copyspec"):
        assert not triton_kernels.kernels_run(cuda) and not triton_kernels.kernels_run(cuda)
        assert not triton_kernels.kernels_run(torch.device("cpu"))
    triton_kernels.kernels_run.cache_clear()
    assert len(caplog.records) == 1 and "kernels do not run here" in caplog.text


def test_layers_that_are_called_otherwise_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(llama_layers, "cache_argument", lambda arguments: "the cache of next year")
    with caplog.at_level(logging.WARNING, "copyspec"):
        target = target_of(models.tiny("llama"))
    assert not target._fused and target.layers_by.startswith("by transformers")
    assert "does not call its layers as fused layers expect it" in caplog.text


def test_it_can_be_turned_off() -> None:
    assert not target_of(models.tiny("llama"), fuse=False)._fused


def test_layers_with_other_scores_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused_layers, "silu_times", lambda gate, up: gate * up)
    with caplog.at_level(logging.WARNING, "copyspec"):
        assert not target_of(models.tiny("llama"))._fused
    assert "scores otherwise with fused layers; its layers run as they are" in caplog.text
