"""The benchmark of speculative retrieval runs, compares outputs and reports what it measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrieval import run as retrieval
from copyspec.models.loading import BUNDLED
from copyspec.retrievers import BM25Retriever

TEXTS = [
    "The lighthouse on the pier was built in 1871 from grey granite.",
    "Bees visit the meadow in June, when the thyme is in flower.",
    "The library lends books for four weeks.",
]


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
def test_methods_are_compared_with_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passages, queries, out = tmp_path / "p.jsonl.gz", tmp_path / "q.jsonl", tmp_path / "out.json"
    with gzip.open(passages, "wt", encoding="utf-8") as file:
        file.write("\n".join(json.dumps({"text": text}) for text in TEXTS))
    questions = ["When was the lighthouse built?", "When do bees visit the meadow?"]
    queries.write_text("\n".join(json.dumps({"question": question}) for question in questions))
    command = ["--passages", str(passages), "--queries", str(queries), "--json", str(out), "--questions", "1"]
    command += ["--tokens", "12", "--kinds", "exact", "bm25", "--ratios", "0.5", "--methods", "plain", "speculative"]
    assert retrieval.main(command) == 0
    assert "bm25, b/a = 0.5" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert [table["index"] for table in report["tables"]] == ["exact", "bm25"]
    plain, speculative = report["tables"][0]["methods"]
    assert plain["equal"] and speculative["equal"] and plain["speedup"] == 1.0
    assert plain["search_seconds"] > 0
    assert plain["output_tokens"] == speculative["output_tokens"]
    table = report["tables"][1]
    assert (table["published_ratios"], table["ratio_is_published"]) == ([0.7, 1.45], False)
    assert 1.0 <= table["all_hidden"] < 2.0 and speculative["rounds"] <= speculative["guesses"]


def test_a_delayed_retriever_lasts_as_long_as_asked_for() -> None:
    base = retrieval.Delayed(BM25Retriever(TEXTS))
    base.fixed, base.per_query = 0.01, 0.005
    assert base.search_batch(["bees", "books"], 1) == BM25Retriever(TEXTS).search_batch(["bees", "books"], 1)
    assert base.searching >= 0.02 and base.calls == 1
    base.reset()
    assert base.searching == base.calls == 0
    assert base.score("bees", [1]).tolist() == BM25Retriever(TEXTS).score("bees", [1]).tolist()


def test_vectors_are_near_where_texts_share_words() -> None:
    vectors = retrieval.word_vectors([*TEXTS, "Bees in the meadow"])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert int((vectors[:3] @ vectors[3]).argmax()) == 1


def test_windows_start_at_even_distances() -> None:
    made = retrieval.windows([f"w{i} " * 1 for i in range(300)], 5)
    assert [text.split()[0] for text in made] == ["w0", "w50", "w100", "w150", "w200"]
    assert {len(text.split()) for text in made} == {100}


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled model is not in this checkout")
def test_an_hnsw_index_is_kept_and_its_recall_reported(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    texts, queries, out, index = (tmp_path / name for name in ("t.txt.gz", "q.jsonl", "out.json", "index"))
    with gzip.open(texts, "wt", encoding="utf-8") as file:
        file.write(" ".join(TEXTS * 10))
    queries.write_text("\n".join(json.dumps({"question": question}) for question in TEXTS))
    command = ["--windows", "30", "--texts", str(texts), "--queries", str(queries), "--json", str(out), "--index"]
    command += [str(index), "--dimension", "16", "--kinds", "hnsw", "--ratios", "0", "--questions", "1"]
    command += ["--tokens", "8", "--methods", "plain", "speculative"]
    built = []
    for _ in range(2):
        assert retrieval.main(command) == 0
        built.append((index / "manifest.json").stat().st_mtime_ns)
        (table,) = json.loads(out.read_text())["tables"]
        assert table["recall"]["of 20"] == 1.0 and table["options"]["ef_search"] == 64
    assert built[0] == built[1], "the second run loads the index of the first"
