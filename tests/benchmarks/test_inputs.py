"""Benchmarks whose inputs are missing or wrong name the file, and where it comes from."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import spec_bench
from benchmarks.replay.run import main as replay
from benchmarks.retrieval.run import main as retrieval
from kit.reporting import read_rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}\n", "line 1, cannot be read: it is no object with the field 'text'"),
        (b'{"text": "a"}\n[1]\n', "line 2, cannot be read: it is no object with"),
        (b'{"text": "a"}\n{"text"', "line 2, cannot be read: Expecting"),
        (b"\xff\n", "line 1, cannot be read: .*utf-8"),
        (b"not gzip", "line 1, cannot be read"),
        (gzip.compress(b'{"text": "a"}\n' * 900, mtime=0)[:-20], "cannot be read"),
        (None, "there is no file .*docs/benchmarks.md#inputs"),
    ],
)
def test_rows_that_cannot_be_read_are_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    is_packed = content is None or content[:1] in (b"n", b"\x1f")
    file = tmp_path / ("rows.jsonl.gz" if is_packed else "rows.jsonl")
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_rows(file, "text")
    assert str(file) in str(caught.value)
    if content is not None:
        with pytest.raises(SystemExit):
            retrieval(["--passages", str(file), "--queries", str(file)])


@pytest.mark.parametrize("passages", ["none.jsonl", "p.jsonl"])
def test_retrieval_names_its_missing_file(tmp_path: Path, passages: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": "a"}))
    with pytest.raises(SystemExit) as done:
        retrieval(["--passages", str(tmp_path / passages), "--queries", str(tmp_path / "none.jsonl")])
    assert done.value.code == 2 and "none.jsonl" in (shown := capsys.readouterr().err) and "docs/benchmarks.md" in shown


@pytest.mark.parametrize("arguments", [["FOLDER"], ["FOLDER/none"], ["--report", "FOLDER/none.json"]])
def test_spec_bench_names_its_missing_files(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["spec_bench", *words])
    with pytest.raises(SystemExit) as done:
        spec_bench.main()
    shown = capsys.readouterr().err
    assert (
        done.value.code == 2 and ("--json writes it" if "--report" in words else "docs/benchmarks.md#inputs") in shown
    )
    assert "--report" in words or "chat.jsonl.gz, translation.jsonl.gz" in shown


@pytest.mark.parametrize(
    ("transcripts", "tokenizer", "message"),
    [
        ("none", "t.json", "no transcripts at .*none.*docs/benchmarks.md"),
        ("", "t.json", "no .jsonl.gz file among"),
        ("row.jsonl", "none.json", "no tokenizer file at .*none.json.*hub"),
        ("row.jsonl", "t.json", "t.json' is no tokenizer.json"),
        ("bad.jsonl", "t.json", "line 1: the row has no field"),
    ],
)
def test_replay_names_what_is_missing(
    tmp_path: Path, transcripts: str, tokenizer: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "a-1", "task": "rag", "model": "m", "prompt": "p", "references": [], "output": "o", "group": "g"}
    (tmp_path / "row.jsonl").write_text(json.dumps(row))
    (tmp_path / "bad.jsonl").write_text("{}")
    (tmp_path / "t.json").write_text("{}")
    assert replay([str(tmp_path / transcripts), "--tokenizer", str(tmp_path / tokenizer)]) == 2
    assert re.search(message, capsys.readouterr().err)
