"""Columns and parts without a cluster: rows keep their places, broken ones are set aside, interrupted runs continue."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyspec import Engine, LoadError, api
from copyspec.cli.app import main
from copyspec.cli.correcting import ReportOptions, run_on_ray
from copyspec.integrations.ray import AnswerColumn, CorrectColumn, files, run, runs
from copyspec.integrations.ray.columns import ERROR
from copyspec.integrations.ray.parts import find_files, split
from copyspec.models.loading import ModelChoice, choose_default
from copyspec.pipelines import (
    FileOptions,
    FileReport,
    FormatOptionError,
    FunctionCorrector,
    GECPipeline,
    RunOptions,
    Summary,
)

TEXTS = ["She go to school every day.", "The childrens is here.", "It rains."]


class Upper:
    """A task without a model."""

    @property
    def identity(self) -> dict[str, object]:
        return {"task": "upper"}

    def load(self) -> None: ...

    def __init__(self, fails_after: int | None = None) -> None:
        self.left = fails_after

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        texts = batch["text"]
        errors = [None if isinstance(text, str) else "no text" for text in texts]
        return {**batch, "to": [text and str(text).upper() for text in texts], ERROR: errors}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the work in this process."""
    for module in (runs, files):
        monkeypatch.setattr(module, "mapped", lambda work, items, *_: (work(item) for item in items))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def outputs(folder: Path) -> list[Any]:
    return [row for file in sorted(folder.glob("*.jsonl")) for row in lines(file)]


def test_a_column_is_corrected_as_the_pipeline_does(engine: Engine) -> None:
    task = CorrectColumn(model=engine, max_new_tokens=8)
    batch = {"text": np.array([*TEXTS, None], dtype=object), "id": np.arange(4)}
    found = task(batch)
    assert found["corrected"] == [each.text for each in GECPipeline(engine, max_new_tokens=8)(TEXTS)] + [None]
    assert found["id"] == [0, 1, 2, 3]
    assert found[ERROR][3] == "text is not text: NoneType"
    without = task({"id": [1, 2]})
    assert without["corrected"] == [None, None] and without["id"] == [1, 2]
    assert without[ERROR] == ["there is no column 'text'; the rows have 'id'"] * 2
    assert pickle.loads(pickle.dumps(CorrectColumn(model="default"))).identity["model"] == "default"


class ArrowTable:
    """The parts of `pyarrow.Table` that are read: its columns by name or number, over which it iterates."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns, self.column_names = columns, list(columns)

    def __getitem__(self, key: str | int) -> list[Any]:
        return self._columns[self.column_names[key] if isinstance(key, int) else key]


def test_a_batch_may_be_an_arrow_table(engine: Engine) -> None:
    task, columns = CorrectColumn(model=engine, max_new_tokens=8), {"text": TEXTS, "id": [1, 2, 3]}
    assert task(ArrowTable(columns)) == task(columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("column", [CorrectColumn, AnswerColumn])
def test_without_a_model_a_column_gets_the_best_corrector_and_names_it(
    column: type[CorrectColumn | AnswerColumn], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []

    def refuse(choice: ModelChoice) -> Engine:
        loaded.append(choice.model)
        raise LoadError("nothing is loaded in this test")

    for name, value in {"configured": None, "defaults": {}, "named_default": True}.items():
        monkeypatch.setattr(api._STATE, name, value)
    monkeypatch.setattr(api._STATE.registry, "engine", refuse)
    monkeypatch.setattr("copyspec.models.loading.is_ready", lambda alias: True)
    monkeypatch.setenv("COPYSPEC_MODEL", "org/model")
    assert column().identity["model"] == "org/model"
    monkeypatch.delenv("COPYSPEC_MODEL")
    with pytest.raises(LoadError, match="nothing is loaded"):
        column().load()
    assert loaded == [column().identity["model"]] == [choose_default(corrects=True)]
    monkeypatch.setattr("copyspec.models.loading.is_ready", lambda alias: False)
    assert column().identity["model"] == "default"
    sent = pickle.dumps(column())
    monkeypatch.setenv("COPYSPEC_MODEL", "org/other")
    assert pickle.loads(sent).identity["model"] == "default", "actors load what the driver would"


@pytest.mark.parametrize("column", [CorrectColumn, AnswerColumn])
def test_a_column_that_leaves_the_process_does_not_lose_what_was_configured(
    column: type[CorrectColumn | AnswerColumn], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api._STATE, "configured", None)
    api.configure(model=engine)
    column().load()  # in this process it is used
    for use in (lambda: pickle.dumps(column()), lambda: column().identity):
        with pytest.raises(ValueError, match=r"configure does not reach Ray's actors: give model="):
            use()
    assert column(model="default").identity["model"] == "default"


def test_one_bad_row_does_not_fail_its_batch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    corrections = GECPipeline._corrections

    def fails(self: GECPipeline, texts: list[str]) -> Any:
        if TEXTS[1] in texts:
            raise ValueError("it cannot be read")
        return corrections(self, texts)

    monkeypatch.setattr(GECPipeline, "_corrections", fails)
    found = CorrectColumn(model=engine, max_new_tokens=8)({"text": TEXTS})
    assert [each is None for each in found["corrected"]] == [False, True, False]
    assert found[ERROR][1] == "ValueError: it cannot be read"


def test_a_column_is_answered(engine: Engine) -> None:
    batch = {"question": ["Where do storks nest?", None], "passages": [["Storks nest on chimneys."], "text"]}
    found = AnswerColumn(model=engine)(batch)
    assert isinstance(found["answer"][0], str) and found[ERROR][0] is None
    assert found["answer"][1] is None and found[ERROR][1]
    without = AnswerColumn(model=engine)({"question": ["Where?"]})
    assert without["answer"] == [None]
    assert without[ERROR] == ["there is no column 'passages'; the rows have 'question'"]


def test_a_run_writes_every_row_once_and_goes_on(tmp_path: Path, here: None) -> None:
    source = tmp_path / "in"
    source.mkdir()
    rows = [{"id": i, "text": f"text {i}" if i != 5 else 3} for i in range(25)]
    (source / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n[1]\n")
    (source / "b.txt").write_text("one line\nanother, without an end")
    (source / "notes.md").write_text("no rows")
    output = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(Upper(fails_after=2), source, output, rows_per_part=4)
    assert len(list(output.glob("*.jsonl"))) == 2
    report = run(Upper(), source, output, rows_per_part=4)
    assert (report.rows, report.failed, report.resumed, report.parts) == (26, 3, 2, 8)
    found = outputs(output)
    assert [row["id"] for row in found if "id" in row] == [i for i in range(25) if i != 5]
    assert all(row["to"] == row["text"].upper() for row in found)
    failed = outputs(output / "failed")
    assert failed[0]["error"] == "no text" and "no row" in failed[1]["error"]
    again = run(Upper(), source, output, rows_per_part=4)
    assert again.resumed == 8 and lines(output / "report.json")[0]["rows"] == 26
    with pytest.raises(ValueError, match="differs in parts, rows_per_part"):
        run(Upper(), source, output, rows_per_part=5)


def test_a_run_goes_on_that_writes_into_a_folder_of_its_source(tmp_path: Path, here: None) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": 3}\n{"text": "b"}\n')
    with pytest.raises(KeyboardInterrupt):
        run(Upper(fails_after=2), tmp_path, tmp_path / "out", rows_per_part=1)
    report = run(Upper(), tmp_path, tmp_path / "out", rows_per_part=1)
    assert (report.rows, report.failed, report.resumed) == (2, 1, 2)
    assert [row["to"] for row in outputs(tmp_path / "out")] == ["A", "B"]


def test_a_part_without_the_column_does_not_end_the_run(tmp_path: Path, here: None, engine: Engine) -> None:
    rows = [{"id": 1}, {"id": 2}, {"text": "It rains."}, {"id": 3}, {}, {ERROR: "of an earlier run"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(
        CorrectColumn(model=engine, max_new_tokens=8), tmp_path / "in.jsonl", tmp_path / "out", rows_per_part=2
    )
    assert report.rows + report.failed == 6 and report.failed >= 5
    failed = outputs(tmp_path / "out" / "failed")
    assert failed[0]["error"] == "there is no column 'text'; the rows have 'id'"
    assert [row["error"] for row in failed if "line" in row] == [
        "no row: a line of JSON must be an object with columns, got dict: {}"
    ]


def test_a_line_that_is_nested_too_deep_is_set_aside(tmp_path: Path, here: None) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n' + "[" * 100_000 + "\n")
    report = run(Upper(), tmp_path / "in.jsonl", tmp_path / "out")
    assert (report.rows, report.failed) == (1, 1)
    assert "no row" in outputs(tmp_path / "out" / "failed")[0]["error"]


class Length:
    """A task with nothing but what the documentation asks for."""

    def __init__(self) -> None:
        self.identity = {"task": "length"}

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        return {**batch, "length": [len(text) for text in batch["text"]]}


def test_a_task_needs_neither_load_nor_errors(tmp_path: Path, here: None) -> None:
    rows: list[dict[str, object]] = [{"text": "ab"}, {"text": "c", ERROR: "of an earlier run"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(Length(), tmp_path / "in.jsonl", tmp_path / "out")
    assert (report.rows, report.failed) == (2, 0)
    assert outputs(tmp_path / "out") == [{"text": "ab", "length": 2}, {"text": "c", "length": 1}]


def test_input_that_was_rewritten_at_the_same_size_is_another_run(tmp_path: Path, here: None) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(KeyboardInterrupt):
        run(Upper(fails_after=1), tmp_path / "a.txt", tmp_path / "out", rows_per_part=1)
    (tmp_path / "a.txt").write_text("one\nsix\n")
    with pytest.raises(ValueError, match="which differs in files"):
        run(Upper(), tmp_path / "a.txt", tmp_path / "out", rows_per_part=1)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert run(Upper(), tmp_path / "a.txt", tmp_path / "out", rows_per_part=1).resumed == 1


def test_results_take_the_place_of_a_column_of_their_name(tmp_path: Path, here: None) -> None:
    rows = [
        {"text": "a", "to": "old"},
        {"text": "b"},
        {"text": "c", "more": 1, ERROR: "of an earlier run"},
        {"to": "old"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = run(Upper(), tmp_path / "in.jsonl", tmp_path / "out")
    assert (report.rows, report.failed) == (3, 1)
    wanted = [{"text": "a", "to": "A"}, {"text": "b", "to": "B"}, {"text": "c", "more": 1, "to": "C"}]
    assert outputs(tmp_path / "out") == wanted
    assert outputs(tmp_path / "out" / "failed") == [{"to": None, "error": "no text"}]


def test_parquet_is_cut_across_row_groups(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "rows.parquet"
    parquet.write_table(arrow.table({"text": [f"text {i}" for i in range(23)]}), file, row_group_size=5)
    parts = list(split(find_files(file), 4))
    assert [row["text"] for part in parts for row in part.read()[0]] == [f"text {i}" for i in range(23)]


def test_folders_that_are_not_empty_are_left_alone(tmp_path: Path, here: None) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    with pytest.raises(ValueError, match="is not empty"):
        run(Upper(), tmp_path / "a.txt", tmp_path)
    with pytest.raises(ValueError, match="has no file that ends with"):
        run(Upper(), tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(ValueError, match="actors must be"):
        run(Upper(), tmp_path / "a.txt", tmp_path / "out", actors=0)


def test_files_are_corrected_in_place_as_without_a_cluster(
    tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"a.txt": "She go to school, he have 2.\n", "b/c.md": "# The childrens is here.\n", "d.txt": "It rains.\n"}
    for folder in ("plain", "ray"):
        for name, text in texts.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "ray" / "bad.txt").write_bytes(b"\xff\xfe\x00no text")
    monkeypatch.setattr(files, "FILES_PER_GROUP", 1)
    on_ray = ["gec", str(tmp_path / "ray"), "-i", "--ray", "local"]
    with monkeypatch.context() as patched:  # the run is killed after one file, which is not corrected again
        done, tell = iter(range(9)), files.report_to_json

        def killed_at_the_second(report: FileReport) -> dict[str, object]:
            if next(done):
                raise KeyboardInterrupt
            return tell(report)

        patched.setattr(files, "report_to_json", killed_at_the_second)
        assert main(on_ray) == 130
    assert main(on_ray) == 2 and "was left by an interrupted run: --resume continues" in capsys.readouterr().err
    assert main([*on_ray, "--resume"]) == 3 and "bad.txt" in capsys.readouterr().err
    assert main(["gec", str(tmp_path / "plain"), "-i"]) == 0
    assert all((tmp_path / "ray" / name).read_text() == (tmp_path / "plain" / name).read_text() for name in texts)
    assert not [each for each in tmp_path.rglob("*journal*") if "bad" not in each.name]
    wrong_model = ["-i", "--ray", "local", "--model", str(tmp_path / "no model")]
    for wrong in (
        *(wrong_model, ["-i", "--actors", "2"], ["--ray", "local"]),
        ["-i", "--ray", "local", "--edits", str(tmp_path / "e")],
    ):
        assert main(["gec", str(tmp_path / "plain"), *wrong]) == 2


def test_options_that_fit_no_file_are_wrong_usage_as_without_a_cluster(
    tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    table, text = tmp_path / "a.csv", tmp_path / "a.txt"
    table.write_text("id,text\n1,She go.\n")
    text.write_text("It rains.\n")
    options = FileOptions(in_place=True)

    def code(*paths: Path) -> int:
        correct = partial(files.correct_on_ray, lambda: FunctionCorrector(str))
        return run_on_ray(list(map(str, paths)), options, RunOptions(), ReportOptions(writes=True), correct)

    assert code(table) == 2 and "name the column that holds the text (--column)" in capsys.readouterr().err
    assert code(table, text) == 3
    data = json.loads(json.dumps(files.report_to_json(FileReport("a", Summary(), FormatOptionError("x")))))
    assert type(files.report_from_json(data).error) is FormatOptionError
    data = files.report_to_json(FileReport("a", Summary(), OSError(2, "no file")))
    assert type(files.report_from_json(data).error) is ValueError
