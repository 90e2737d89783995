"""The BM25 retriever against rank-bm25."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from copyspec.retrievers import BM25Retriever
from retrievers.bm25 import words

TEXTS = [
    "The kettle stands on the stove.",
    "A heron waits in shallow water, and waits again.",
    "Water boils sooner on a mountain than at the sea.",
    "",
]


@given(
    st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), min_size=1, max_size=9).filter(any),
    st.lists(st.sampled_from("abcdefg"), max_size=6),
)
def test_scores_against_rank_bm25(corpus: list[list[str]], query: list[str]) -> None:
    retriever = BM25Retriever([" ".join(text) for text in corpus])
    np.testing.assert_allclose(
        retriever.scores(" ".join(query)), BM25Okapi(corpus).get_scores(query), rtol=0, atol=1e-9
    )


def test_search_returns_ids_scores_and_texts_best_first() -> None:
    hits = BM25Retriever(TEXTS).search("Does a heron wait on a mountain, in shallow water?", k=2)
    assert [hit.id for hit in hits] == [1, 2]
    assert hits[0].score > hits[1].score > 0
    assert hits[0].text == TEXTS[1]


def test_equal_scores_keep_the_order_of_the_texts() -> None:
    assert [hit.id for hit in BM25Retriever(TEXTS).search("submarine", k=9)] == [0, 1, 2, 3]


def test_words_ignore_case_and_punctuation() -> None:
    assert words("Water's 2nd boil!") == ["water", "s", "2nd", "boil"]


def test_one_string_is_an_error() -> None:
    with pytest.raises(TypeError, match="list of strings"):
        BM25Retriever("one text")


@pytest.mark.parametrize("texts", [[], ["", " ... "]])
def test_texts_without_words_are_an_error(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="holds a word"):
        BM25Retriever(texts)


def test_k_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 0"):
        BM25Retriever(TEXTS).search("water", k=0)
