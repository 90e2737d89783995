"""Passes documents that a run's retrievers found on to the models of the same run, without any wiring.

LangChain notifies callback handlers when a retriever ends. One handler, added to every callback manager once the first
model exists, records the documents for all runs around the retriever. A model takes the documents of the nearest run
around it that has any. The record of a run is deleted when it ends. What later steps of the chain do with these
documents is recorded, too (`steps.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tracers.context import register_configure_hook

from copyspec.common.forks import fork_safe

from .prompted import Around, key_of
from .steps import RunDocuments, documents_of, said_in, without_dropped

_Piece = TypeVar("_Piece")


MAX_RUNS = 10_000
"""Maximum number of runs recorded at once. Only a run whose end is never reported stays longer than needed."""


class AbandonedError(GeneratorExit):
    """The reader of a stream has left. Like its base class GeneratorExit, this is not an error of the program."""


@dataclass(slots=True, eq=False)
class _Run(RunDocuments):
    parent: UUID | None = None
    ended_in: int | None = None  # the thread that reported its end


# The run around the model called in this context, since langchain-core does not pass `_stream` its parent run.
_AROUND: ContextVar[UUID | None] = ContextVar("copyspec_around", default=None)


class ReferenceCapture(BaseCallbackHandler):
    """Records the documents that retrievers find, by run.

    `run_inline` is not set: beside a handler with it, langchain-core 1.8 under asyncio does not tell other handlers
    that a language model has started. Events still arrive before their run continues.
    """

    ignore_llm = True
    ignore_chat_model = True
    ignore_custom_event = True

    def __init__(self) -> None:
        self._runs: OrderedDict[UUID, _Run] = OrderedDict()
        self._lock = fork_safe(threading.Lock())

    def __len__(self) -> int:
        """Number of runs recorded at present."""
        return len(self._runs)

    def __bool__(self) -> bool:
        return True

    def around(self, run: UUID | None) -> Around:
        """The documents of the nearest run that has any, `run` or one around it, by event, the latest first. The last
        event are those that the chain has dropped, and those of runs that go on: these are siblings of the model's, as
        in a nested batch, whose calls name the run around all of them."""
        with self._lock:
            outwards = list(self._outwards(run))
            noted = next((noted for noted in outwards if noted.events), None)
            if noted is None:
                return Around()
            dropped, written = noted.dropped - noted.written, noted.written.copy()
            events = [(source in self._runs, event) for source, event in reversed(noted.events)]
            # The inputs of a stream are known at its end.
            inputs = [outward.inputs for outward in outwards]
        return Around(without_dropped(events, dropped), said_in(inputs), written)

    def watched(self, run: UUID | None, pieces: Iterator[_Piece]) -> Iterator[_Piece]:
        """Yield `pieces` of a model that `run` started, as long as somebody reads them.

        Closing the stream of a chain closes only its last step. langchain-core ends the chain's run, and then reads the
        model's remaining output for the trace, which takes minutes with a local model. To stop this, AbandonedError is
        raised when a run around the model has ended in the thread that asks for more.
        """
        with self._lock:
            runs = list(self._outwards(run))
        for piece in pieces:
            yield piece
            if any(noted.ended_in == threading.get_ident() for noted in runs):
                raise AbandonedError("the run around this stream has ended: read the stream to its end inside that run")

    def on_chain_start(
        self, serialized: object, inputs: object, *, run_id: UUID, parent_run_id: UUID | None = None, **_: object
    ) -> None:
        self._start(run_id, parent_run_id, inputs)

    def on_tool_start(
        self, serialized: object, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None, **_: object
    ) -> None:
        self._start(run_id, parent_run_id, input_str)

    def on_chain_end(
        self, outputs: object, *, run_id: UUID, parent_run_id: UUID | None = None, inputs: object = None, **_: object
    ) -> None:
        try:
            self._pass_on(run_id, parent_run_id, inputs, outputs)  # a stream's inputs are known at its end
        finally:
            self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: object) -> None:
        self._end(run_id)

    def on_tool_end(self, output: object, *, run_id: UUID, parent_run_id: UUID | None = None, **_: object) -> None:
        artifact = getattr(output, "artifact", None)
        try:
            self._pass_on(run_id, parent_run_id, None, output if artifact is None else artifact, output)
        finally:
            self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: object) -> None:
        self._end(run_id)

    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, parent_run_id: UUID | None = None, **_: object
    ) -> None:
        if documents:
            with self._lock:
                for source, outer in self._around(run_id, parent_run_id):
                    outer.events.append((source, list(documents)))

    def _outwards(self, run: UUID | None) -> Iterator[_Run]:
        """Yield a run and its parents, as far as they are recorded."""
        while run is not None and (noted := self._runs.get(run)) is not None:
            yield noted
            run = noted.parent

    def _around(self, run: UUID, parent: UUID | None) -> Iterator[tuple[UUID, _Run]]:
        """Yield the runs around `run` from the inside out, each with the one before it, at first `run` itself."""
        while parent is not None and (outer := self._runs.get(parent)) is not None:
            yield run, outer
            run, parent = parent, outer.parent

    def _pass_on(
        self, run: UUID, parent: UUID | None, inputs: object, outputs: object, shown: object | None = None
    ) -> None:
        """Record what a step did with documents, as `RunDocuments.pass_on`."""
        with self._lock:
            step = self._runs.get(run, RunDocuments())
            step.pass_on(self._around(run, parent), inputs, outputs, shown)

    def _start(self, run_id: UUID, parent: UUID | None, inputs: object = None) -> None:
        with self._lock:
            self._runs[run_id] = _Run(inputs, parent=parent)
            keys = {key_of(document) for document in documents_of(inputs)}
            for outer in self._outwards(parent) if keys else ():
                outer.dropped -= keys  # another step has them still
            while len(self._runs) > MAX_RUNS:
                self._runs.popitem(last=False)

    def _end(self, run_id: UUID) -> None:
        with self._lock:
            noted = self._runs.pop(run_id, None)
            if noted is not None:
                noted.ended_in = threading.get_ident()


_CAPTURE = ReferenceCapture()
_HOOK: ContextVar[ReferenceCapture | None] = ContextVar("copyspec_capture", default=_CAPTURE)
_INSTALLING = fork_safe(threading.Lock())
_installed = False


def install() -> None:
    """Record the results of retrievers in all LangChain runs of this process from now on."""
    global _installed
    with _INSTALLING:
        if not _installed:
            register_configure_hook(_HOOK, inheritable=True, handle_class=ReferenceCapture)
            _installed = True


def stream_begins(config: RunnableConfig | None) -> None:
    """Record the parent run of a model that is about to stream with this config."""
    call_begins(ensure_config(config).get("callbacks"))


def call_begins(callbacks: object) -> None:
    """Record the parent run of a model that is called with these callbacks, as the call may stream internally."""
    _AROUND.set(run_around(callbacks))


def run_around(callbacks: object) -> UUID | None:
    """Return the parent run of a model with these callbacks, if they name it."""
    run = getattr(callbacks, "parent_run_id", None)
    return run if isinstance(run, UUID) else None


def captured_around(run: UUID | None) -> Around:
    """Return the documents for a model that the run started, by event, the latest first."""
    return _CAPTURE.around(run)


def captured() -> Around:
    """Return the documents for the model that is called in this context, by event, the latest first."""
    return _CAPTURE.around(_AROUND.get())


def while_read(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    """`pieces` of the model that is called in this context, as `ReferenceCapture.watched`."""
    return _CAPTURE.watched(_AROUND.get(), pieces)
