"""The benchmark of speculative kNN-LM alternates its methods, takes medians, and compares every output."""

from __future__ import annotations

from benchmarks.retrieval import knn as retrieval_knn
from copyspec.pipelines import KNNAnswer
from copyspec.retrievers import SpeculationStats


def answered(seconds: float, *token_ids: int) -> list[KNNAnswer]:
    return [KNNAnswer("", token_ids, "length", SpeculationStats(), seconds)]


def test_methods_run_in_turn_and_medians_count() -> None:
    asked: list[str] = []
    times = {"plain": [4.0, 9.0, 6.0], "speculative": [2.0, 3.0, 50.0]}

    def answer(method: str) -> list[KNNAnswer]:
        asked.append(method)
        return answered(times.get(method, [1.0] * 3)[asked.count(method) - 1], 5, 6)

    rows = {row["method"]: row for row in retrieval_knn.compare(answer, 3)}
    assert asked == list(retrieval_knn.METHODS) * 3
    assert (rows["plain"]["seconds"], rows["plain"]["speedup"]) == (6.0, 1.0)
    assert (rows["speculative"]["seconds"], rows["speculative"]["speedup"]) == (3.0, 2.0)
    assert all(row["equal"] and row["output_tokens"] == 2 for row in rows.values())


def test_one_other_output_in_any_round_is_reported() -> None:
    asked: list[str] = []

    def answer(method: str) -> list[KNNAnswer]:
        asked.append(method)
        differs = method == "without overlap" and asked.count(method) == 2
        return answered(float(len(asked)), 5, 7 if differs else 6)

    rows = retrieval_knn.compare(answer, 3)
    assert [row["method"] for row in rows if not row["equal"]] == ["without overlap"]
    assert list(rows[0]) == ["method", "seconds", "speedup", "equal", "kept_per_round", "hit_rate", "output_tokens"]
