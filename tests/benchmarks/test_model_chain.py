"""The drafter that is a chain of a small language model alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from benchmarks.drafts.model_chain import LanguageModelDrafter
from copyspec.budget import Budget
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.drafters.base import Drafter
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.drafters.predictors.base import RowContext
from copyspec.drafters.predictors.language_model import DraftModel, ModelPredictor, Reader
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.tree import DraftTree, check_tree
from tests.helpers.decoded import decoded
from tests.helpers.models import VOCAB_SIZE, random_ids, tiny

GREEDY = SamplingOptions()
SHAPES = ("chain", "tree", "blend", "several")
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


def make(shape: str, models: Sequence[DraftModel], row: RowContext) -> Drafter:
    if shape == "chain":
        return LanguageModelDrafter(models[0], row)
    if shape == "tree":
        return PredictorDrafter([ModelPredictor(models[0], row)])
    if shape == "several":
        return PredictorDrafter([ModelPredictor(model, row) for model in models])
    return BlendDrafter([Source(row.prompt, "prompt")], [ModelPredictor(models[0], row)], eos=None)


def run(
    model: PreTrainedModel, requests: Sequence[Request], batch_size: int = 8, nodes: int = 12, adaptive: bool = False
) -> list[tuple[list[int], Stats]]:
    return decoded(wrap(model), requests, nodes, batch_size=batch_size, adaptive=adaptive)


def drafting(
    request: Request, shape: str, models: Sequence[DraftModel], vocab_size: int = VOCAB_SIZE
) -> Callable[[], Drafter]:
    return lambda: make(shape, models, context(request.prompt, request.sampling, vocab_size))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "seed": draw(st.integers(0, 10_000)),
        "rows": draw(st.integers(1, 4)),
        "batch_size": draw(st.integers(1, 4)),
        "nodes": draw(st.sampled_from([1, 3, 12])),
        "shape": draw(st.sampled_from(SHAPES)),
        "temperature": draw(st.sampled_from([0.0, 0.0, 0.7, 1.2])),
        "top_p": draw(st.sampled_from([1.0, 0.8])),
        "adaptive": draw(st.booleans()),
    }


@hypothesis_settings(max_examples=25, deadline=None)
@given(cases())
def test_output_equals_plain_decoding(case: dict[str, Any]) -> None:
    rng = random.Random(case["seed"])
    model = target_model()
    models = [DraftModel(wrap(near_model())), DraftModel(wrap(other_model()))]
    requests = []
    for row in range(case["rows"]):
        sampling = SamplingOptions(case["temperature"], top_p=case["top_p"], seed=case["seed"], sample=row)
        prompt = random_ids(rng.randint(1, 12), seed=case["seed"] + row)
        eos = frozenset({rng.randrange(VOCAB_SIZE)})
        requests.append(Request(prompt, rng.randint(1, 20), sampling, eos, [Source(prompt, "prompt")]))
    expected = run(model, requests)
    for request in requests:
        request.drafter = drafting(request, case["shape"], models)
    drafted = run(model, requests, case["batch_size"], case["nodes"], case["adaptive"])
    assert [tokens for tokens, _ in drafted] == [tokens for tokens, _ in expected]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", ["chain", "tree", "blend"])
def test_the_target_as_its_own_drafter_is_always_right(shape: str, temperature: float) -> None:
    """Coupled drafting: with the same scores and the same noise, the first choice is the target's own token."""
    model = target_model()
    request = Request(
        random_ids(8), 24, SamplingOptions(temperature, seed=3), sources=[Source(random_ids(8), "prompt")]
    )
    request.drafter = drafting(request, shape, [DraftModel(wrap(model))])
    ((tokens, stats),) = run(model, [request])
    drafted = sum(stats.num_accepted_tokens_per_pos[:1])
    assert drafted == stats.num_drafts, "the first draft token was right each time"
    assert len(tokens) == 24 and stats.num_passes < 24
    if temperature == 0.0 and shape == "chain":
        assert stats.num_accepted_tokens == stats.num_draft_tokens


def test_chain_keeps_the_token_it_is_not_sure_of_and_stops() -> None:
    row = context(random_ids(8))
    reader = Reader(wrap(other_model()), row)
    path: list[int] = []
    expected: list[int] = []
    while len(expected) < 5:
        words = reader.read(tuple(path), DraftTree())
        assert words is not None
        token, probability = words[0][0]
        path.append(token)
        expected.append(token)
        if probability < 0.4:
            break
    tree = LanguageModelDrafter(DraftModel(wrap(other_model())), row).propose(Budget(32))
    assert list(tree.tokens) == expected
    assert list(tree.drafters or ()) == ["model"] * len(expected)
    sure = LanguageModelDrafter(DraftModel(wrap(other_model())), row, confidence=0.0, tokens=7).propose(Budget(32))
    assert len(sure) == 7
    check_tree(sure)


def test_rows_of_other_vocabularies() -> None:
    """A draft model with fewer tokens reads a substitute; with more, it drafts none that the target lacks."""
    model = target_model()
    for size in (VOCAB_SIZE // 2, VOCAB_SIZE + 40):
        prompt = random_ids(8)
        request = Request(prompt, 16, SamplingOptions(0.9, seed=1), sources=[Source(prompt, "prompt")])
        ((expected, _),) = run(model, [request])
        small = DraftModel(wrap(tiny("llama", vocab_size=size, seed=3)))
        for shape in ("chain", "tree", "blend"):
            request.drafter = drafting(request, shape, [small])
            ((tokens, _),) = run(model, [request])
            assert tokens == expected


def test_a_text_beyond_the_draft_models_context_is_drafted_without_it() -> None:
    model = target_model()
    request = Request(random_ids(10), 20, GREEDY)
    ((expected, _),) = run(model, [request])
    short = DraftModel(wrap(tiny("llama", max_position_embeddings=16, seed=3)))
    request.drafter = drafting(request, "chain", [short])
    ((tokens, stats),) = run(model, [request])
    assert tokens == expected
    assert 0 < stats.num_drafts < stats.num_passes


def test_a_prompt_beyond_the_draft_models_encoder_is_decoded_without_it() -> None:
    model = target_model()
    short = DraftModel(wrap(tiny("bart", max_position_embeddings=16, seed=3)))
    for length in (16, 40):
        request = Request(random_ids(length), 6, GREEDY)
        ((expected, _),) = run(model, [request])
        for shape in ("chain", "tree"):
            request.drafter = drafting(request, shape, [short])
            ((tokens, stats),) = run(model, [request])
            assert tokens == expected
            assert (stats.num_drafts > 0) == (length == 16), shape


def test_drafters_of_other_architectures() -> None:
    """Encoder-decoder models on either side, chains only, sliding windows."""
    prompt = random_ids(9)
    for target, draft in (("t5", "llama"), ("llama", "bart"), ("t5", "t5"), ("llama", "mistral"), ("gpt2", "mpt")):
        model = tiny(target)
        request = Request(prompt, 12, GREEDY)
        ((expected, _),) = run(model, [request])
        drafter = DraftModel(wrap(tiny(draft, seed=5)))
        for shape in ("chain", "tree"):
            request.drafter = drafting(request, shape, [drafter])
            ((tokens, _),) = run(model, [request])
            assert tokens == expected, (target, draft, shape)
