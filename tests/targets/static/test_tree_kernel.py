"""Tree attention: the Triton kernel (interpreted) and its torch version against float64, and in whole models."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from copyspec.options import StaticOptions
from copyspec.targets.static import tree_attention
from copyspec.targets.static.packing import FIELDS, pack, words
from copyspec.tree import DraftTree
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.targets.static.test_static_equal import LENGTHS, expected_of, run

# Triton 3.6, of torch 2.11, converts arrays of one number when it interprets a kernel, of which NumPy 2.2 warns.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

BY_TREE = StaticOptions(use="always", attention="tree")


class Case(NamedTuple):
    rows: int = 2
    key_heads: int = 2
    group: int = 1
    nodes: int = 17
    width: int = 32
    slots: int = 600
    window: int = 0
    softcap: float | None = None
    has_sinks: bool = False
    value_width: int | None = None
    dtype: torch.dtype = torch.float32


CASES = {
    "heads of their own": Case(width=64),
    "groups of 4": Case(group=4, nodes=33),
    "groups of 7, 80 numbers": Case(key_heads=1, group=7, width=80),
    "window, two words of bits": Case(group=4, nodes=70, window=100, width=16),
    "window inside the tree": Case(window=3, slots=300),
    "softcap": Case(softcap=20.0),
    "sinks, narrow values": Case(group=4, has_sinks=True, value_width=24),
    "plain": Case(rows=3, group=4, nodes=1),
    "bfloat16": Case(group=7, key_heads=1, nodes=33, dtype=torch.bfloat16),
    "bfloat16, all": Case(group=4, nodes=33, window=200, softcap=20.0, has_sinks=True, dtype=torch.bfloat16),
}


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def require_kernels() -> None:
    """Skip a test where Triton's kernels are neither compiled, on a GPU, nor interpreted."""
    pytest.importorskip("triton")
    if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("TRITON_INTERPRET=1 interprets kernels on a CPU")


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    """The kernel's module: interpreted, or compiled if there is a GPU."""
    require_kernels()
    from copyspec.targets.static import tree_kernel

    return tree_kernel


def inputs(case: Case) -> dict[str, Any]:
    """Make arguments of `attend`: ragged rows, the first of which ends with the last slot."""
    generator, choose = torch.Generator().manual_seed(1), random.Random(1)
    random_of = partial(torch.randn, generator=generator, dtype=torch.float64)
    lengths = [case.slots - case.nodes, *(choose.randrange(case.slots - case.nodes) for _ in range(case.rows - 1))]
    trees = []
    for row in range(case.rows):
        size = case.nodes - 1 if row == 0 else choose.randrange(case.nodes)
        trees.append(DraftTree([1] * size, [choose.randrange(-1, node) for node in range(size)]))
    packed = np.zeros((FIELDS + words(case.nodes), case.rows, case.nodes), np.int64)
    pack(packed, lengths, [[1]] * case.rows, trees, [[]] * case.rows, 0)
    tree = torch.from_numpy(packed)[1:].permute(1, 2, 0).unsqueeze(1).expand(-1, 1 + case.window, -1, -1)
    heads, keys = case.key_heads * case.group, (case.rows, case.key_heads, case.slots)
    return {
        "query": random_of(case.rows, heads, case.nodes, case.width).to(case.dtype),
        "keys": random_of(*keys, case.width).to(case.dtype),
        "values": random_of(*keys, case.value_width or case.width).to(case.dtype),
        "tree": tree,
        "scale": case.width**-0.5,
        "softcap": case.softcap,
        "sinks": random_of(heads).to(case.dtype) if case.has_sinks else None,
    }


def exact(arguments: dict[str, Any]) -> torch.Tensor:
    """Compute attention in float64, node by node, with visible columns looked up instead of derived from bit masks."""
    query, keys, values, tree = (arguments[name] for name in ("query", "keys", "values", "tree"))
    rows, heads, nodes, _ = query.shape
    group, window = heads // keys.shape[1], tree.shape[1] - 1
    out = torch.zeros(rows, nodes, heads, values.shape[3], dtype=torch.float64)
    for row in range(rows):
        depths, length = tree[row, 0, :, 0].tolist(), int(tree[row, 0, 0, 1])
        for node in range(nodes):
            bits = sum(int(word) << 63 * index for index, word in enumerate(tree[row, 0, node, 4:]))
            places = dict(enumerate(range(length)))
            places |= {length + other: length + depths[other] for other in range(nodes) if bits >> other & 1}
            seen = [slot for slot, at in places.items() if not window or length + depths[node] - at < window]
            for head in range(heads):
                scores = keys[row, head // group, seen].double() @ query[row, head, node].double() * arguments["scale"]
                if arguments["softcap"]:
                    scores = arguments["softcap"] * torch.tanh(scores / arguments["softcap"])
                if arguments["sinks"] is not None:
                    scores = torch.cat([scores, arguments["sinks"][head].double().view(1)])
                out[row, node, head] = scores.softmax(0)[: len(seen)] @ values[row, head // group, seen].double()
    return out


@pytest.mark.parametrize("name", CASES)
def test_kernel_against_float64(name: str, kernel: ModuleType) -> None:
    arguments = inputs(CASES[name])
    expected = exact(arguments)
    on_device = {name: each.to(DEVICE) if isinstance(each, torch.Tensor) else each for name, each in arguments.items()}
    in_half = CASES[name].dtype == torch.bfloat16
    for attend, limit in (
        (kernel.attend, 5e-3 if in_half else 1e-6),
        (tree_attention.attend_in_torch, 1e-2 if in_half else 1e-6),  # it also rounds the attention weights
    ):
        error = (attend(**on_device).double().cpu() - expected).abs().max() / expected.abs().max()
        assert error <= limit, attend


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gpt_oss", "deepseek_v3"])
def test_models_with_the_kernel_decode_what_generate_does(
    name: str, kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def attend(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        attended: torch.Tensor = kernel.attend(*arguments)
        return attended

    monkeypatch.setattr(tree_attention, "attend", attend)
    model = models.tiny(name).to(DEVICE)
    expected = expected_of(model, (6, 8))
    outputs, _ = run(model, BY_TREE, expected, nodes=7)
    assert outputs == expected and len(calls) > 4


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2"])
def test_models_without_triton_replay_it(name: str) -> None:
    model = models.tiny(name)
    expected = expected_of(model, LENGTHS[1:3])
    outputs, stats = run(model, StaticOptions(use="always", attention="tree", new_graph=CpuGraph), expected)
    assert outputs == expected and "graph" in {each.runner for each in stats}


@pytest.mark.parametrize(
    ("name", "reason"), [("falcon", "takes no tree mask"), ("llama4_text", "bias"), ("t5", "encoder")]
)
def test_models_that_cannot_have_it_take_masks(name: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    model = models.tiny(name)
    expected = expected_of(model, (9,))
    with caplog.at_level(logging.WARNING, "copyspec"):
        outputs, stats = run(model, BY_TREE, expected)
    assert outputs == expected and stats[0].runner == "static"
    assert [reason in record.message for record in caplog.records] == [True]
    assert caplog.records[0].message.endswith("its attention takes masks")


def test_a_layer_that_is_handed_no_tree_mask_says_so() -> None:
    tokens = torch.zeros(1, 1, 1, 8)
    arguments = torch.nn.Linear(1, 1), tokens, tokens, tokens, torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match="Linear passes attention something other"), tree_attention.callers():
        tree_attention.tree_attention_forward(*arguments)
    assert torch.equal(tree_attention.tree_attention_forward(*arguments)[0], tokens)  # as from another thread
    with pytest.raises(ValueError, match="Linear passes attention something other"):
        tree_attention.tree_attention_forward(*arguments, softcap=2.0)


def test_calls_of_other_threads_are_not_recorded() -> None:
    tokens = torch.zeros(1, 1, 1, 8)
    tree = torch.zeros(1, 1, 1, FIELDS - 1 + words(1), dtype=torch.long)
    attend = partial(tree_attention.tree_attention_forward, torch.nn.Linear(1, 1), tokens, tokens, tokens)
    with tree_attention.callers() as layers, ThreadPoolExecutor() as pool:
        pool.submit(attend, tree).result()
        assert torch.equal(pool.submit(attend, torch.zeros(1, 1, 1, 1)).result()[0], tokens)  # without a tree mask
        assert not layers
        attend(tree)
        assert len(layers) == 1


def test_the_kernel_is_built_for_hopper_without_a_stack(tmp_path: Path) -> None:
    """Needs no GPU. A stack would mean spilled registers."""
    pytest.importorskip("triton")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.kernel_build", "--sizes", "1x33"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[3]
    built = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "attend" in built.stdout and "combine" in built.stdout
