"""A caller's own logits processors, criteria and biases: wrong ones get an error that says whose fault it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    set_seed,
)

from copyspec import Engine, Input, compare
from copyspec.common.growing_ids import GrowingIds
from copyspec.literature import Lenience, Rejection, Typical
from copyspec.targets import wrap
from tests.helpers.texts import byte_level
from tests.helpers.texts import engine as tiny_engine

RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"rule": Rejection(), "temperature": 1.0},
    {"rule": Typical()},
    {"rule": Lenience(), "temperature": 1.0},
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine()


@pytest.fixture(scope="module")
def unlimited() -> Engine:
    """An engine of a model without a limit of its context."""
    set_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=32, n_layer=1, n_head=2)).eval()
    assert wrap(model).max_length is None
    return Engine(model, byte_level())


@pytest.mark.parametrize("options", RULES, ids=str)
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda scores: scores[:, :5], r"torch.float32 scores of shape \[1, 5\] on cpu"),
        (lambda scores: None, "a NoneType"),
        (lambda scores: np.asarray(scores), "a ndarray"),
        (lambda scores: scores > 0, "torch.bool scores"),
        (lambda scores: scores.to(torch.complex64), "torch.complex64 scores"),
        (lambda scores: scores.to("meta"), r"torch.float32 scores of shape \[1, \d+\] on meta"),
        (lambda scores: scores.to_sparse(), "torch.sparse_coo torch.float32 scores"),
    ],
)
def test_a_processor_that_returns_no_scores(
    engine: Engine, change: Callable[[torch.Tensor], object], found: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"a logits_processor returned {found}.*; it is called with one row"):
        engine.generate("the cat", logits_processor=lambda ids, scores: change(scores), max_new_tokens=3, **options)


@pytest.mark.parametrize("options", [*RULES, {"logprobs": 2}], ids=str)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda scores: scores * math.nan, "a logits_processor turned the model's scores into NaN at output token 0"),
        (
            lambda scores: scores.index_fill(1, torch.tensor([7]), math.nan),
            "a logits_processor turned the model's scores into NaN at output token 0",
        ),
        (lambda scores: scores - math.inf, "every token's score is -inf at output token 0: logit_bias or"),
    ],
)
def test_scores_that_a_processor_spoils(
    engine: Engine, change: Callable[[torch.Tensor], object], expected: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=expected):
        engine.generate("the cat", logits_processor=lambda ids, scores: change(scores), max_new_tokens=3, **options)


@pytest.mark.parametrize("options", RULES, ids=str)
def test_a_bias_that_forbids_all_tokens(engine: Engine, options: dict[str, Any]) -> None:
    bias = dict.fromkeys(range(engine.model.config.vocab_size), -math.inf)
    with pytest.raises(ValueError, match="every token's score is -inf at output token"):
        engine.generate("the cat", logit_bias=bias, max_new_tokens=3, **options)


@pytest.mark.parametrize("options", [{"logprobs": 2}, *RULES], ids=str)
@pytest.mark.parametrize("bias", [math.inf, 1e300])
def test_an_endless_bias_picks_its_token(engine: Engine, bias: float, options: dict[str, Any]) -> None:
    result = engine.generate("the cat", logit_bias={9: bias}, max_new_tokens=3, **options)
    assert list(result.token_ids) == [9, 9, 9]
    assert [logprob.logprob for logprob in result.logprobs or ()] == [0.0] * (3 if "logprobs" in options else 0)


@pytest.mark.parametrize("limit", [10**13, 2**63 - 1])
@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.2},
        {"logits_processor": lambda ids, scores: scores},
        {"stopping_criteria": MaxLengthCriteria(10**6)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_memory_follows_the_output_and_not_its_limit(unlimited: Engine, limit: int, options: dict[str, Any]) -> None:
    (first,) = unlimited.generate("the cat", max_new_tokens=1, ignore_eos=True, **options).token_ids
    assert unlimited.generate("the cat", max_new_tokens=limit, stop_token_ids=[first], **options).token_ids == (first,)


@pytest.mark.parametrize("start", [[], [7, 8, 9]])
def test_ids_that_outgrow_their_room(start: list[int]) -> None:
    ids = GrowingIds(start, 10**12, torch.device("cpu"))
    earlier = ids.view()
    for token in range(1500):
        ids.append(token)
    assert ids.view().tolist() == [[*start, *range(1500)]] and earlier.tolist() == [start]


def test_processors_are_told_the_row_that_generate_gives_them(engine: Engine) -> None:
    def allowed(row: int, _: torch.Tensor) -> list[int]:
        return list(range(60 + 10 * row, 70 + 10 * row))

    processor, prompts = PrefixConstrainedLogitsProcessor(allowed, 1), [[40, 41, 42], [50, 51, 52]]
    ids = torch.tensor(prompts)
    expected = engine.model.generate(
        ids, attention_mask=torch.ones_like(ids), prefix_allowed_tokens_fn=allowed, max_new_tokens=6, pad_token_id=1
    )
    results: Any = engine.generate(prompts, logits_processor=processor, max_new_tokens=6)
    assert [list(result.token_ids) for result in results] == expected[:, 3:].tolist()
    sampled: Any = engine.generate(prompts, logits_processor=processor, n=2, temperature=1.0, max_new_tokens=3)
    assert [min(sample.token_ids) // 10 for result in sampled for sample in result.samples] == [6, 7, 8, 9]


def test_a_processor_with_a_state_of_the_batch_is_refused_for_several_rows(engine: Engine) -> None:
    options: dict[str, Any] = {"logits_processor": UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, engine.model)}
    told = "UnbatchedClassifierFreeGuidanceLogitsProcessor keeps a state of the whole batch between tokens; "
    with pytest.raises(ValueError, match=f"{told}give it to one prompt at a time"):
        engine.generate(["the cat", "the sea"], max_new_tokens=2, **options)
    with pytest.raises(ValueError, match=f"{told}give it to one prompt at a time"):
        engine.generate("the cat", n=2, temperature=1.0, max_new_tokens=2, **options)
    with pytest.raises(ValueError, match=f"{told}give it to one prompt at a time"):
        engine.generate_each([Input("the cat")], max_new_tokens=2, **options)
    with pytest.raises(ValueError, match=f"{told}compare calls it in several runs"):
        compare("the cat", model=engine, max_new_tokens=2, **options)


def test_numbers_that_no_float_holds_fail_alone(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"logit_bias\[1\] must be a number .* that a float can hold, got 1000"):
        engine.generate("the cat", logit_bias={1: 10**400})
