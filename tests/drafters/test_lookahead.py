"""Parallel guesses (Jacobi, lookahead): outputs equal plain decoding, and n-grams of the guesses are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from copyspec.budget import Budget
from copyspec.decoding.requests import Request
from copyspec.decoding.stats import Stats
from copyspec.literature.lookahead import Jacobi, JacobiDrafter, Lookahead, LookaheadDrafter
from copyspec.options import SamplingOptions
from copyspec.targets import wrap
from copyspec.tree import check_tree
from tests.helpers.decoded import decoded
from tests.helpers.models import VOCAB_SIZE, random_ids, tiny
from tests.helpers.texts import new_engine


def run(model: object, requests: Sequence[Request]) -> list[tuple[list[int], Stats]]:
    return decoded(wrap(model), requests, 32, batch_size=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "options", [Jacobi(5), Lookahead(window=4, ngram=3), Lookahead(window=1, ngram=2, candidates=1)]
)
def test_output_equals_plain_decoding(options: Jacobi | Lookahead, temperature: float) -> None:
    model = tiny("llama")
    requests = [
        Request(random_ids(length, seed=length), 30, SamplingOptions(temperature, seed=3, sample=row))
        for row, length in enumerate((1, 5, 9))
    ]
    expected = [tokens for tokens, _ in run(model, requests)]
    for request in requests:
        make = JacobiDrafter if isinstance(options, Jacobi) else LookaheadDrafter
        request.drafter = partial(make, options, request.prompt)  # type: ignore[arg-type]
    drafted = run(model, requests)
    assert [tokens for tokens, _ in drafted] == expected
    assert sum(stats.num_draft_tokens for _, stats in drafted) > 0


@pytest.mark.parametrize("options", [Jacobi(6), Lookahead()])
def test_a_target_that_looks_at_one_token_is_guessed_in_parallel(options: Jacobi | Lookahead) -> None:
    """Each wrong guess is followed by the right successor, so that the columns are true n-grams of such a target."""
    model = tiny("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    request = Request([7], 60, SamplingOptions())
    ((expected, plain),) = run(model, [request])
    make = JacobiDrafter if isinstance(options, Jacobi) else LookaheadDrafter
    request.drafter = partial(make, options, request.prompt)  # type: ignore[arg-type]
    ((tokens, stats),) = run(model, [request])
    assert tokens == expected
    assert stats.num_passes < plain.num_passes * (0.8 if isinstance(options, Lookahead) else 1.01)


def test_trees_keep_their_contract_with_any_guesses() -> None:
    drafter = LookaheadDrafter(Lookahead(window=3, ngram=3), [4, 4, 4])  # all guesses are the same token
    for room in (0, 1, 4, 32):
        tree = drafter.propose(Budget(room))
        check_tree(tree, VOCAB_SIZE)
        assert len(tree) <= room
    drafter.accept([4])


def test_only_passes_that_asked_for_a_draft_tell_how_often_guesses_are_right() -> None:
    lookahead, jacobi = LookaheadDrafter(Lookahead(), [4]), JacobiDrafter(Jacobi(), [4])
    lookahead._keep((4, 4, 4))

    def chances() -> list[float]:
        return [lookahead._gram_chance, lookahead._guess_chance, jacobi._chance]

    for drafter in (lookahead, jacobi):
        assert len(drafter.propose(Budget(8)))
    before = chances()
    for drafter in (lookahead, jacobi):
        drafter.accept([4])  # the first guess, which the pass need not have verified
    assert all(now > then for now, then in zip(chances(), before, strict=True))
    before = chances()
    for drafter in (lookahead, jacobi):
        for _ in range(100):
            drafter.accept([9])
    assert chances() == before


def test_beside_copies() -> None:
    engine = new_engine()
    text = "The cat sat on the mat, and the dog sat on"
    plain = engine.generate(text, max_new_tokens=20, drafter="none")
    assert engine.generate(text, max_new_tokens=20, drafter=["auto", Lookahead()]).token_ids == plain.token_ids
    with pytest.raises(ValueError, match="window must be an integer from 1 to 64"):
        Lookahead(window=0)
