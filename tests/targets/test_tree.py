"""Node logits of branched trees in ragged batches equal each path run alone, on every architecture."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from copyspec.options import StaticOptions
from copyspec.targets import wrap
from copyspec.targets.base import LAST, Scores
from copyspec.tree import EMPTY, ROOT, DraftTree
from tests.helpers import models
from tests.helpers.trees import Rows, alone, fingerprint, random_tree

torch.set_num_threads(1)

TOLERANCE = 1e-5
PROMPT_LENGTHS = (11, 4, 17)
JOINING = (20, 3)  # prompt lengths of rows that join: one longer than those before it, one shorter
STEPS = 4


@pytest.mark.parametrize("name", [*models.CAUSAL, *models.SEQ2SEQ, *models.VARIANTS])
def test_nodes_equal_paths_alone(name: str) -> None:
    model = models.tiny(name)
    before = fingerprint(model)
    target = wrap(model)
    assert target.supports_trees and target.vocab_size == models.VOCAB_SIZE
    rows = Rows(model, target, PROMPT_LENGTHS)
    for step in range(STEPS):
        assert rows.step() < TOLERANCE, f"step {step}"
        if step == STEPS - 2:
            rows.select([2, 0])
            rows.add(JOINING)
    rows.session.close()
    rows.session.close()
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "llama4_text", "bloom", "t5", "bart"])
def test_one_row_equals_path_alone(name: str) -> None:
    model = models.tiny(name)
    rows = Rows(model, wrap(model), [9], seed=1)
    for sizes in [(0,), (5,), (0,), (7,), (0,), (3,), (40,), (0,)]:
        assert rows.step(sizes) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "t5", "bart"])
def test_rows_of_one_length_need_no_mask(name: str) -> None:
    model = models.tiny(name)
    rows = Rows(model, wrap(model), [6, 6, 6], seed=2)
    for sizes in [(0,), (0,), (4,), (0,), (0,)]:
        assert rows.step(sizes) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mistral", "deepseek_v3"])
def test_cache_after_keep_equals_fresh_prefill(name: str) -> None:
    model = models.tiny(name)
    target = wrap(model)
    rows = Rows(model, target, PROMPT_LENGTHS, seed=3)
    for _ in range(3):
        rows.step()
    for row, (sequence, cached) in enumerate(zip(rows.sequences, rows.cached, strict=True)):
        fresh = target.open([sequence])
        fresh.score([sequence[:cached]], [EMPTY])
        fresh.keep([[]])
        for old, new in zip(rows.session.read(row, 0, cached), fresh.read(0, 0, cached), strict=True):
            torch.testing.assert_close(old, new, atol=TOLERANCE, rtol=0)


def _places(rows: Rows, row: int) -> list[int]:
    return [
        tensor.data_ptr() for layer in rows.session._rows[row].layers.values() for tensor in (layer.keys, layer.values)
    ]


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_rows_join_and_leave_without_copies(name: str) -> None:
    model = models.tiny(name)
    target = wrap(model)
    rows = Rows(model, target, [9, 30, 4, 17, 6, 12], seed=5)
    rows.step()
    for seed, (going, joining) in enumerate([([0, 5, 2, 4], [8, 25]), ([4, 1], [3]), ([2, 1, 0], [70, 5]), ([4], [6])]):
        places = [_places(rows, row) for row in going]
        rows.select(going)
        assert [_places(rows, row) for row in range(len(going))] == places
        assert rows.step() < TOLERANCE
        rows.add(joining, seed=seed + 10)
        assert rows.step() < TOLERANCE and rows.step() < TOLERANCE


@pytest.mark.parametrize("name", ["mpt", "llama"])
def test_select_may_repeat_and_reorder(name: str) -> None:
    model = models.tiny(name)
    rows = Rows(model, wrap(model), PROMPT_LENGTHS, seed=4)
    rows.step()
    rows.select([1, 2])
    rows.step()
    rows.select([1])
    assert rows.step() < TOLERANCE


def test_score_again_without_keep() -> None:
    model = models.tiny("llama")
    target = wrap(model)
    session = target.open([[5, 6, 7], [8, 9]])
    first = session.score([[5, 6, 7], [8, 9]], [random_tree(random.Random(0), 5), EMPTY])
    again = session.score([[5, 6, 7], [8, 9]], [random_tree(random.Random(0), 5), EMPTY])
    torch.testing.assert_close(first[0], again[0], atol=0, rtol=0)
    assert session.lengths == [0, 0]


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("rows", [1, 3])
def test_long_prompts_run_in_pieces(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.targets.eager.causal.PREFILL_CHUNK", 8)
    model = models.tiny(name)
    driven = Rows(model, wrap(model), [30, 9, 1][:rows], seed=5)
    for _ in range(3):
        assert driven.step() < TOLERANCE


def test_large_ragged_masks_run_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec.targets.eager.causal.MASK_LIMIT", 100)
    model = models.tiny("llama")
    rows = Rows(model, wrap(model), PROMPT_LENGTHS, seed=6)
    assert rows.step() < TOLERANCE
    assert rows.step() < TOLERANCE


@torch.inference_mode()
def test_many_tokens_after_a_long_text_are_read_without_its_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are after a cached prefix, where the mask would grow with the length of the text."""
    monkeypatch.setattr("copyspec.targets.eager.causal.MASK_LIMIT", 1000)
    model, text, passes = models.tiny("llama"), models.random_ids(40), list[int]()
    expected = model(torch.tensor([text])).logits[0]
    model.register_forward_hook(lambda *_: passes.append(1))
    session, tree = wrap(model).open([text]), random_tree(random.Random(0), 5)
    for start, stop, count in ((0, 20, 1), (20, 40, 3)):  # masks of 625 and 1,125 elements
        logits = session.score([text[start:stop]], [tree])
        assert (logits[0][0] - expected[stop - 1]).abs().max() < TOLERANCE and len(passes) == count
        session.keep([[]])


def test_cache_grows_by_doubling() -> None:
    model = models.tiny("llama")
    session = wrap(model).open([[5]])
    chain = models.random_ids(60)
    capacities = []
    for _ in range(6):
        session.score([chain], [EMPTY])
        session.keep([[]])
        capacities.append(session._rows[0].layers[0].keys.shape[1])
    assert capacities == [64, 128, 256, 256, 512, 512]


def on_cpu(scores: Scores) -> Scores:
    return replace(scores, logits=scores.logits.cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "bloom", "t5", "bart"])
def test_nodes_equal_paths_alone_on_gpu(name: str) -> None:
    model = models.tiny(name).to("cuda")
    rows = Rows(models.tiny(name), wrap(model), PROMPT_LENGTHS)
    rows.session.score = lambda *call, score=rows.session.score: on_cpu(score(*call))
    for _ in range(STEPS):
        assert rows.step() < 1e-3


@pytest.mark.parametrize(
    "options",
    [None, StaticOptions(use="always"), StaticOptions(use="always", attention="tree")],
    ids=["dynamic", "static", "tree"],
)
@pytest.mark.parametrize("spoilt", [0, 2])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_a_row_whose_numbers_overflow_spoils_no_other(name: str, spoilt: int, options: StaticOptions | None) -> None:
    """Neither while it runs nor after it has left, in this session and the next."""
    model = models.tiny(name, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[BROKEN] = float("nan")
    target = wrap(model, static=options)
    for _ in range(2):
        prompts = [models.random_ids(length, seed=length) for length in (40, 9, 41)]
        sound = [row for row in range(3) if row != spoilt]
        prompts[spoilt][5] = BROKEN
        session = target.open(prompts)
        for step in range(3):
            texts = [[*prompt, *range(7, 7 + step)] for prompt in prompts]
            scores = session.score([text[-1:] if step else text for text in texts], [EMPTY] * 3)
            assert scores[spoilt].isnan().any(), "as alone"
            for row in sound:
                assert (scores[row] - alone(model, (), [texts[row]])).abs().max() < TOLERANCE
            session.keep([()] * 3)
        session.select(sound)
        session.add([[3, 4, 5]])
        scores = session.score([[9], [9], [3, 4, 5]], [EMPTY] * 3)
        for row, text in enumerate([*[[*prompts[row], 7, 8, 9] for row in sound], [3, 4, 5]]):
            assert (scores[row] - alone(model, (), [text])).abs().max() < TOLERANCE
        session.close()


BROKEN = 1  # which is in no random text


@pytest.mark.parametrize("name", ["llama", "gpt2", "mpt", "t5", "bart"])
def test_chains_of_several_rows_score_as_in_a_joint_pass(name: str) -> None:
    """With their hidden states, after prompts in pieces, and after rows have left and joined."""
    model = models.tiny(name)
    joint: Any = wrap(model)
    apart = type(joint)(model, joint.facts, supports_trees=False)
    prompts = [models.random_ids(9), models.random_ids(4)]
    sessions: Any = [target.open(prompts) for target in (joint, apart)]
    trees = [DraftTree([5, 6, 7], [ROOT, 0, 1]), DraftTree([8], [ROOT])]
    uncached = [joint.start(prompt) for prompt in prompts]
    for step in range(4):
        (scores, states), (others, other_states) = (
            session.score_with_states(uncached, trees, ()) for session in sessions
        )
        for row in range(2):
            torch.testing.assert_close(others[row], scores[row], atol=TOLERANCE, rtol=0)
            theirs, ours = (of_rows[row][LAST][-1 - len(trees[row]) :] for of_rows in (states, other_states))
            torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)
        for session in sessions:
            session.keep([[0, 1], []])
            if step == 1:
                session.select([1])
                session.add(prompts[:1])
            session.prefill_chunk = 4
        assert sessions[0].lengths == sessions[1].lengths
        uncached = [models.random_ids(11), models.random_ids(2) if step != 1 else joint.start(prompts[0])]
