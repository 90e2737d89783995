"""The benchmark of correct text: its data, the judgement of wrong sentences, and a run without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.quality import correct_text
from copyspec.pipelines import FunctionCorrector, GECPipeline


def test_the_sentences() -> None:
    assert len(set(correct_text.correct_sentences())) == 300
    wrong = correct_text.wrong_sentences()
    assert len(wrong) == 45 and all(accepted and source not in accepted for source, accepted in wrong)


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("We was late becuase.", "left"),
        ("We were late because.", "right"),
        ("We was late because.", "better"),
        ("We is late becuase.", "other"),
        ("We is late become.", "other"),
        ("We was so late becuase.", "worse"),
    ],
)
def test_verdicts(output: str, verdict: str) -> None:
    assert correct_text.judged_wrong("We was late becuase.", output, ["We were late because."]) == verdict


def test_edits_are_listed_and_counted(tmp_path: Path) -> None:
    pipeline = GECPipeline(FunctionCorrector(lambda text: text.replace("He go", "He goes").replace("he car", "he cat")))
    result = correct_text.measure(pipeline, limit=6, with_files=False)
    assert "correct, seen: 3 sentences, 0 edits, 0 damage or not judged: 0.0 per 1,000" in correct_text.show(result)
    file = tmp_path / "a.txt"
    file.write_text("He go home. The end of it is near.\n", encoding="utf-8")
    count, made, _ = correct_text.measure_files(pipeline, [file])
    assert count == 2 and [edit.key for edit in made] == ["a.txt: He [go -> goes] home. The end of it is near."]
    assert correct_text.package_files(tmp_path, 2) and correct_text.project_files()
    judged = json.loads((correct_text.DATA / "correct_text_judged.json").read_text(encoding="utf-8"))
    assert set(judged.values()) <= {"good", "harmless", "damage"}
