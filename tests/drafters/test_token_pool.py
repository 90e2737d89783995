"""The token pool: the target's runners-up are drafted later; without it, no logits are read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from copyspec.decoding.requests import Request
from copyspec.decoding.row import Row
from copyspec.decoding.stats import Stats
from copyspec.drafters import create
from copyspec.drafters.base import Drafter, ScoredDraft, observes
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.literature.token_pool import PoolPredictor
from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.tree import ROOT, DraftTree
from tests.helpers.decoded import decoded
from tests.helpers.models import VOCAB_SIZE, random_ids, tiny


def run(model: PreTrainedModel, requests: Sequence[Request]) -> list[tuple[list[int], Stats]]:
    return decoded(wrap(model), requests, 8, batch_size=2)


def drafting(request: Request, shape: str) -> Callable[[], Drafter]:
    if shape == "pool":
        return lambda: PredictorDrafter([PoolPredictor(request.prompt)])
    return lambda: BlendDrafter(request.sources, [PoolPredictor(request.prompt)], eos=None)


def test_pool_says_what_was_likely_after_the_same_token() -> None:
    pool = PoolPredictor([4, 5])
    assert pool.predict(()) is None
    tree = DraftTree([6, 7], [ROOT, 0], [0.5] * 2, [None] * 2)
    pool.fill(tree, [[(9, 0.5), (6, 0.4)], [(8, 0.9)], [(5, 0.7), (1, 0.2)]])
    pool.accept([9])
    assert pool.predict(()) is None
    pool.accept([6])
    assert [token for token, _ in pool.predict(()) or ()] == [8]
    assert [token for token, _ in pool.predict((2, 7)) or ()] == [5, 1]
    assert [token for token, _ in pool.predict((7, 5)) or ()] == [9, 6]


def test_scores_that_are_nan_are_left_out() -> None:
    """In half precision, a wrong draft may overflow where the output itself does not."""
    pool = PoolPredictor([4, 5])
    logits = torch.zeros(2, 10)
    logits[1] = float("nan")
    for _ in range(2):
        pool.observe(ScoredDraft(DraftTree([6], [ROOT], [0.5], [None]), logits))
        assert pool.predict((6,)) is None and len(pool.predict(()) or ()) == 8
        pool.accept([5])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("shape", ["pool", "blend"])
def test_output_equals_plain_decoding(shape: str, temperature: float) -> None:
    model = tiny("llama")
    prompts = [random_ids(length, seed=length) for length in (1, 5, 9)]
    requests = [
        Request(
            prompt, 40, SamplingOptions(temperature, seed=3, sample=row), frozenset({5}), [Source(prompt, "prompt")]
        )
        for row, prompt in enumerate(prompts)
    ]
    expected = [tokens for tokens, _ in run(model, requests)]
    for request in requests:
        request.drafter = drafting(request, shape)
    drafted = run(model, requests)
    assert [tokens for tokens, _ in drafted] == expected
    assert sum(stats.num_draft_tokens_per_source.get("pool", 0) for _, stats in drafted) > 0


def test_a_target_that_looks_at_one_token_is_always_known_the_second_time() -> None:
    """Without attention, the next token depends only on the last one, so that the pool is always right."""
    model = tiny("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    request = Request([7], 60, SamplingOptions())
    ((expected, _),) = run(model, [request])
    request.drafter = drafting(request, "pool")
    ((tokens, stats),) = run(model, [request])
    assert tokens == expected
    assert stats.num_accepted_tokens_per_source == {"pool": stats.num_accepted_tokens}
    assert stats.num_passes <= len(set(tokens)) + 60 // 2


def test_nothing_is_read_back_for_drafters_that_do_not_ask() -> None:
    target = wrap(tiny("llama"))
    source = [Source([7, 8], "prompt")]
    silent = BlendDrafter(source, [], eos=None)
    assert not observes(silent)
    for drafter in (create(source, []), silent):
        row = Row(0, Request([7, 8], 4, SamplingOptions(), drafter=lambda made=drafter: made), target)  # type: ignore[misc]
        logits = torch.full((1, VOCAB_SIZE), float("nan"), device="meta")
        row.show(ScoredDraft(DraftTree(), logits))  # reading a meta tensor would raise an error
