"""Tells which documents of a run may be named: those that later steps of the chain have not dropped.

A step drops a document that it was given, or that was found in it, and that it neither passes on nor writes into its
text. Of documents with equal texts, the one that was passed on last is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from uuid import UUID

from langchain_core.documents import Document

from .documents import Dropped, documents_in
from .prompted import Key, is_written, key_of, texts_in


@dataclass(slots=True, eq=False)
class RunDocuments:
    """The documents of a run, and what its steps did with them."""

    inputs: object = None
    events: list[tuple[UUID, list[Document]]] = field(default_factory=list)
    """Documents found, or passed on by a step, and the run inside this one that they came from."""
    dropped: set[Key] = field(default_factory=set)  # documents that a step had, and its output has not
    written: set[Key] = field(default_factory=set)  # documents whose text a step's output has

    def pass_on(
        self,
        around: Iterable[tuple[UUID, RunDocuments]],
        inputs: object,
        outputs: object,
        shown: object | None = None,
    ) -> None:
        """Record in the runs around this one, each with the one before it, what this step did with the documents that
        it was given or that were found in it: those that it passes on, writes into its text, or drops.

        `inputs`: None if they were known at its start. `shown`: what holds the text of `outputs`, if that is something
        else."""
        inputs = self.inputs if inputs is None else inputs
        passed = documents_of(outputs)
        documents = documents_of(inputs) + [document for _, event in self.events for document in event]
        if not (documents or passed):
            return
        texts = texts_in(outputs if shown is None else shown)
        known = {key_of(document): document.page_content for document in (*documents, *passed)}
        before = texts_in(inputs)
        written = {key for key, text in known.items() if is_written(text, texts, before)}
        # Texts of what it has dropped itself are others', such as a rewritten question.
        written -= self.dropped - self.written
        going = {key_of(document) for document in passed} if shown is None else set()
        # A step whose output is a number or a truth value has only looked at them.
        has_chosen = passed or texts or _is_emptied(inputs, outputs)
        lost = known.keys() - going - written if has_chosen else set()
        for source, outer in around:
            texts_found = {document.page_content for _, event in outer.events for document in event}
            if event := [document for document in passed if document.page_content in texts_found]:
                outer.events.append((source, event))
            outer.written |= written
            outer.dropped = (outer.dropped | lost) - going


def without_dropped(events: Iterable[tuple[bool, Sequence[Document]]], dropped: Set[Key]) -> list[list[Document]]:
    """The documents by event, and those that may not be named as the last event: the dropped ones, and all of events
    that are marked."""
    shown, hidden = list[list[Document]](), list[Document]()
    for is_hidden, event in events:
        lost = [is_hidden or key_of(document) in dropped for document in event]
        shown.append([document for document, is_lost in zip(event, lost, strict=True) if not is_lost])
        hidden += [Dropped.of(document) for document, is_lost in zip(event, lost, strict=True) if is_lost]
    return [*shown, hidden]


def said_in(inputs: Sequence[object]) -> list[str] | None:
    """The texts that runs were given; None if those of one are not known yet."""
    return None if any(map(_is_unknown, inputs)) else texts_in(inputs)


def documents_of(value: object) -> list[Document]:
    return [document for document in documents_in(value) if isinstance(document, Document)]


def _is_unknown(inputs: object) -> bool:
    """Whether LangChain does not know a run's inputs yet."""
    if isinstance(inputs, dict) and len(inputs) == 1:
        inputs = inputs.get("input", 1)
    return inputs is None or (isinstance(inputs, str) and not inputs)


def _is_emptied(inputs: object, outputs: object) -> bool:
    """Whether a step gives an empty list in place of documents."""
    if isinstance(outputs, Mapping) and isinstance(inputs, Mapping):
        return any(_is_emptied(inputs.get(key), value) for key, value in outputs.items())
    return isinstance(outputs, (list, tuple)) and not outputs and any(documents_in(inputs))
