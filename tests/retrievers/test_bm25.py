"""The BM25 retriever against rank-bm25."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from copyspec.retrievers import BM25Retriever, IndexFileError, Retriever, words
from copyspec.retrievers import bm25 as module
from copyspec.retrievers.bm25 import LUCENE_K1, B

TEXTS = [
    "The kettle stands on the stove.",
    "A heron waits in shallow water, and waits again.",
    "Water boils sooner on a mountain than at the sea.",
    "",
]

PASSAGES = Path(os.environ.get("COPYSPEC_DATA", "data")) / "retrieval" / "passages_openstax.jsonl.gz"

CORPORA = st.lists(st.lists(st.sampled_from("abcdef"), max_size=8), min_size=1, max_size=9).filter(any)
QUERIES = st.lists(st.sampled_from("abcdefg"), max_size=6)


def joined(corpus: list[list[str]]) -> list[str]:
    return [" ".join(text) for text in corpus]


@given(CORPORA, QUERIES)
def test_scores_against_rank_bm25(corpus: list[list[str]], query: list[str]) -> None:
    retriever = BM25Retriever(joined(corpus))
    np.testing.assert_allclose(
        retriever.scores(" ".join(query)), BM25Okapi(corpus).get_scores(query), rtol=0, atol=1e-9
    )


@given(CORPORA, st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=8), max_size=5), QUERIES, st.data())
def test_texts_added_later_score_as_if_they_had_been_there(
    corpus: list[list[str]], more: list[list[str]], query: list[str], data: st.DataObject
) -> None:
    grown = BM25Retriever(joined(corpus))
    grown.add(joined(more))
    whole = BM25Retriever(joined(corpus + more))
    assert list(grown.texts) == list(whole.texts) and len(grown) == len(corpus) + len(more)
    text = " ".join(query)
    assert grown.scores(text).tolist() == whole.scores(text).tolist()
    ids = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6))
    assert whole.score(text, ids).tolist() == whole.scores(text)[ids].tolist()


@given(CORPORA, st.lists(QUERIES, max_size=4), st.integers(1, 10))
def test_a_search_sorts_all_scores_and_ignores_the_batch(
    corpus: list[list[str]], queries: list[list[str]], k: int
) -> None:
    retriever = BM25Retriever(joined(corpus))
    texts = joined(queries)
    results = retriever.search_batch(texts, k)
    for text, hits in zip(texts, results, strict=True):
        scores = retriever.scores(text)
        order = sorted(range(len(corpus)), key=lambda i: (-scores[i], i))[:k]
        assert [(hit.id, hit.score, hit.text) for hit in hits] == [(i, scores[i], joined(corpus)[i]) for i in order]
        assert hits == retriever.search(text, k)


def test_a_search_beside_an_addition_sees_all_of_it_or_nothing() -> None:
    """The splitter adds while a search is between its query and its hits."""
    adds = False

    def split(text: str) -> list[str]:
        nonlocal adds
        if adds:
            adds = False
            retriever.add(["otter otter otter"] * 5)
        return words(text)

    retriever = BM25Retriever(TEXTS, split=split)
    before = retriever.search("water otter", 2)
    adds = True
    assert retriever.search("water otter", 2) == before
    assert len(retriever) == 9 and retriever.search("otter", 1)[0].id == 4


def test_two_additions_at_once_lose_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = BM25Retriever(["a heron"])
    other = threading.Thread(target=retriever.add, args=(["a kettle"],))
    copy = module._Statistics.copy

    def copied(statistics: module._Statistics) -> module._Statistics:
        if other.ident is None:
            other.start()
            other.join(0.2)
        return copy(statistics)

    monkeypatch.setattr(module._Statistics, "copy", copied)
    retriever.add(["an otter"])
    other.join()
    assert list(retriever.texts) == ["a heron", "an otter", "a kettle"]
    assert retriever.search("kettle", 1)[0].id == 2


def synthetic(count: int) -> list[list[str]]:
    """Make texts of 5 to 30 words; the n-th word has a frequency proportional to 1/n, as in natural language."""
    rng = random.Random(0)
    vocabulary = [f"w{n}" for n in range(5000)]
    weights = [1 / (n + 1) for n in range(5000)]
    drawn = iter(rng.choices(vocabulary, weights, k=31 * count))
    return [[next(drawn) for _ in range(rng.randint(5, 30))] for _ in range(count)]


def test_scores_against_rank_bm25_on_many_synthetic_texts() -> None:
    corpus = synthetic(4000)
    retriever, reference = BM25Retriever(joined(corpus)), BM25Okapi(corpus)
    for query in synthetic(5):
        np.testing.assert_allclose(retriever.scores(" ".join(query)), reference.get_scores(query), rtol=0, atol=1e-9)


@pytest.mark.skipif(not PASSAGES.exists(), reason="the passages are not on this machine")
def test_scores_against_rank_bm25_on_real_passages() -> None:
    with gzip.open(PASSAGES, "rt", encoding="utf-8") as lines:
        passages = [json.loads(line)["text"] for _, line in zip(range(2000), lines, strict=False)]
    retriever, reference = BM25Retriever(passages), BM25Okapi([words(passage) for passage in passages])
    for query in ["why does water boil", passages[7]]:
        np.testing.assert_allclose(retriever.scores(query), reference.get_scores(words(query)), rtol=0, atol=1e-9)


def test_search_returns_ids_scores_and_texts_best_first() -> None:
    retriever: Retriever = BM25Retriever(TEXTS)
    hits = retriever.search("Does a heron wait on a mountain, in shallow water?", k=2)
    assert [hit.id for hit in hits] == [1, 2]
    assert hits[0].score > hits[1].score > 0
    assert hits[0].text == TEXTS[1]


def test_equal_scores_keep_the_order_of_the_texts() -> None:
    assert [hit.id for hit in BM25Retriever(TEXTS).search("submarine", k=9)] == [0, 1, 2, 3]
    assert [hit.id for hit in BM25Retriever(TEXTS).search("submarine", k=2)] == [0, 1]


def test_words_ignore_case_and_punctuation() -> None:
    assert words("Water's 2nd boil!") == ["water", "s", "2nd", "boil"]


def test_an_index_on_disk_is_the_same_index(tmp_path: Path) -> None:
    retriever = BM25Retriever([*TEXTS, "caf\u00e9 \ud800"])
    retriever.save(tmp_path / "a" / "index")
    loaded = BM25Retriever.load(tmp_path / "a" / "index")
    assert list(loaded.texts) == list(retriever.texts)
    for one in (retriever, loaded):
        one.add(["a heron boils water"])
    assert loaded.search("water waits", 9) == retriever.search("water waits", 9)
    loaded.save(tmp_path / "a" / "index")  # saving over itself removes the files of the old index
    assert BM25Retriever.load(tmp_path / "a" / "index").search("heron") == retriever.search("heron")
    assert len(list((tmp_path / "a" / "index").iterdir())) == 7


def test_an_index_made_with_other_words_is_refused(tmp_path: Path) -> None:
    BM25Retriever(TEXTS, split=str.split).save(tmp_path)
    assert BM25Retriever.load(tmp_path, split=str.split).search("kettle")[0].id == 0
    with pytest.raises(IndexFileError, match="another word splitter"):
        BM25Retriever.load(tmp_path)


def test_one_string_is_an_error() -> None:
    with pytest.raises(TypeError, match="list of strings"):
        BM25Retriever("one text")
    retriever = BM25Retriever(TEXTS)
    with pytest.raises(TypeError, match="queries must be a list"):
        retriever.search_batch("water")
    with pytest.raises(TypeError, match=r"texts\[1\] must be a string, got int: 3"):
        retriever.add(["a", 3])  # type: ignore[list-item]
    assert len(retriever) == 4


@pytest.mark.parametrize("texts", [[], ["", " ... "]])
def test_texts_without_words_are_an_error(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="holds a word"):
        BM25Retriever(texts)


def test_wrong_numbers_are_errors() -> None:
    with pytest.raises(ValueError, match="got 0"):
        BM25Retriever(TEXTS).search("water", k=0)
    with pytest.raises(IndexError, match="id 4 is not in this retriever: it holds 4 texts"):
        BM25Retriever(TEXTS).score("water", [0, 4])


def lucene(query: str, texts: list[str]) -> list[float]:
    """Compute BM25 with Lucene's idf, word by word."""
    spoken = [words(text) for text in texts]
    mean = sum(map(len, spoken)) / len(spoken)
    scores = []
    for text in spoken:
        score = 0.0
        for word in words(query):
            count_with, count = sum(word in other for other in spoken), text.count(word)
            idf = math.log(1 + (len(texts) - count_with + 0.5) / (count_with + 0.5))
            score += idf * count * (LUCENE_K1 + 1) / (count + LUCENE_K1 * (1 - B + B * len(text) / mean))
        scores.append(score)
    return scores


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6).map(" ".join), min_size=1, max_size=5))
def test_lucene_scores_against_the_formula(texts: list[str]) -> None:
    if not any(texts):
        texts = [*texts, "a"]
    retriever = BM25Retriever(texts, idf="lucene")
    for query in ("a", "a b", "b b c", "x", "d x"):
        expected = lucene(query, texts)
        assert retriever.scores(query).tolist() == pytest.approx(expected, abs=1e-9)
        assert all(
            (score > 0) == bool(set(words(query)) & set(words(text)))
            for score, text in zip(expected, texts, strict=True)
        )


def test_of_two_texts_the_one_with_the_word_comes_first(tmp_path: Path) -> None:
    texts = ["Bees visit the meadow.", "The lighthouse is old."]
    assert BM25Retriever(texts).scores("lighthouse").tolist() == [0.0, 0.0], "as rank-bm25 says"
    retriever = BM25Retriever(texts, idf="lucene")
    retriever.save(tmp_path)
    loaded = BM25Retriever.load(tmp_path)
    loaded.add(["The lighthouse again."])
    assert [hit.id for hit in retriever.search("the lighthouse", 1)] == [1]
    assert (loaded.idf, [hit.id for hit in loaded.search("the lighthouse", 3)]) == ("lucene", [2, 1, 0])
    with pytest.raises(ValueError, match="idf must be 'okapi' or 'lucene', got 'x'"):
        BM25Retriever(texts, idf="x")  # type: ignore[arg-type]
