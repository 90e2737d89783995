"""Sequences that are rewound: whatever was decoded or drafted before, the tokens are those of decoding from scratch."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from copyspec import drafters
from copyspec.budget import Budget, CostModel
from copyspec.decoding.requests import Request
from copyspec.decoding.rewindable import FollowingDrafter, RewindableSequence
from copyspec.decoding.stats import Stats
from copyspec.engine.running.threads import Passes
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.verification.noise import gumbel
from tests.helpers.fakes import DEVICE, FakeSession, FakeTarget

VOCABULARY = 12
EOS = 3
LIMIT = 24


def afresh(target: FakeTarget, prompt: list[int], output: list[int], sampling: SamplingOptions) -> list[int]:
    """Decode the whole output after `output`, token by token. The noise is keyed by the output's positions."""
    tokens = list(output)
    while len(tokens) < LIMIT and (not tokens or tokens[-1] != EOS or len(tokens) <= len(output)):
        scores = target.logits([*prompt, *tokens])
        if not sampling.is_greedy:
            scores = scores / sampling.temperature + gumbel(sampling.seed, 0, [len(tokens)], VOCABULARY, DEVICE)[0]
        tokens.append(int(scores.argmax()))
    return tokens


def sequence_of(target: FakeTarget, prompt: list[int], sampling: SamplingOptions) -> RewindableSequence:
    sources = [Source([5, 6, 7, 8, 5, 6], "reference"), Source(prompt, "prompt")]

    def request() -> Request:
        return Request(prompt, LIMIT, sampling, frozenset([EOS]), sources, lambda: drafters.create(sources, [EOS]))

    return RewindableSequence(target, request, DraftOptions(adaptive=False), CostModel(), Passes(list))


@given(
    prompt=st.lists(st.integers(4, VOCABULARY - 1), min_size=1, max_size=5),
    moves=st.lists(
        st.tuples(
            st.integers(0, LIMIT - 1),  # tokens of the last output that are kept
            st.lists(st.integers(4, VOCABULARY - 1), max_size=3),  # tokens appended to them
            st.integers(1, 9),  # tokens decoded then
            st.booleans(),  # whether the earlier output is expected again
        ),
        max_size=6,
    ),
    temperature=st.sampled_from([0.0, 1.0]),
    trees=st.booleans(),
)
def test_tokens_are_those_of_decoding_afresh(
    prompt: list[int], moves: list[tuple[int, list[int], int, bool]], temperature: float, trees: bool
) -> None:
    target = FakeTarget(VOCABULARY, supports_trees=trees)
    sampling = SamplingOptions(temperature=temperature, seed=7)
    text = sequence_of(target, prompt, sampling)
    last: list[int] = []
    for prefix, added, count, expects in [(0, [], 4, False), *moves]:
        start = [token for token in [*last[:prefix], *added] if token != EOS][: LIMIT - 1]
        text.go_to(start, last[len(start) :] if expects else ())
        whole = afresh(target, prompt, start, sampling)
        while len(text.output) < len(start) + count and text.finish is None:
            text.step()
        known = list(text.output)
        assert known == whole[: len(known)]
        assert (text.finish is not None) == (len(known) == len(whole))
        assert len(known) >= min(len(whole), len(start) + count)
        last = known
    assert len(target.sessions) == 1
    assert text.stats.num_passes == target.sessions[0].calls
    text.close()
    assert target.sessions[0].closed


def test_what_stays_is_not_computed_again() -> None:
    target = FakeTarget(VOCABULARY)
    text = sequence_of(target, [5, 6, 7], SamplingOptions())
    text.go_to([])
    while text.finish is None and len(text.output) < 10:
        text.step()
    calls, known = text.stats.num_passes, list(text.output)
    assert len(known) > 3
    text.go_to(known[:2])
    assert list(text.output) == known and text.stats.num_passes == calls
    text.go_to([*known[:2], 9])
    assert target.sessions[0].lengths == [3 + 2]
    text.go_to(known[:2])  # the tokens appended before are no longer what follows
    assert list(text.output) == known[:2]


def test_an_expected_text_is_verified_in_one_call() -> None:
    target = FakeTarget(VOCABULARY)
    whole = afresh(target, [5, 6, 7], [], SamplingOptions())
    text = sequence_of(target, [5, 6, 7], SamplingOptions())
    text.go_to([], whole)
    text.step()
    assert list(text.output) == whole and text.finish is not None
    assert text.stats.num_accepted_tokens_per_source["guess"] == len(whole) - 1


@pytest.mark.parametrize("method", ["score", "keep"])
@pytest.mark.parametrize("at", range(1, 6))
def test_an_interrupted_pass_leaves_no_trace(method: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed what the session holds, such as a recurrent state, before or after tokens were picked."""
    target, sampling = FakeTarget(VOCABULARY, order=9), SamplingOptions(temperature=1.0, seed=5)
    calls, right = 0, getattr(FakeSession, method)

    def interrupted(session: FakeSession, *args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at:
            session.cached[0] += [4]
            raise KeyboardInterrupt
        return right(session, *args)

    monkeypatch.setattr(FakeSession, method, interrupted)
    text = sequence_of(target, [5, 6, 7], sampling)
    text.go_to([])
    while text.finish is None:
        with suppress(KeyboardInterrupt):
            text.step()
    assert list(text.output) == afresh(target, [5, 6, 7], [], sampling)
    assert all(session.closed for session in target.sessions[:-1])


def test_stepping_needs_an_output_that_goes_on() -> None:
    text = sequence_of(FakeTarget(VOCABULARY), [5], SamplingOptions())
    with pytest.raises(RuntimeError, match="go_to"):
        text.step()
    text.go_to([5] * LIMIT)
    assert text.finish is not None and text.finish.reason == "length"
    with pytest.raises(RuntimeError, match="go_to"):
        text.step()


def test_the_follower_drafts_until_it_was_wrong() -> None:
    drafter = FollowingDrafter()
    drafter.expect([1, 2, 3, 4])
    assert list(drafter.propose(Budget(2)).tokens) == [1, 2]
    drafter.accept([1])
    assert list(drafter.propose(Budget(8)).tokens) == [2, 3, 4]
    assert len(drafter.propose(Budget(8, costs=[1.0, *[5.0] * 8]))) == 0
    drafter.accept([2, 9])
    assert len(drafter.propose(Budget(8))) == 0


def test_counters_add_up() -> None:
    first = Stats(
        num_passes=2, num_accepted_tokens_per_pos=(1,), num_draft_tokens_per_source={"prompt": 3}, draft_seconds=0.5
    )
    second = Stats(
        num_passes=1, num_accepted_tokens_per_pos=(2, 2), num_draft_tokens_per_source={"edit": 1, "prompt": 1}
    )
    assert first + second == Stats(
        num_passes=3,
        num_accepted_tokens_per_pos=(3, 2),
        num_draft_tokens_per_source={"prompt": 4, "edit": 1},
        draft_seconds=0.5,
    )


def test_noise_of_any_position_can_come_next() -> None:
    from copyspec.tree import EMPTY
    from copyspec.verification.picking import Picker

    sampling = SamplingOptions(temperature=1.0, seed=3)
    logits = torch.zeros(1, VOCABULARY)
    plain, shifted = (Picker(sampling, [], start, 5, DEVICE) for start in ([1, 2], [1, 2, 3, 4]))
    shifted.key_noise_from(2)
    for token in (4, 5):
        assert torch.equal(plain.scores(logits, EMPTY), shifted.scores(logits, EMPTY))
        plain.append(token)
        shifted.append(token)
