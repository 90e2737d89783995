"""Tree passes in bfloat16 on a CPU: along the first chain, nearly always bit by bit those of plain decoding."""

from __future__ import annotations

import pytest
import torch

from copyspec.targets import wrap
from copyspec.targets.columns import lay_out
from copyspec.targets.hooks import cpu_parity
from copyspec.targets.hooks.cpu_parity import RowSegment, segments
from copyspec.tree import ROOT, DraftTree
from tests.helpers.models import random_ids, tiny


def chain_of(tokens: list[int]) -> DraftTree:
    return DraftTree(tokens, list(range(-1, len(tokens) - 1)), [0.5] * len(tokens), [None] * len(tokens))


def test_segments_of_a_prompt_a_chain_and_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_parity, "VECTOR", 16)
    tree = DraftTree([1, 2, 3, 4, 5], [ROOT, 0, 1, 0, ROOT], [0.5] * 5, [None] * 5)
    # 12 prompt columns; nodes 0-2 attend to 13, 14 and 15 keys; nodes 3 and 4 are not on the chain.
    assert segments(lay_out([0], [[7] * 12], [tree])) == (
        RowSegment(0, 12, 12),
        RowSegment(12, 15, 15),
        RowSegment(15, 17, 17),
    )
    # The root attends to 14 keys, the nodes to 15, 16 and 17: two different numbers of full vectors.
    assert segments(lay_out([13], [[7]], [tree])) == (RowSegment(0, 2, 15), RowSegment(2, 4, 17), RowSegment(4, 6, 19))
    assert segments(lay_out([15], [[7]], [DraftTree()])) == (RowSegment(0, 1, 16),)


@pytest.mark.parametrize("vector", [8, 16])
def test_every_column_is_in_one_segment_and_sees_its_keys(vector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_parity, "VECTOR", vector)
    for start in range(40):
        columns = lay_out([start], [[7]], [chain_of(list(range(40)))])
        at = 0
        for begin, end, keys in segments(columns):
            assert begin == at < end
            seen = columns.visible[0, begin:end].sum(-1)
            assert seen.max() == keys and len({int(n) // vector for n in seen}) == 1
            at = end
        assert at == 41


def test_keys_of_one_segment_give_each_node_the_bits_of_its_own() -> None:
    """Holds for this processor's vector size; ATEN_CPU_CAPABILITY=avx2 makes torch use that of AVX2."""
    generator, vector, differing, count = torch.Generator().manual_seed(0), cpu_parity.VECTOR, 0, 0
    attend, lowest = torch.nn.functional.scaled_dot_product_attention, torch.finfo(torch.bfloat16).min
    for keys in [*range(20, 80)] * 5:
        end = (keys // vector + 1) * vector - 1  # keys of the last node with the same number of full vectors
        query, key, value = (torch.randn(1, 4, end, 16, generator=generator).bfloat16() for _ in range(3))
        hidden = (torch.arange(end) >= keys).to(torch.bfloat16)[None] * lowest
        own = attend(query[:, :, :1], key[:, :, :keys], value[:, :, :keys], hidden[:, :keys])
        grouped = attend(query[:, :, :2], key, value, hidden.expand(2, -1))[:, :, :1]
        differing, count = differing + int((own != grouped).sum()), count + own.numel()
    assert differing <= count / 2000


def test_bits_of_plain_decoding_and_a_model_left_as_it_was() -> None:
    model = tiny("llama", hidden_size=64, num_attention_heads=4, head_dim=16).to(torch.bfloat16)
    target = wrap(model)
    prompt, draft = random_ids(21, seed=1), random_ids(24, seed=2)
    plain = target.open([prompt])
    rows = []
    for chain in [prompt, *([token] for token in draft)]:
        rows.append(plain.score([chain], [DraftTree()])[0, 0].clone())
        plain.keep([[]])
    before = model.config._attn_implementation
    drafted = target.open([prompt]).score([prompt], [chain_of(draft)])[0]
    assert model.config._attn_implementation == before == "sdpa"
    difference = (drafted.float() - torch.stack(rows).float()).abs().max(-1).values
    # Without segments nearly every row differs; on other processors, linear layers may round differently.
    assert (difference == 0).float().mean() > 0.5 or difference.max() < 0.1
