"""The table of docs/survey.md: times per token relative to the right baseline, and which outputs must be equal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.spec_bench import chosen_prompts, group_of, lines, methods, read_given, read_recorded, said, table
from copyspec import Engine


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
    by_method = {line.method: line for line in lines(report)}
    assert "heads" not in by_method and by_method["copy"].faster == {"mathematics": 2.0, "all": 2.0}
    assert by_method["copy"].tokens_per_pass == 2.0 and by_method["copy"].equal == "1 of 1"
    assert by_method["copy, BiLD"].faster["all"] == 2.0 and by_method["copy, BiLD"].equal == ""
    assert by_method["contrast"].faster["all"] == 2.0 and by_method["contrast"].equal == "0 of 1"
    assert by_method["contrast, plain"].faster["all"] == 0.25 and by_method["contrast, plain"].equal == ""
    assert "| copy | 2.00 | 2.00x |  | 2.00x | 1 of 1 |" in table(report)
    settings = methods({"heads": "folder"})
    assert {"heads", "copy + heads"} < set(settings) and "skips" not in settings
    assert "rest" not in settings and {"sad", "llma", "prompt lookup", "suffix", "lookahead"} < set(settings)


def test_lossy_rules_have_a_table_of_their_own() -> None:
    run = {"seconds": 1.0, "tokens": [1], "passes": 1}
    runs = {"plain": run, "copy, BiLD": run}
    report = {"methods": [*runs], "prompts": [{"id": "a", "group": "g", "runs": runs}]}
    lossless, _, lossy = table(report).split("\n\n")
    assert "| plain |" in lossless and "BiLD" not in lossless and "equal" in lossless
    assert "| copy, BiLD | 1.00 | 1.00x | 1.00x |" in lossy and "equal" not in lossy


def test_any_prompts_run_and_those_of_unknown_sets_are_a_group_of_their_own(tmp_path: Path, engine: Engine) -> None:
    rows = [
        {"prompt": "a b", "id": "mine:1", "references": ["a b c"]},
        {"prompt": "c d", "task": "chat", "id": "pld_mtbench-1", "model": "m"},
        {"prompt": "e " * 400},
    ]
    file = tmp_path / "more.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    prompts = read_given(file)
    assert [group_of(row) for row in prompts] == ["mine", "conversation", "more"]
    chosen = chosen_prompts(prompts, engine, 2, 200)
    assert list(chosen) == ["conversation", "mine"] and chosen["mine"][0].references == ["a b c"]
    (tmp_path / "lines.txt").write_text("one\n\ntwo\n")
    assert [row.prompt for row in read_given(tmp_path / "lines.txt")] == ["one", "two"]
    for content, message in (("", "holds no prompt"), ("{}", "no object with the field 'prompt'")):
        file.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_given(file)


def test_prompts_that_are_left_out_are_counted(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\nthree\n")
    rows = read_given(tmp_path / "lines.txt")
    for per_group, words in ((2, "2 of 3 prompts: --per-group 2,"), (9, "3 of 3 prompts")):
        assert said(chosen_prompts(rows, engine, per_group, 512), len(rows), per_group, 512).startswith(words)


def test_files_that_are_not_there_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"id": "expertqa-1", "task": "rag", "model": "m", "prompt": "p", "references": [], "output": "o"}
    (tmp_path / "rag.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    assert [group_of(row) for row in read_recorded(tmp_path)] == ["RAG"]
    assert "without the groups of chat.jsonl.gz, translation.jsonl.gz" in capsys.readouterr().err
