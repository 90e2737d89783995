"""The table of docs/survey.md: times per token relative to the right baseline, and which outputs must be equal."""

from __future__ import annotations

from benchmarks.spec_bench import lines, methods, table


def test_figures_are_set_against_their_base() -> None:
    def run(seconds: float, tokens: list[int], passes: int) -> dict[str, object]:
        return {"seconds": seconds, "tokens": tokens, "passes": passes}

    runs = {
        "plain": run(4.0, [1, 2, 3, 4], 4),
        "copy": run(2.0, [1, 2, 3, 4], 2),
        "copy, BiLD": run(1.0, [1, 9], 1),
        "contrast, plain": run(8.0, [5, 6], 2),
        "contrast": run(4.0, [5, 7], 1),
    }
    other = {"id": "b", "group": "RAG", "runs": {"plain": run(1.0, [1], 1)}}
    report = {"methods": [*runs, "heads"], "prompts": [{"id": "a", "group": "mathematics", "runs": runs}, other]}
    found = {line.method: line for line in lines(report)}
    assert "heads" not in found and found["copy"].faster == {"mathematics": 2.0, "all": 2.0}
    assert found["copy"].tokens_per_pass == 2.0 and found["copy"].equal == "1 of 1"
    assert found["copy, BiLD"].faster["all"] == 2.0 and found["copy, BiLD"].equal == ""
    assert found["contrast"].faster["all"] == 2.0 and found["contrast"].equal == "0 of 1"
    assert found["contrast, plain"].faster["all"] == 0.25 and found["contrast, plain"].equal == ""
    assert "| copy | 2.00 | 2.00x |  | 2.00x | 1 of 1 |" in table(report)
    found = methods({"heads": "folder"})
    assert {"heads", "copy + heads"} < set(found) and "skips" not in found
