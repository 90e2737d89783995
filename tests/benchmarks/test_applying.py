"""The apply set: edits of every form give the recorded result, and results with faults are refused."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from benchmarks.applying.__main__ import EXACT, FAULTS, measured
from benchmarks.applying.rows import FORMS, Row, committed, edit

FUNCTION = 'def step_{0}(x):\n    """Step {0}."""\n    total = x + {0}\n    print("step {0}")\n    return total\n'


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    folder, draw = tmp_path_factory.mktemp("repository"), random.Random(0)

    def git(*arguments: str) -> None:
        options = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        dates = {f"GIT_{who}_DATE": "2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
        subprocess.run(
            ["git", *options, *arguments], cwd=folder, check=True, capture_output=True, env={**os.environ, **dates}
        )  # rows are named by commits, and faults drawn by these names

    git("init", "-q")
    functions = [FUNCTION.format(number) for number in range(12)]
    for commit in range(20):
        if commit:
            at = draw.randrange(len(functions))
            functions[at] = (
                functions[at].replace("total", f"sum_{commit}") if commit % 2 else FUNCTION.format(100 + commit)
            )
        (folder / "a.py").write_text("import os\n\n\n" + "\n\n".join(functions))
        git("add", "-A")
        git("commit", "--allow-empty", "-qm", f"Edit {commit}")
    return list(committed(folder))


def test_all_forms_give_the_recorded_result_and_faults_are_refused(rows: list[Row]) -> None:
    assert len(rows) > 10
    outcomes = measured(rows)
    for seed in range(20):  # neighbours alike: a function that goes could be the one that the edit replaces
        assert measured(rows, seed).wrong == []
    assert set(outcomes.counts) == {*FORMS, "blocks, merged", "lazy, merged", *(f"fault: {fault}" for fault in FAULTS)}
    assert all(outcomes.counts[form] == {"right without a model": len(rows)} for form in EXACT)
    assert all(set(outcomes.counts[f"fault: {fault}"]) == {"refused"} for fault in FAULTS)


def test_files_stand_in_one_half(rows: list[Row]) -> None:
    assert len({row.is_held_out for row in rows}) == 1


def test_edits_are_written_as_agents_write_them() -> None:
    row = Row("1", "a.c", "int a;\nint b;\nint c;\nint d;\nint e;\n", "int a;\nint b;\nint x;\nint d;\nint e;\n", "")
    made = {form: edit(row, form, random.Random(1)) for form in FORMS}
    assert "SEARCH\nint b;\nint c;\nint d;\n=======\nint b;\nint x;\nint d;\n" in made["blocks"]
    assert "\n-int c;\n+int x;\n" in made["diff"] and made["patch"].startswith(
        "*** Begin Patch\n*** Update File: a.c\n@@\n"
    )
    assert "\nint x;\n" in made["lazy"] and "int c;" not in made["lazy"] and made["whole"] == row.after
