"""The draw of real documents: what it takes, what it leaves out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.quality.real_documents import corrected, drawn
from copyspec.pipelines import FunctionCorrector, GECPipeline
from copyspec.pipelines.editing.journal import Journal


def test_a_refused_file_is_named_and_the_others_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "good.ipynb").write_text('{"cells": [{"cell_type": "markdown", "source": "He go home."}]}' + " " * 500)
    (folder / "broken.ipynb").write_text('{"cells": ' + " " * 500)
    (folder / "foreign.md").write_text("Wir gehen jeden Tag nach Hause und essen dort. " * 15)
    (folder / "page.md").write_text("He go home every day.\n\n" * 30)
    files = drawn([tmp_path], ("md", "ipynb"), 5, 1)
    assert {path.name for _, path, _ in files} == {"good.ipynb", "broken.ipynb", "foreign.md", "page.md"}
    pipeline, words = GECPipeline(FunctionCorrector(lambda text: text.replace("go", "goes"))), Counter[str]()
    with Journal(tmp_path / "journal", {}, resume=False) as journal:
        edits = list(corrected(pipeline, files, journal, words))
    assert {edit.file.rpartition("/")[2] for edit in edits} == {"good.ipynb", "page.md"}
    assert words == {"ipynb": 3, "md": 150}, "text in another language is not asked about"
    said = capsys.readouterr().err
    assert "broken.ipynb: left out: no notebook" in said and said.count("left out") == len(said.splitlines())
