"""The benchmark of batches of edits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed import throughput
from tests.helpers.texts import byte_level, llama


def test_the_benchmark_compares_what_it_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, sentences = tmp_path / "model", tmp_path / "s.txt"
    llama(len(byte_level())).save_pretrained(model)
    byte_level().save_pretrained(model)
    sentences.write_text("The cat sat.\nThe cat sat.\n12\nHe goes to school near the sea.\n")
    options = ["--model", str(model), "--sentences", str(sentences), "--batch-sizes", "1,2", "--repeat", "1"]
    report = tmp_path / "r.json"
    assert throughput.main([*options, "--max-new-tokens", "8", "--json", str(report)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    data = json.loads(report.read_text())
    assert data["sentences"] == 2
    assert [one["method"] for one in data["methods"]] == ["hf", "hf-prompt-lookup", "hf-2", "files-1", "files-2"]
    assert all(one["equal"] for one in data["methods"] if one["method"] in ("hf", "files-1", "files-2"))
    assert throughput.main(["--sentences", str(tmp_path / "none")]) == 2
