"""Growing a tree: what is said after a node, whichever way it is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from copyspec.drafters import growth
from copyspec.drafters.corpus import Corpus
from copyspec.drafters.estimates import Estimates
from copyspec.drafters.growth import Cursor, Grown
from copyspec.sources import Source

few = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@given(few, few, few, st.lists(st.integers(0, 5), max_size=30), st.integers(0, 6))
def test_votes_after_a_token_are_those_of_cursors_that_join(
    edited: list[int], reference: list[int], prompt: list[int], output: list[int], token: int
) -> None:
    corpus = Corpus([Source(edited, "edit"), Source(reference, "reference"), Source(prompt, "prompt")], eos=7)
    corpus.extend(output)
    estimates = Estimates()
    for number in range(0, len(estimates.records), 3):  # records of their own for each kind
        estimates.records[number].add(0.5, number % 2 == 0)
        estimates.refresh(number)
    joined: list[Cursor] = []
    growth.join(corpus, token, joined)
    expected = growth._vote(corpus, joined, estimates, Grown(tokens=[token], parents=[-1]), 0)
    found = growth._vote_after(corpus, token, estimates)
    assert {each: vote[:3] for each, vote in found.items()} == {each: vote[:3] for each, vote in expected.items()}
