"""Collects the references of a model's call from LangChain's objects, and locates the answer's copies in them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, ToolMessage

from copyspec import Place, Span
from copyspec.checks import is_ids, plain_list
from copyspec.text.references import parse_references

logger = logging.getLogger(__name__)

MAX_FOUND_CHARACTERS = 2_000_000
"""Of documents that nobody handed over: half a million tokens, whose index takes a second. Handed-over ones are the
caller's choice."""


class Private:
    """References passed through LangChain; traces and cache keys show that there are some, but not their content."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value: object = value.value if isinstance(value, Private) else value

    def __repr__(self) -> str:
        return "Private()"


def explicit(value: object) -> list[object]:
    """Flatten references into a list. Raises TypeError and ValueError for invalid ones."""
    value = plain_list(value.value if isinstance(value, Private) else value)
    parse_references(value, 1)
    if value is None:
        return []
    if isinstance(value, (list, tuple)) and not is_ids(value):
        return list(value)
    return [value]


def artifacts(messages: Iterable[BaseMessage]) -> list[object]:
    """Return the documents that tools returned as artifacts, latest message first."""
    found: list[object] = []
    for message in reversed(list(messages)):
        if isinstance(message, ToolMessage) and message.artifact is not None:
            found.extend(_documents_in(message.artifact))
    return found


def gather(handed_over: Sequence[object], found: Sequence[object]) -> list[object]:
    """Return all references of a call, each text once: those passed, then those found, as far as there is room."""
    result = list(handed_over)
    texts = {text for each in handed_over if (text := text_of(each)) is not None}
    room = MAX_FOUND_CHARACTERS
    for index, document in enumerate(found):
        text = text_of(document)
        if text is None or text in texts:
            continue
        if len(text) > room:
            logger.info("the oldest %d of %d found documents are not copied from", len(found) - index, len(found))
            break
        room -= len(text)
        texts.add(text)
        result.append(document)
    return result


def text_of(reference: object) -> str | None:
    """Return the text of a reference; None if it is given as token ids."""
    if isinstance(reference, str):
        return reference
    text = reference.get("text") if isinstance(reference, Mapping) else getattr(reference, "page_content", None)
    return text if isinstance(text, str) else None


def id_of(reference: object) -> str | None:
    """Return the name of a reference: its id or its source."""
    metadata: object = reference if isinstance(reference, Mapping) else getattr(reference, "metadata", None)
    names: list[object] = [getattr(reference, "id", None)]
    if isinstance(metadata, Mapping):
        names += [metadata.get(key) for key in ("id", "source", "name")]
    return next((str(name) for name in names if name is not None), None)


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """A part of an answer, and the reference that it was copied from."""

    start: int  # characters of the answer
    end: int
    reference: object | None  # as it was given; None for copies from the prompt or the answer itself
    place: Place

    def to_dict(self) -> dict[str, object]:
        """Return its position without any text, for traces."""
        return {
            "start": self.start,
            "end": self.end,
            "kind": self.place.kind,
            "source": self.place.source,
            "document_id": None if self.reference is None else id_of(self.reference),
            "document_start": self.place.start_char,
            "document_end": self.place.end_char,
        }


def copied_parts(spans: Iterable[Span], references: Sequence[object]) -> list[CopiedPart]:
    """Return the spans of an answer, in order. Copies of a document that is also in the prompt name the document."""
    return [_part(span, references) for span in spans if span.end_char > span.start_char]


def _part(span: Span, references: Sequence[object]) -> CopiedPart:
    place = next((place for place in (span.place, *span.ties) if place.kind == "reference"), span.place)
    known = place.kind == "reference" and place.index is not None and place.index < len(references)
    reference = references[place.index] if known and place.index is not None else None
    return CopiedPart(span.start_char, span.end_char, reference, place)


def _documents_in(artifact: object) -> Iterator[object]:
    if text_of(artifact) is not None and not isinstance(artifact, Mapping):
        yield artifact
    elif isinstance(artifact, Mapping):
        for value in artifact.values():
            yield from _documents_in(value)
    elif isinstance(artifact, (list, tuple)):
        for value in artifact:
            yield from _documents_in(value)
