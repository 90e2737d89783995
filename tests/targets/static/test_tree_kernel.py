"""Tree attention: the Triton kernel (interpreted) and its torch version against float64, and in whole models."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Sequence
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
from copyspec.targets.static.layout import PagedRow, Shape, lay_out, split_parts
from copyspec.targets.static.masks_on_device import PassInputs
from copyspec.targets.static.settings import EXACT_SPLIT, PAGE, QUERIES
from copyspec.tree import DraftTree
from tests.helpers import models
from tests.helpers.cpu_graph import CpuGraph
from tests.targets.static.test_static_equal import LENGTHS, expected_of, run

# Triton 3.6, of torch 2.11, converts arrays of one number when it interprets a kernel, of which NumPy 2.2 warns.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")

BY_TREE = StaticOptions(use="always", attention="tree")


PAGES = 24  # of the pool


class Case(NamedTuple):
    key_heads: int = 2
    group: int = 1
    rows: Sequence[tuple[int, int, int]] = ((583, 1, 16), (70, 1, 3), (0, 5, 0), (130, 40, 9))
    """Cached tokens, uncached ones, and nodes of each row."""
    width: int = 32
    window: int = 0
    softcap: float | None = None
    has_sinks: bool = False
    value_width: int | None = None
    dtype: torch.dtype = torch.float32
    tokens: int = 96
    tile: int = 0  # 0: as it is chosen
    ordered: bool = False


CASES = {
    "heads of their own": Case(width=64),
    "groups of 4": Case(group=4),
    "groups of 7, 80 numbers": Case(key_heads=1, group=7, width=80),
    "window, two words of bits": Case(group=4, rows=((300, 1, 70), (9, 1, 0)), window=100, width=16),
    "window inside the tree": Case(rows=((200, 1, 20), (2, 1, 20)), window=3),
    "softcap": Case(softcap=20.0),
    "sinks, narrow values": Case(group=4, has_sinks=True, value_width=24),
    "plain": Case(rows=((400, 1, 0), (63, 1, 0), (64, 1, 0)), group=4, tokens=3),
    "pieces of prompts": Case(rows=((128, 60, 0), (0, 33, 0)), group=2, window=50),
    "units of one token": Case(group=4, tile=1, window=90, ordered=True),
    "heads of a group in parts": Case(key_heads=1, group=48, width=16),
    "bfloat16": Case(group=7, key_heads=1, dtype=torch.bfloat16),
    "bfloat16, all": Case(group=4, window=200, softcap=20.0, has_sinks=True, dtype=torch.bfloat16),
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


def laid_out(case: Case, choose: random.Random) -> tuple[PassInputs, list[tuple[list[int], int, list[list[int]]]]]:
    """A pass over rows whose pages are scattered over the pool. Also, for each row, its places in the pool, its first
    uncached slot, and the slots that each of its tokens sees."""
    rows, seen, trees, first = list[PagedRow](), [], [], 0
    needed = [-(-sum(row) // PAGE) for row in case.rows]
    free = list(range(1, PAGES))
    choose.shuffle(free)
    table = torch.zeros((len(case.rows) + 1, PAGES), dtype=torch.long)
    for number, ((cached, uncached, nodes), count) in enumerate(zip(case.rows, needed, strict=True)):
        pages = [free.pop() for _ in range(count)]
        table[number, :count] = torch.tensor(pages)
        rows.append(PagedRow(number, pages))
        parents = [choose.randrange(-1, node) for node in range(nodes)]
        trees.append(DraftTree([1] * nodes, parents))
        sees = [list(range(cached + token + 1)) for token in range(uncached)]
        for parent in parents:
            sees.append([*sees[uncached + parent if parent >= 0 else uncached - 1], cached + len(sees)])
        seen.append(([page * PAGE + slot for page in pages for slot in range(PAGE)], cached, sees))
        first += uncached + nodes
    most_slots = PAGES * PAGE if case.ordered else 0
    shape = Shape.of(case.tokens, case.tokens, most_slots=most_slots, ordered=case.ordered)
    packed = np.zeros(sum(shape.parts), np.int64)
    tile = case.tile or max(1, QUERIES // case.group)
    uncached_ids = [[1] * uncached for _, uncached, _ in case.rows]
    scored = [1 + len(tree) for tree in trees]
    starts, split = [cached for cached, _, _ in case.rows], EXACT_SPLIT * case.ordered
    lay_out(packed, shape, starts, rows, uncached_ids, trees, scored, [], len(rows), tile, split)
    fields, _, _, units = split_parts(packed, shape)
    work = PassInputs(torch.from_numpy(fields), torch.from_numpy(units), table, tile, case.ordered)
    return work, seen


def inputs(case: Case) -> tuple[dict[str, Any], torch.Tensor]:
    """Arguments of `attend`, and what it must return for the tokens of the pass, computed in float64, token by token,
    with visible slots looked up instead of derived from bits."""
    generator, choose = torch.Generator().manual_seed(1), random.Random(1)
    random_of = partial(torch.randn, generator=generator, dtype=torch.float64)
    work, seen = laid_out(case, choose)
    heads, places = case.key_heads * case.group, PAGES * PAGE
    sinks = random_of(heads).to(case.dtype) if case.has_sinks else None
    query = random_of(1, heads, case.tokens, case.width).to(case.dtype)
    keys = random_of(1, case.key_heads, places, case.width).to(case.dtype)
    values = random_of(1, case.key_heads, places, case.value_width or case.width).to(case.dtype)
    out, token = list[torch.Tensor](), 0
    for of_slots, cached, sees in seen:
        depths = [len(slots) - 1 for slots in sees]  # the position of each token is the number of those before it
        for slots, position in zip(sees, depths, strict=True):
            near = [
                slot
                for slot in slots
                if not case.window or position - (slot if slot < cached else depths[slot - cached]) < case.window
            ]
            index = [of_slots[slot] for slot in near]
            for head in range(heads):
                scores = keys[0, head // case.group, index].double() @ query[0, head, token].double()
                scores = scores * case.width**-0.5
                if case.softcap:
                    scores = case.softcap * torch.tanh(scores / case.softcap)
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head].double().view(1)])
                out.append(scores.softmax(0)[: len(index)] @ values[0, head // case.group, index].double())
            token += 1
    arguments = {
        "query": query,
        "keys": keys,
        "values": values,
        "work": work,
        "window": case.window,
        "scale": case.width**-0.5,
        "softcap": case.softcap,
        "sinks": sinks,
    }
    return arguments, torch.stack(out).view(token, heads, -1)


def on_device(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value)(*map(on_device, value)) if isinstance(value, PassInputs) else tuple(map(on_device, value))
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", CASES)
def test_kernel_against_float64(name: str, kernel: ModuleType) -> None:
    arguments, expected = inputs(CASES[name])
    in_half = CASES[name].dtype == torch.bfloat16
    for attend, limit in (
        (kernel.attend, 5e-3 if in_half else 1e-6),
        (tree_attention.attend_in_torch, 1e-2 if in_half else 1e-6),  # it also rounds the attention weights
    ):
        attended = attend(**{key: on_device(value) for key, value in arguments.items()})[0, : len(expected)]
        error = (attended.double().cpu() - expected).abs().max() / expected.abs().max()
        assert error <= limit, attend


def test_in_order_of_positions_a_node_has_the_bits_of_a_token_alone(kernel: ModuleType) -> None:
    """Whatever shares the pass, wherever the row's pages are, and on whichever branch the node is."""
    case = Case(group=4, tile=1, ordered=True, tokens=64, rows=((200, 1, 25), (31, 1, 20)))
    work, seen = laid_out(case, random.Random(0))
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(2))
    query, keys, values = draw(1, 8, 64, 32), draw(1, 2, PAGES * PAGE, 32), draw(1, 2, PAGES * PAGE, 32)
    for attend in (kernel.attend, tree_attention.attend_in_torch):
        together = attend(*on_device((query, keys, values, work)), 0, 0.2)[0]
        for token, slots in enumerate(seen[0][2]):
            # The same tokens in a row of their own, whose path is cached in order.
            alone, own = laid_out(case._replace(rows=((len(slots) - 1, 1, 0),)), random.Random(1 + token))
            copies = [torch.zeros_like(keys), torch.zeros_like(values)]
            for copy, buffer in zip(copies, (keys, values), strict=True):
                copy[0, :, own[0][0][: len(slots)]] = buffer[0, :, [seen[0][0][slot] for slot in slots]]
            first = torch.zeros_like(query)
            first[0, :, 0] = query[0, :, token]
            assert torch.equal(attend(*on_device((first, *copies, alone)), 0, 0.2)[0, 0], together[token])


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gpt_oss", "deepseek_v3"])
def test_models_with_the_kernel_decode_what_generate_does(
    name: str, kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, in_kernel = list[int](), kernel.attend

    def attend(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        attended: torch.Tensor = in_kernel(*arguments)
        return attended

    monkeypatch.setattr(tree_attention, "attend_in_torch", attend)  # on a CPU, the interpreter runs the kernel
    monkeypatch.setattr(kernel, "attend", attend)
    model = models.tiny(name).to(DEVICE)
    expected = expected_of(model, (6, 8))
    outputs, _ = run(model, BY_TREE, expected, nodes=7)
    assert outputs == expected and len(calls) > 4


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2"])
def test_models_without_triton_replay_it(name: str) -> None:
    model = models.tiny(name)
    expected = expected_of(model, LENGTHS)
    outputs, stats = run(model, StaticOptions(use="always", attention="tree", new_graph=CpuGraph), expected)
    assert outputs == expected and "graph" in {stat.runner for stat in stats}


@pytest.mark.parametrize(
    ("name", "reason"), [("falcon", "asks for attention in 0 of 2 layers"), ("llama4_text", "bias"), ("t5", "encoder")]
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
    work, _ = laid_out(Case(rows=((0, 1, 0),), tokens=1), random.Random(0))
    query, keys = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, PAGES * PAGE, 8)
    marker = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    attend = partial(tree_attention.tree_attention_forward, torch.nn.Linear(1, 1), query)
    with tree_attention.attending(work), tree_attention.callers() as layers, ThreadPoolExecutor() as pool:
        assert torch.equal(pool.submit(attend, query, query, torch.zeros(1, 1, 1, 1)).result()[0], query)
        assert not layers
        attend(keys, keys, marker)
        assert len(layers) == 1


def test_the_kernel_is_built_for_hopper_without_a_stack(tmp_path: Path) -> None:
    """Needs no GPU. A stack would mean spilled registers."""
    pytest.importorskip("triton")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.kernel_build", "--sizes", "4"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[3]
    built = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "attend_units" in built.stdout and "combine" in built.stdout
