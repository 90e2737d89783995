"""The table of types in docs/gpu.md, for one type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz import static_types


def test_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "types.json"
    assert static_types.main(["--only", "llama", "--no-compile", "--markdown", "--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["types"] == [{"type": "llama", "replayed": "graph", "tree attention": "graph"}]
    assert "| replayed: graph, 1 | `llama` |" in capsys.readouterr().out
    file.write_text(json.dumps({**report, "torch": "1.0"}))
    with pytest.raises(SystemExit, match=r"its torch is '1\.0'"):
        static_types.main(["--only", "gpt2", "--no-compile", "--json", str(file)])
