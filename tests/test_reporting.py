"""What the benchmarks' reports share: their command, their input, and whether a run may continue one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kit.reporting import command_line, kept_rows, read_rows, resumed


def test_a_report_names_the_arguments_that_its_run_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pytest", "-q", "a b"])
    assert command_line("benchmarks.speed") == "python -m benchmarks.speed -q 'a b'"
    assert command_line("benchmarks.speed", ["--rows", "2"]) == "python -m benchmarks.speed --rows 2"
    assert command_line("benchmarks.speed", []) == "python -m benchmarks.speed"


def test_rows_are_read_gzipped_or_not(tmp_path: Path) -> None:
    rows = [{"text": "é"}, {"text": "b"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    for name, content in (("a.jsonl", lines), ("a.jsonl.gz", gzip.compress(lines))):
        (tmp_path / name).write_bytes(content)
        assert read_rows(tmp_path / name) == read_rows(str(tmp_path / name)) == rows


def test_fields_that_older_reports_lack_hold_no_run_back(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    head = {"model": "smollm2", "dtype": "float32", "machine": {"cpus": 2, "instructions": "AVX2"}, "tasks": ("gec",)}
    assert resumed(None, head) == resumed(file, head) == {}
    file.write_text(json.dumps({"model": "smollm2", "machine": {"cpus": 2}, "runs": [1]}))
    assert resumed(file, head)["runs"] == [1]
    with pytest.raises(SystemExit, match=r"its tasks is \['rag'\], not \['gec'\]"):
        resumed(file, head, {"tasks": ["rag"]})


def test_rows_kept_of_another_corrector_are_refused(tmp_path: Path) -> None:
    file, corrector = tmp_path / "kept.jsonl", {"weights": "a", "dtype": "float32"}
    assert kept_rows(None, corrector) == kept_rows(file, corrector) == []
    with file.open("a") as lines:
        lines.write('["x", 1]\n')
    assert kept_rows(file, corrector) == [["x", 1]]
    with pytest.raises(SystemExit, match=r"kept.jsonl holds rows of .*'a'.*, not of .*'b'.*; remove it"):
        kept_rows(file, {**corrector, "weights": "b"})
    file.write_text('["x", 1]\n')
    with pytest.raises(SystemExit, match=r"holds rows of \['x', 1\], not of"):
        kept_rows(file, corrector)
