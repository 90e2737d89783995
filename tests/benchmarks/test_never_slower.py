"""The benchmark of what drafting may cost: wall and CPU time on a tiny shape, simulated time on the same rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from benchmarks.speed import never_slower
from benchmarks.speed.never_slower import BARS, Line


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    words = [f"w{index}" for index in range(100)]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["</s>", *words])}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    row = {"task": "chat", "model": "m", "prompt": " ".join(words[:20]), "references": []}
    rows = [row | {"id": f"set-{i}", "output": " ".join(words[20 + i : 80 + i]), "group": str(i)} for i in range(2)]
    with gzip.open(tmp_path / "t.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return [str(tmp_path / "t.jsonl.gz"), "--tokenizer", str(tmp_path / "tokenizer.json")]


def test_a_model_is_run_and_its_figures_are_reported(given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    chosen = ["--model", "shape:tiny-llama", "--dtype", "float32", "--repeat", "1", "--methods", "copyspec,wrong-8"]
    code = never_slower.main([*given, *chosen, "--json", str(out)])  # the benchmark compares the outputs itself
    report = json.loads(out.read_text())
    assert report["command"].startswith("python -m benchmarks.speed.never_slower") and not report["simulated"]
    (lines,) = report["results"].values()
    assert [(line["method"], line["rows"], line["tokens"]) for line in lines] == [
        ("copyspec", 2, 122),
        ("wrong-8", 2, 122),
    ]
    assert all(line["cpu"] > 0 and line["decisions"] for line in lines)
    assert code == (0 if all(line["wall"] >= BARS[line["method"].partition("-")[0]] for line in lines) else 1)


def test_simulated_time_needs_no_model(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> str:
        assert never_slower.main([*given, "--simulate", "cpu-float32"]) == 0
        return capsys.readouterr().out

    printed = run()
    assert "cpu-float32, simulated" in printed and "wrong-tree-32" in printed and "BELOW" not in printed
    assert run() == printed, "the same in every run"


def test_bars_and_wrong_calls(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert [Line("s", name, 1, 1).bar for name in ("copyspec", "wrong-64", "wrong-tree-32")] == [0.97, 0.95, 0.95]
    assert never_slower.main([*given, "--simulate", "abacus"]) == 2
    assert "'abacus'" in capsys.readouterr().err
    assert never_slower.main([*given, "--simulate", "cpu-float32", "--methods", "wrong-4"]) == 0
    printed = capsys.readouterr().out
    assert "wrong-4" in printed and "copyspec" not in printed
    for mode in (["--model", "shape:tiny-llama"], ["--simulate", "cpu-float32"]):
        assert never_slower.main([*given, *mode, "--methods", "copy"]) == 2, "nothing was measured"
        assert "--methods: no method 'copy'; there are copyspec, wrong-1" in capsys.readouterr().err
