"""Columns of texts, corrected or answered batch by batch: for Ray Data's `map_batches`, Spark's `mapInPandas`, a loop.

Nothing here imports Ray.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from copyspec import Engine
    from copyspec.pipelines import Correction, GECPipeline

__all__ = ["AnswerColumn", "CorrectColumn"]

logger = logging.getLogger(__name__)

Columns = Mapping[str, Sequence[Any]]

ERROR = "copyspec_error"
"""The column with the reason why a row has no complete result; None if it has one."""


class CorrectColumn:
    """Corrects the grammar of a column with `copyspec.pipelines.GECPipeline` and its guards."""

    def __init__(
        self, column: str = "text", to: str = "corrected", *, model: Any = None, dtype: str = "auto", **options: Any
    ) -> None:
        """`options`: those of `GECPipeline`. The model is loaded with the first batch, so the object can be pickled for
        actors."""
        self._column, self._to = column, to
        self._model, self._dtype, self._options = model, dtype, options
        self._pipeline: GECPipeline | None = None

    def __call__(self, batch: Columns) -> dict[str, list[Any]]:
        """The columns of `batch` as lists, plus the corrected text and ERROR."""
        columns = _lists(batch)
        if (missing := _missing(columns, self._column)) is not None:
            return _failed(columns, self._to, missing)
        texts = columns[self._column]
        results: list[Any] = [None] * len(texts)
        errors: list[str | None] = [None] * len(texts)
        readable = [i for i, text in enumerate(texts) if isinstance(text, str)]
        for i in set(range(len(texts))) - set(readable):
            errors[i] = f"{self._column} is not text: {type(texts[i]).__name__}"
        for i, correction in zip(readable, self._corrected([texts[i] for i in readable]), strict=True):
            if isinstance(correction, str):
                errors[i] = correction
                continue
            results[i] = correction.text
            if not correction.is_complete:
                errors[i] = next(
                    refusal.detail for refusal in correction.refused if refusal.reason in ("length", "cut")
                )
        return {**columns, self._to: results, ERROR: errors}

    def _corrected(self, texts: list[str]) -> list[Correction | str]:
        """A correction or an error message for each text."""
        pipeline = self._loaded()
        try:
            return list(pipeline(texts))
        except Exception:  # an error may come from one text alone: retry one by one
            return [_one(pipeline, text) for text in texts]

    def _loaded(self) -> GECPipeline:
        if self._pipeline is None:
            from copyspec.pipelines import GECPipeline

            self._pipeline = GECPipeline(_engine(self._model, self._dtype), **self._options)
        return self._pipeline

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_model": _pinned(self._model), "_pipeline": None}


class AnswerColumn:
    """Answers a column of questions from a column of passages with `copyspec.pipelines.answer`."""

    def __init__(
        self,
        question: str = "question",
        passages: str = "passages",
        to: str = "answer",
        *,
        model: Any = None,
        dtype: str = "auto",
    ) -> None:
        """`passages`: the column that holds a text or a list of texts per row."""
        self._question, self._passages, self._to = question, passages, to
        self._model, self._dtype = model, dtype

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_model": _pinned(self._model)}

    def __call__(self, batch: Columns) -> dict[str, list[Any]]:
        """The columns of `batch` as lists, plus the answer and ERROR."""
        from copyspec.pipelines import answer

        columns = _lists(batch)
        if (missing := _missing(columns, self._question, self._passages)) is not None:
            return _failed(columns, self._to, missing)
        engine = _engine(self._model, self._dtype)
        results: list[str | None] = []
        errors: list[str | None] = []
        for question, cell in zip(columns[self._question], columns[self._passages], strict=True):
            passages = [cell] if isinstance(cell, str) else cell
            try:
                results.append(answer(question, list(passages), model=engine).text)
                errors.append(None)
            except Exception as error:
                results.append(None)
                errors.append(_error_text(error))
        return {**columns, self._to: results, ERROR: errors}


def _engine(model: Any, dtype: str) -> Engine:
    """The engine for `model`; None is the one that `GECPipeline` and `answer` take, too."""
    import copyspec
    from copyspec.api import load_corrector

    if isinstance(model, copyspec.Engine):
        return model
    return load_corrector(model) if dtype == "auto" else load_corrector(model, dtype=dtype)


def _pinned(model: Any) -> Any:
    """`model`; instead of None, the name of the model that `_engine` loads here, so that every actor loads that one."""
    if model is not None:
        return model
    from copyspec.api import default_name

    if (name := default_name(corrects=True)) is None:
        raise ValueError("the model set by copyspec.configure does not reach Ray's actors: give model=...")
    return name


def _one(pipeline: GECPipeline, text: str) -> Correction | str:
    try:
        return pipeline(text)
    except Exception as error:
        logger.warning("a row was not corrected", exc_info=True)
        return _error_text(error)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _lists(batch: Columns) -> dict[str, list[Any]]:
    """Convert columns from numpy, Arrow or pandas to lists."""
    lists = {}
    for name in getattr(batch, "column_names", batch):  # an Arrow table iterates over its columns, not their names
        values = batch[name]
        tolist = getattr(values, "tolist", None) or getattr(values, "to_pylist", None)
        lists[str(name)] = list(tolist() if callable(tolist) else values)
    return lists


def _missing(columns: Mapping[str, list[Any]], *names: str) -> str | None:
    """The error of all rows of a batch without one of the columns; None if there are all. Rows of a JSONL file differ,
    so another batch may have them."""
    for name in names:
        if name not in columns:
            return f"there is no column {name!r}; the rows have {', '.join(map(repr, columns)) or 'none'}"
    return None


def _failed(columns: dict[str, list[Any]], to: str, error: str) -> dict[str, list[Any]]:
    count = max(map(len, columns.values()), default=0)
    return {**columns, to: [None] * count, ERROR: [error] * count}
