"""Passes in bfloat16 on a CPU have the bits of plain decoding: at every node, and in the prompt."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from copyspec.targets import wrap
from copyspec.targets.base import UnsupportedModelError
from copyspec.targets.causal import PREFILL_CHUNK
from copyspec.targets.hooks import attention
from copyspec.targets.hooks.attention import Group, Split, SplitMask, split_masks, without_cudnn_attention
from copyspec.targets.tree_cache import Columns, lay_out
from copyspec.tree import ROOT, DraftTree
from tests.helpers.models import random_ids, tiny

LOWEST = torch.finfo(torch.bfloat16).min


def tree_of(parents: list[int]) -> DraftTree:
    count = len(parents)
    return DraftTree(list(range(3, 3 + count)), parents, [0.5] * count, [None] * count)


def chain_of(count: int) -> DraftTree:
    return tree_of(list(range(ROOT, count - 1)))


def marked(mask: torch.Tensor, columns: Columns) -> SplitMask:
    found = split_masks(mask, columns.slots, columns.visible, columns.prompt)
    assert isinstance(found, SplitMask)
    return found


def split(columns: Columns) -> Split:
    (found,) = marked(torch.zeros(1, 1, *columns.visible.shape[1:]), columns).calls
    return found


def test_calls_of_a_prompt_a_chain_and_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "vector", lambda: 16)
    tree = tree_of([ROOT, 0, 1, 0, ROOT])
    # 12 prompt columns; nodes 0-2 see 13, 14 and 15 keys; nodes 3 and 4 begin branches.
    prompt = list(range(12))
    assert split(lay_out([0], [[7] * 12], [tree])) == Split(
        12,
        0,
        [
            Group([12, 13, 14], [*prompt, 12, 13, 14]),
            Group([15], [*prompt, 12, 15]),
            Group([16], [*prompt, 16]),
        ],
    )
    # The root sees 14 keys, nodes 0 to 2 see 15, 16 and 17: two different numbers of full vectors.
    assert split(lay_out([13], [[7]], [tree])) == Split(
        0,
        13,
        [Group([0, 1], [13, 14]), Group([2, 3], [13, 14, 15, 16]), Group([4], [13, 14, 17]), Group([5], [13, 18])],
    )


parents_of_trees = st.lists(st.integers(0, 30), max_size=24).map(
    lambda drawn: [min(number, node) - 1 for node, number in enumerate(drawn)]
)


@settings(max_examples=30, deadline=None)
@given(
    parents=parents_of_trees,
    cached=st.integers(1, 70),
    heads=st.sampled_from([(4, 4), (6, 2)]),
    seed=st.integers(0, 2**63),
)
@torch.inference_mode()
def test_every_node_has_the_bits_of_a_query_of_its_own(
    parents: list[int], cached: int, heads: tuple[int, int], seed: int
) -> None:
    attend, generator = torch.nn.functional.scaled_dot_product_attention, torch.Generator().manual_seed(seed)
    columns = lay_out([cached], [[7]], [tree_of(parents)])
    width, seen = columns.slots.shape[1], columns.visible.shape[2]
    query = torch.randn(1, heads[0], width, 16, generator=generator).bfloat16()
    key, value = (torch.randn(1, heads[1], seen, 16, generator=generator).bfloat16() for _ in range(2))
    if seed % 2:  # equal factors of values that nearly take back each other: what is left shows the order of sums
        query, value = 0 * query, (value * torch.exp(4 * torch.randn(value.shape, generator=generator))).bfloat16()
        value[:, :, cached // 2 : cached // 2 * 2] = -value[:, :, : cached // 2]
    visible = torch.from_numpy(columns.visible)[:, None]
    mask = marked(torch.where(visible, 0.0, LOWEST).bfloat16(), columns)
    before = key.clone(), value.clone()
    found = attend(query, key, value, attn_mask=mask, enable_gqa=True)
    assert torch.equal(key, before[0]) and torch.equal(value, before[1])
    for column in range(width):
        path = visible[0, 0, column]
        own = attend(query[:, :, column : column + 1], key[:, :, path], value[:, :, path], enable_gqa=True)
        assert torch.equal(own[:, :, 0], found[:, :, column])


@torch.inference_mode()
def test_keys_that_cannot_be_moved_in_place_are_copied() -> None:
    columns = lay_out([20], [[7]], [tree_of([ROOT, ROOT, 0])])
    visible = torch.from_numpy(columns.visible)[:, None]
    mask = marked(torch.where(visible, 0.0, LOWEST).bfloat16(), columns)
    query, key = torch.randn(1, 4, 4, 16).bfloat16(), torch.randn(1, 1, 24, 16).bfloat16()
    attend = torch.nn.functional.scaled_dot_product_attention
    same = key.repeat(1, 4, 1, 1)
    assert torch.equal(
        attend(query, key.expand(-1, 4, -1, -1), key.expand(-1, 4, -1, -1), attn_mask=mask),
        attend(query, same, same.clone(), attn_mask=mask),
    )


@torch.inference_mode()
def test_arguments_of_attention_may_be_named_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = lay_out([20], [[7]], [tree_of([ROOT, ROOT, 0])])
    mask = marked(torch.where(torch.from_numpy(columns.visible)[:, None], 0.0, LOWEST).bfloat16(), columns)
    query, key, value = (torch.randn(1, 4, size, 16).bfloat16() for size in (4, 24, 24))
    by_row, calls = attention._by_row, list[torch.Tensor]()

    def counted(*given: Any, **named: Any) -> torch.Tensor:
        calls.append(by_row(*given, **named))
        return calls[-1]

    monkeypatch.setattr(attention, "_by_row", counted)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    values = (query, key, value, mask, 0.0, False)
    for count in (0, 3, 4, 6):
        named = dict(zip(names[count:], values[count:], strict=True))
        torch.nn.functional.scaled_dot_product_attention(*values[:count], **named)
    assert len(calls) == 4 and all(torch.equal(each, calls[0]) for each in calls)
    halved = torch.mul(input=mask, other=0.5)
    assert isinstance(halved, SplitMask) and halved.calls is mask.calls


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 1), (torch.float32, 3)])
def test_long_prompts_in_bfloat16_are_read_in_one_pass_as_by_generate(dtype: torch.dtype, count: int) -> None:
    model = tiny("llama", max_position_embeddings=4096).to(dtype)
    session, passes = wrap(model).open([[1]]), list[int]()
    model.register_forward_hook(lambda *_: passes.append(1))
    prompt = random_ids(PREFILL_CHUNK + 99, seed=1)
    found = session.score([prompt], [tree_of([ROOT, 0, ROOT])])
    assert len(passes) == count
    session.close()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1).logits[0, -1]
    assert torch.equal(found[0, 0], expected) if dtype == torch.bfloat16 else torch.allclose(found[0, 0], expected)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_bits_of_plain_decoding_and_of_generate(kind: str) -> None:
    """The first tree shares a pass with the prompt. Both trees have branches, and the second commits one."""
    model = tiny(kind).to(torch.bfloat16)
    target, prompt = wrap(model), random_ids(21, seed=1)
    draft = [token for token in random_ids(40, seed=2)][:6]
    other = [(token + 1) % target.vocab_size for token in draft]

    def plain(chains: list[list[int]]) -> torch.Tensor:
        session = target.open([prompt])
        rows = []
        for chain in chains:
            rows.append(session.score([chain], [DraftTree()])[0, 0].clone())
            session.keep([[]])
        session.close()
        return torch.stack(rows)

    expected = plain([prompt, *([token] for token in draft)])
    with torch.inference_mode():
        whole = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
        theirs, name = [whole.logits[0, -1]], target.facts.cache  # type: ignore[attr-defined]
        for token in draft:
            cached: dict[str, object] = {name: whole[name]}
            theirs.append(model(torch.tensor([[token]]), use_cache=True, **cached).logits[0, -1])
    assert torch.equal(expected, torch.stack(theirs))
    # Nodes: the other first token, then the draft's chain with another branch at its second token.
    tokens = [other[0], draft[0], draft[1], other[1], draft[2]]
    tree = DraftTree(tokens, [ROOT, ROOT, 1, 1, 2], [0.5] * 5, [None] * 5)
    before = model.config._attn_implementation
    session = target.open([prompt])
    first = session.score([prompt], [tree])[0].clone()
    session.keep([[1, 2, 4]])
    second = session.score(
        [[draft[3]]], [DraftTree([other[4], draft[4], draft[5]], [ROOT, ROOT, 1], [0.5] * 3, [None] * 3)]
    )
    session.close()
    assert model.config._attn_implementation == before
    assert torch.equal(first[[0, 2, 3, 5]], expected[:4])
    assert torch.equal(second[0, [0, 2, 3]], expected[4:])


def test_an_attention_of_the_program_is_refused() -> None:
    """Decoding with another one would change the output, and nothing tells what masks it takes."""

    def without_first_head(*args: Any, **kwargs: Any) -> Any:
        output, weights = sdpa_attention_forward(*args, **kwargs)
        return output.index_fill(2, torch.tensor([0]), 0.0), weights

    AttentionInterface.register("without first head", without_first_head)
    try:
        model = tiny("llama")
        model.set_attn_implementation("without first head")
        session = wrap(model).open([[1]])
        with pytest.raises(UnsupportedModelError, match=r"'without first head' was registered by tests.*'sdpa'"):
            session.score([[1]], [DraftTree()])
        session.close()
        assert model.config._attn_implementation == "without first head"
    finally:
        del AttentionInterface._global_mapping["without first head"]


def test_cudnn_attention_comes_back_with_the_end_of_the_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    is_enabled = [True]
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: is_enabled[0])
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", partial(is_enabled.__setitem__, 0))
    cuda = torch.device("cuda")
    for before in (True, False):  # whether the program allows it
        is_enabled[0] = before
        first, second = without_cudnn_attention(cuda), without_cudnn_attention(cuda)
        first.__enter__()
        second.__enter__()
        assert is_enabled == [False]
        first.__exit__(None, None, None)  # of another thread
        assert is_enabled == [False]
        second.__exit__(None, None, None)
        assert is_enabled == [before]
