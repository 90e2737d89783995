"""The compiled module's attention in bfloat16 has PyTorch's bits for single queries, and a difference is noticed."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from copyspec.targets import cpu_attention, linears
from copyspec.targets.hooks.attention import split_masks
from copyspec.targets.tree_cache import Write, lay_out
from tests.targets.test_attention import LOWEST, marked, parents_of_trees, tree_of

attend = torch.nn.functional.scaled_dot_product_attention
needs_it = pytest.mark.skipif(
    not (linears.is_there() and linears._linear.attends() and cpu_attention.registers(6, 2, 32)),
    reason="not compiled, or PyTorch has other bits on this processor",
)


@needs_it
@pytest.mark.parametrize("heads", [(9, 3, 64), (32, 8, 128), (4, 4, 16), (12, 1, 80), (2, 2, 1024)])
def test_heads_of_any_shape_have_the_same_sums(heads: tuple[int, int, int]) -> None:
    assert cpu_attention.registers(*heads) == cpu_attention.registers(6, 2, 32)


def masked(columns: Any, visible: torch.Tensor) -> Any:
    return marked(torch.where(visible, 0.0, LOWEST).bfloat16(), columns)


@needs_it
@settings(max_examples=30, deadline=None)
@given(
    parents=parents_of_trees,
    cached=st.sampled_from([1, 2, 3, 7, 30, 511, 600]),
    heads=st.sampled_from([(4, 4), (6, 2), (10, 1)]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**63),
)
@torch.inference_mode()
def test_every_node_has_the_bits_of_a_query_of_its_own(
    parents: list[int], cached: int, heads: tuple[int, int], threads: int, seed: int
) -> None:
    columns, drawn, size = lay_out([cached], [[7]], [tree_of(parents)]), torch.Generator().manual_seed(seed), 32
    width, seen = columns.slots.shape[1], columns.visible.shape[2]
    query = torch.randn(width, heads[0], size, generator=drawn).bfloat16()
    key = torch.randn(heads[1], seen + 5, size, generator=drawn).bfloat16()
    value = torch.randn(heads[1], seen + 5, size, generator=drawn)
    value = (value * torch.exp(2 * torch.randn(value.shape, generator=drawn))).bfloat16()
    visible = torch.from_numpy(columns.visible)[:, None]
    seen_by = cpu_attention.seen_by(masked(columns, visible), columns.write, 1, width)
    assert seen_by is not None
    found, registers = torch.empty_like(query), cpu_attention.registers(*heads, size)
    assert registers
    cache = key.data_ptr(), value.data_ptr(), seen + 5, size**-0.5, *seen_by, registers
    linears._linear.attention(found.data_ptr(), query.data_ptr(), (width, *heads, size), cache, threads)
    for column in range(width):
        path = np.flatnonzero(columns.visible[0, column])
        own = attend(query[None, column, :, None], key[None, :, path], value[None, :, path], enable_gqa=True)
        assert torch.equal(own[0, :, 0], found[column])


@needs_it
@pytest.mark.parametrize("changed", [0, 3, 10])
def test_another_bit_of_one_output_is_noticed(changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, calls = linears._linear.attention, list[int]()

    def other(outputs: int, *rest: Any) -> None:
        module(outputs, *rest)
        if len(calls) % 100 == changed:
            ctypes.c_uint16.from_address(outputs + 2 * 3).value ^= 1
        calls.append(1)
        if len(calls) == changed + 1:
            calls.extend([0] * (100 - len(calls)))  # the next number of registers

    monkeypatch.setattr(cpu_attention._linear, "attention", other)
    assert cpu_attention.registers.__wrapped__(9, 3, 64) == 0


@needs_it
def test_sums_of_other_registers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module, right = linears._linear.attention, cpu_attention.registers(8, 2, 32)

    def other(*arguments: Any) -> None:
        *most, cache, threads = arguments
        module(*most, (*cache[:-1], 3 - right), threads)

    monkeypatch.setattr(cpu_attention._linear, "attention", other)
    assert cpu_attention.registers.__wrapped__(8, 2, 32) == 0


@torch.inference_mode()
def test_what_is_seen_by_the_tokens_of_one_row() -> None:
    columns = lay_out([20], [[7]], [tree_of([-1, 0, 0, 2])])
    found = cpu_attention.seen_by(masked(columns, torch.from_numpy(columns.visible)[:, None]), columns.write, 1, 5)
    assert found is not None
    assert found.places.tolist() == [0, 1, 2, 3, 4] and found.starts.tolist() == [20] * 5
    assert found.paths.tolist() == [
        [20, -1, -1, -1],
        [20, 21, -1, -1],
        [20, 21, 22, -1],
        [20, 21, 23, -1],
        [20, 21, 23, 24],
    ]


@torch.inference_mode()
def test_what_is_seen_by_the_tokens_of_several_rows() -> None:
    columns = lay_out([20, 3, 9], [[7]] * 3, [tree_of([-1]), tree_of([]), tree_of([-1, -1])])
    found = cpu_attention.seen_by(masked(columns, torch.from_numpy(columns.visible)[:, None]), columns.write, 3, 3)
    assert found is not None
    assert found.places.tolist() == [0, 1, 3, 6, 7, 8] and found.starts.tolist() == [20, 20, 3, 9, 9, 9]
    assert found.paths.tolist() == [[20, -1], [20, 21], [3, -1], [9, -1], [9, 10], [9, 11]]
    plain = cpu_attention.seen_by(None, Write(5, 6), 2, 1)
    assert plain is not None
    assert [each.tolist() for each in plain] == [[0, 1], [5, 5], [[5], [5]]]


@torch.inference_mode()
def test_a_mask_that_hides_more_than_other_branches_is_left_to_torch() -> None:
    columns = lay_out([20, 20], [[7]] * 2, [tree_of([-1, 0, 0, 2])] * 2)
    within = torch.from_numpy(columns.visible)[:, None].clone()
    within[1, ..., -1, 0] = False  # a window
    assert cpu_attention.seen_by(masked(columns, within), columns.write, 2, 5) is None
    assert cpu_attention.seen_by(torch.zeros(2, 1, 5, 25), columns.write, 2, 5) is None  # of no known kind
    prompt = lay_out([0], [[7, 8]], [tree_of([])])
    mask = split_masks(torch.ones(1, 1, 2, 2), prompt.slots, prompt.visible, prompt.prompt)
    assert cpu_attention.seen_by(mask, prompt.write, 1, 2) is None  # type: ignore[arg-type]
    assert cpu_attention.seen_by(None, Write(5, 7), 1, 2) is None


@needs_it
@pytest.mark.parametrize(
    ("heads", "cache", "message"),
    [
        ((2, 4, 3, 16), {}, "heads"),
        ((2, 4, 2, 8), {}, "heads"),
        ((2, 4, 2, 1 << 40), {}, "heads"),
        ((2, 4, 0, 16), {}, "heads"),
        ((0, 4, 2, 16), {}, "places"),
        ((1, 4, 2, 16), {}, "places"),
        ((3, 4, 2, 16), {}, "rows"),
        ((2, 4, 2, 16), {0: 0}, "slots"),
        ((2, 4, 2, 16), {1: 1}, "slots"),
        ((2, 4, 2, 16), {2: 0}, "slots"),
        ((2, 4, 2, 16), {2: 5}, "starts"),
        ((2, 4, 2, 16), {2: 7}, "paths"),
        ((2, 4, 2, 16), {4: np.array([0, 0])}, "places"),
        ((2, 4, 2, 16), {4: np.array([-1, 0])}, "places"),
        ((2, 4, 2, 16), {4: np.array([0, 2])}, "places"),
        ((2, 4, 2, 16), {4: np.array([0])}, "starts"),
        ((2, 4, 2, 16), {4: np.array([], np.int64)}, "rows"),
        ((2, 4, 2, 16), {4: np.array([0, 1], np.int32)}, "format"),
        ((2, 4, 2, 16), {5: np.array([6, 10])}, "starts"),
        ((2, 4, 2, 16), {5: np.array([-1, 6])}, "starts"),
        ((2, 4, 2, 16), {5: np.array([6])}, "starts"),
        ((2, 4, 2, 16), {6: np.array([[6], [9]])}, "paths"),
        ((2, 4, 2, 16), {6: np.array([[6], [-1]])}, "paths"),
        ((2, 4, 2, 16), {6: np.array([[6]])}, "paths"),
        ((2, 4, 2, 16), {6: np.array([6, 7])}, "dimensions"),
        ((2, 4, 2, 16), {7: 3}, "registers"),
    ],
)
def test_the_module_trusts_no_argument(heads: tuple[int, ...], cache: dict[int, object], message: str) -> None:
    keys, queries = np.zeros((2, 9, 16), np.uint16), np.zeros((2, 4, 16), np.uint16)
    outputs = np.zeros_like(queries)
    good = [
        keys.ctypes.data,
        keys.ctypes.data,
        9,
        1.0,
        np.array([0, 1]),
        np.array([6, 6]),
        np.array([[6], [7]]),
        2,
    ]

    def run(heads: tuple[int, ...], given: list[Any]) -> None:
        linears._linear.attention(outputs.ctypes.data, queries.ctypes.data, heads, tuple(given), 2)  # type: ignore[arg-type]

    run((2, 4, 2, 16), good)
    with pytest.raises(ValueError, match=message):
        run(heads, [cache.get(place, each) for place, each in enumerate(good)])
