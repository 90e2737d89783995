"""Columns without a cluster: rows keep their places, and broken ones get their error."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from copyspec import Engine, LoadError, api
from copyspec.integrations.ray import ERROR, AnswerColumn, CorrectColumn
from copyspec.models.loading import ModelChoice, choose_default
from copyspec.pipelines import GECPipeline

TEXTS = ["She go to school every day.", "The childrens is here.", "It rains."]


def sent(task: CorrectColumn | AnswerColumn) -> Any:
    """The model that an actor loads for the task."""
    return pickle.loads(pickle.dumps(task))._model


def test_a_column_is_corrected_as_the_pipeline_does(engine: Engine) -> None:
    task = CorrectColumn(model=engine, max_new_tokens=8)
    batch = {"text": np.array([*TEXTS, None], dtype=object), "id": np.arange(4)}
    columns = task(batch)
    assert columns["corrected"] == [correction.text for correction in GECPipeline(engine, max_new_tokens=8)(TEXTS)] + [
        None
    ]
    assert columns["id"] == [0, 1, 2, 3]
    assert columns[ERROR][3] == "text is not text: NoneType"
    without = task({"id": [1, 2]})
    assert without["corrected"] == [None, None] and without["id"] == [1, 2]
    assert without[ERROR] == ["there is no column 'text'; the rows have 'id'"] * 2
    assert sent(CorrectColumn(model="default")) == "default"


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
    assert sent(column()) == "org/model"
    monkeypatch.delenv("COPYSPEC_MODEL")
    with pytest.raises(LoadError, match="nothing is loaded"):
        column()({"text": TEXTS, "question": ["Where?"], "passages": ["Here."]})
    assert loaded == [sent(column())] == [choose_default(corrects=True)]
    monkeypatch.setattr("copyspec.models.loading.is_ready", lambda alias: False)
    assert sent(column()) == "default"
    packed = pickle.dumps(column())
    monkeypatch.setenv("COPYSPEC_MODEL", "org/other")
    assert pickle.loads(packed)._model == "default", "actors load what the driver would"


@pytest.mark.parametrize("column", [CorrectColumn, AnswerColumn])
def test_a_column_that_leaves_the_process_does_not_lose_what_was_configured(
    column: type[CorrectColumn | AnswerColumn], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api._STATE, "configured", None)
    api.configure(model=engine)
    batch = {"text": TEXTS[:1], "question": ["Where?"], "passages": ["Here."]}
    column()(batch)  # in this process it is used
    with pytest.raises(ValueError, match=r"configure does not reach Ray's actors: give model="):
        pickle.dumps(column())
    assert sent(column(model="default")) == "default"


def test_one_bad_row_does_not_fail_its_batch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    corrections = GECPipeline._corrections

    def fails(self: GECPipeline, texts: list[str]) -> Any:
        if TEXTS[1] in texts:
            raise ValueError("it cannot be read")
        return corrections(self, texts)

    monkeypatch.setattr(GECPipeline, "_corrections", fails)
    columns = CorrectColumn(model=engine, max_new_tokens=8)({"text": TEXTS})
    assert [text is None for text in columns["corrected"]] == [False, True, False]
    assert columns[ERROR][1] == "ValueError: it cannot be read"


def test_a_column_is_answered(engine: Engine) -> None:
    batch = {"question": ["Where do storks nest?", None], "passages": [["Storks nest on chimneys."], "text"]}
    columns = AnswerColumn(model=engine)(batch)
    assert isinstance(columns["answer"][0], str) and columns[ERROR][0] is None
    assert columns["answer"][1] is None and columns[ERROR][1]
    without = AnswerColumn(model=engine)({"question": ["Where?"]})
    assert without["answer"] == [None]
    assert without[ERROR] == ["there is no column 'passages'; the rows have 'question'"]
