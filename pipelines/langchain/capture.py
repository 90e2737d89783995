"""Documents that a run's retrievers found, for the models of the same run: no wiring, and nothing is kept.

LangChain tells its callback handlers when retrievers end. One handler, which every callback manager is given from the
first model on, notes found documents with all runs around the retriever's; a model looks for the nearest run around
itself that has any. A run's notes are gone when the run ends.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tracers.context import register_configure_hook

MAX_RUNS = 10_000
"""Runs that are noted at once. Only a run whose end is never told stays beyond its time."""


@dataclass(slots=True)
class _Run:
    parent: UUID | None
    documents: list[Document] = field(default_factory=list)


# The run around the model that streams in this context: core does not tell `_stream` its run.
_AROUND: ContextVar[UUID | None] = ContextVar("copyspec_around", default=None)


class ReferenceCapture(BaseCallbackHandler):
    """Notes what retrievers find, run by run.

    It is not `run_inline`: beside such a handler core does not tell others that a language model starts under asyncio
    (langchain-core 1.8). It is told of every event before its run goes on all the same.
    """

    ignore_llm = True
    ignore_chat_model = True
    ignore_custom_event = True

    def __init__(self) -> None:
        self._runs: OrderedDict[UUID, _Run] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Runs that are noted at this moment."""
        return len(self._runs)

    def __bool__(self) -> bool:
        return True

    def around(self, run: UUID | None) -> list[Document]:
        """What was found in the nearest of `run` and the runs around it that has any documents, latest first."""
        with self._lock:
            while run is not None and (noted := self._runs.get(run)) is not None:
                if noted.documents:
                    return noted.documents[::-1]
                run = noted.parent
        return []

    def on_chain_start(
        self, serialized: object, inputs: object, *, run_id: UUID, parent_run_id: UUID | None = None, **_: object
    ) -> None:
        self._start(run_id, parent_run_id)

    def on_tool_start(
        self, serialized: object, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: object
    ) -> None:
        self._start(run_id, parent_run_id)

    def on_chain_end(self, outputs: object, *, run_id: UUID, **_: object) -> None:
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: object) -> None:
        self._end(run_id)

    def on_tool_end(self, output: object, *, run_id: UUID, **_: object) -> None:
        self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: object) -> None:
        self._end(run_id)

    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, parent_run_id: UUID | None = None, **_: object
    ) -> None:
        # The best document last: the latest is looked at first.
        found = list(documents)[::-1]
        run = parent_run_id
        with self._lock:
            while run is not None and (noted := self._runs.get(run)) is not None:
                noted.documents.extend(found)
                run = noted.parent

    def _start(self, run_id: UUID, parent: UUID | None) -> None:
        with self._lock:
            self._runs[run_id] = _Run(parent)
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)

    def _end(self, run_id: UUID) -> None:
        with self._lock:
            self._runs.pop(run_id, None)


_CAPTURE = ReferenceCapture()
_HOOK: ContextVar[ReferenceCapture | None] = ContextVar("copyspec_capture", default=_CAPTURE)
_INSTALLING = threading.Lock()
_installed = False


def install() -> None:
    """From now on every run of LangChain in this process tells what its retrievers find."""
    global _installed
    with _INSTALLING:
        if not _installed:
            register_configure_hook(_HOOK, inheritable=True, handle_class=ReferenceCapture)
            _installed = True


def stream_begins(config: RunnableConfig | None) -> None:
    """Notes the run around a model that is about to stream with this config."""
    _AROUND.set(getattr(ensure_config(config).get("callbacks"), "parent_run_id", None))


def captured_around(run: UUID | None) -> list[Document]:
    """Documents for a model that the run started."""
    return _CAPTURE.around(run)


def captured() -> list[Document]:
    """Documents for the model that streams in this context."""
    return _CAPTURE.around(_AROUND.get())
