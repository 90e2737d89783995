"""A small language model as drafter: its cache, predictions, chains, and outputs equal to plain decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.drafters.predictors.base import RowContext
from copyspec.drafters.predictors.language_model import DraftModel, Reader
from copyspec.options import SamplingOptions
from copyspec.targets import wrap
from copyspec.tree import ROOT, DraftTree
from tests.helpers.decoded import decoded
from tests.helpers.models import VOCAB_SIZE, random_ids, tiny

GREEDY = SamplingOptions()
TARGETS: dict[str, PreTrainedModel] = {}


def target_model() -> PreTrainedModel:
    return TARGETS.setdefault("target", tiny("llama"))


def other_model() -> PreTrainedModel:
    """Another model with the same vocabulary and one layer: nearly always wrong."""
    return TARGETS.setdefault("other", tiny("llama", seed=7, num_hidden_layers=1))


def near_model() -> PreTrainedModel:
    """The target with perturbed weights: sometimes right."""
    if "near" not in TARGETS:
        model = tiny("llama")
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.15 * parameter.std() * torch.randn(parameter.shape, generator=generator)
        TARGETS["near"] = model
    return TARGETS["near"]


def context(prompt: Sequence[int], sampling: SamplingOptions = GREEDY, vocab_size: int = VOCAB_SIZE) -> RowContext:
    return RowContext(prompt, sampling, len(prompt), vocab_size)


def run(
    model: PreTrainedModel, requests: Sequence[Request], batch_size: int = 8, nodes: int = 12, adaptive: bool = False
) -> list[tuple[list[int], Stats]]:
    return decoded(wrap(model), requests, nodes, batch_size=batch_size, adaptive=adaptive)


def test_reader_words_equal_those_of_passes_without_a_cache() -> None:
    model = other_model()
    reader = Reader(wrap(model), context(prompt := random_ids(9)))
    rng = random.Random(0)
    text = list(prompt)
    for step in range(12):
        path = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 2)))
        tokens = rng.sample(range(VOCAB_SIZE), 5)
        tree = DraftTree(tokens, [ROOT, 0, 1, 0, ROOT], [0.5] * 5, [None] * 5)
        read = reader.read(path, tree)
        assert read is not None
        prefixes = {ROOT: [*text, *path]}
        for node, parent in enumerate(tree.parents):
            prefixes[node] = [*prefixes[parent], tree.tokens[node]]
        for node, prefix in prefixes.items():
            with torch.inference_mode():
                expected = model(torch.tensor([prefix])).logits[0, -1].softmax(-1).topk(8)
            assert [token for token, _ in read[node + 1]] == expected.indices.tolist()
            assert [p for _, p in read[node + 1]] == pytest.approx(expected.values.tolist(), abs=1e-5)
        # The output follows the drafts for a while, and then leaves them.
        draft = [*path, *([tokens[0], tokens[3]] if step % 2 else [tokens[4]])]
        joined = [*draft[: rng.randint(0, len(draft))], rng.randrange(VOCAB_SIZE)]
        reader.follow(joined)
        text += joined


def test_cache_after_acceptance_equals_a_fresh_prefill() -> None:
    target = wrap(other_model())
    reader = Reader(target, context(prompt := random_ids(7)))
    tree = DraftTree([5, 6, 7, 8], [ROOT, 0, ROOT, 2], [0.5] * 4, [None] * 4)
    reader.read((), tree)
    reader.follow([7, 8, 9])
    text = [*prompt, 7, 8, 9]
    reader.read((), tree)
    reader.follow([4])
    reader.read((), tree)  # commits the pass before it
    assert reader._session is not None and list(reader._session.lengths) == [len(text)]
    fresh = target.open([prompt])
    fresh.score([text], [DraftTree()])
    fresh.keep([[]])
    for ours, theirs in zip(reader._session.read(0, 0, len(text)), fresh.read(0, 0, len(text)), strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_nothing_is_read_twice() -> None:
    reader = Reader(wrap(other_model()), context(random_ids(7)))
    reader.read((), DraftTree())
    assert reader.columns == 7
    for path in ((3,), (3, 4), (3, 4, 5)):
        reader.read(path, DraftTree())
        assert reader.columns == 1
    reader.follow([3, 4, 9])
    reader.read((), DraftTree([1, 2], [ROOT, 0], [0.5] * 2, [None] * 2))
    assert reader.columns == 1 + 2
    reader.follow([1, 2, 6])
    reader.read((), DraftTree())
    assert reader.columns == 1


def test_coupled_draws_agree_more_often_than_independent_ones() -> None:
    """Coupled drafting matches with probability at least (1 - TV) / (1 + TV), compared with drafting with other
    noise."""
    target, near = target_model(), near_model()
    agreed = {True: 0, False: 0}
    total = 0
    for seed in range(6):
        prompt = random_ids(6, seed=seed)
        sampling = SamplingOptions(1.0, seed=seed)
        ((tokens, _),) = run(target, [Request(prompt, 20, sampling)])
        for coupled in (True, False):
            keyed = sampling if coupled else SamplingOptions(1.0, seed=seed + 1000)
            reader = Reader(wrap(near), context(prompt, keyed))
            for token in tokens:
                words = reader.read((), DraftTree())
                assert words is not None
                agreed[coupled] += words[0][0][0] == token
                reader.follow([token])
        total += len(tokens)
    assert agreed[True] > 1.5 * agreed[False], (agreed, total)


def test_a_draft_model_that_verifies_no_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"choose another draft model"):
        DraftModel(wrap(tiny("recurrent_gemma"), on_unsupported="plain"))
