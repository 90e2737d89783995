"""Collects the references of a model's call from LangChain's objects, and locates the answer's copies in them."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from langchain_core.documents import Document

from copyspec import Place, Span
from copyspec.common.checks import is_ids, plain_value
from copyspec.engine.asking.inputs import parse_references

logger = logging.getLogger(__name__)

MAX_FOUND_CHARACTERS = 2_000_000
"""Limit for documents that were not passed explicitly: half a million tokens, which take a second to index. Explicit
ones are the caller's choice."""

MIN_CHARACTERS = 12
"""Shorter copies are common phrases, not quotes."""


class Dropped(Document):
    """A document that a chain has filtered out: it is drafted from, and never named."""

    @classmethod
    def of(cls, document: object) -> Dropped:
        if isinstance(document, Document):
            return cls(page_content=document.page_content, id=document.id, metadata=document.metadata)
        return cls(page_content=text_of(document) or "")


class Private:
    """References passed through LangChain; traces and cache keys show that there are some, but not their content."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value: object = value.value if isinstance(value, Private) else value

    def __repr__(self) -> str:
        return "Private()"


def explicit(value: object) -> list[object]:
    """Flatten references into a list. Raises TypeError and ValueError for invalid ones."""
    value = plain_value(value.value if isinstance(value, Private) else value)
    parse_references(value, 1)
    if value is None:
        return []
    if isinstance(value, (list, tuple)) and not is_ids(value):
        return list(value)
    return [value]


def gather(handed_over: Sequence[object], documents: Sequence[object]) -> list[object]:
    """Return all references of a call: `handed_over` as it is, then those of `documents`, the newest first, whose text
    is not there yet, up to MAX_FOUND_CHARACTERS. Of documents with equal texts, the first is taken."""
    result = list(handed_over)
    texts = {text for document in handed_over if (text := text_of(document)) is not None}
    room = MAX_FOUND_CHARACTERS
    for index, document in enumerate(documents):
        text = text_of(document)
        if text is None or text in texts or not _is_encodable(text):
            continue
        if len(text) > room:
            logger.info(
                "the oldest %d of %d found documents are not copied from", len(documents) - index, len(documents)
            )
            break
        room -= len(text)
        texts.add(text)
        result.append(document)
    return result


def _is_encodable(text: str) -> bool:
    """Whether a tokenizer can read a text. A document that nobody handed over must not make the
    call fail."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    place: Place  # of the tokens that were drafted
    reference: object | None = None  # as it was given; None for copies from the prompt or the answer itself
    document_start: int | None = None  # characters of the source's text; None for token ids and chats
    document_end: int | None = None

    def to_dict(self) -> dict[str, object]:
        """Return its position without any text, for traces."""
        return {
            "start": self.start,
            "end": self.end,
            "kind": self.place.kind,
            "source": self.place.source,
            "document_id": None if self.reference is None else id_of(self.reference),
            "document_start": self.document_start,
            "document_end": self.document_end,
        }


def copied_parts(
    answer: str, spans: Iterable[Span], references: Sequence[object], *, min_characters: int = MIN_CHARACTERS
) -> list[CopiedPart]:
    """Return the copied parts of an answer, in order.

    `references`: those that may be cited, which come first in the call; copies found only in others are left out. A
    copy from the prompt is credited to a citable document that holds the same text. Spans are runs of equal tokens,
    parts are equal text: a part begins with the first whole word that its document has in common with the answer. That
    word may be the model's own, or belong to a copy of fewer than `min_characters` characters from elsewhere, which is
    then not listed.
    """
    parts: list[CopiedPart] = []
    for span in spans:
        if span.end_char <= span.start_char:
            continue
        places = [place for place in (span.place, *span.ties) if place.index is None or place.index < len(references)]
        place = next((place for place in places if place.kind == "reference"), None)
        new: list[CopiedPart] = []
        if place is None and (span.place not in places or span.place.kind == "prompt"):
            new = list(_shared(span, answer, references, min_characters))  # the document may go on beyond the span
        if not new and (place is not None or span.place in places):
            new = [_part(span, place or places[0], answer, references)]
        for part in new:
            document = text_of(part.reference)
            if document is not None and part.document_start is not None:
                back = _words_before(answer, part.start, document, part.document_start, parts, min_characters)
                part = replace(part, start=part.start - back, document_start=part.document_start - back)
            while parts and parts[-1].start >= part.start:
                parts.pop()
            parts.append(part)
    return parts


def _part(span: Span, place: Place, answer: str, references: Sequence[object]) -> CopiedPart:
    if place.kind != "reference" or place.index is None:
        return CopiedPart(span.start_char, span.end_char, place, None, place.start_char, place.end_char)
    reference = references[place.index]
    copied = answer[span.start_char : span.end_char]
    quote = copied.strip()  # the first token may include the space before its word
    start = span.start_char + copied.index(quote)
    document = text_of(reference)
    if document is None or place.start_char is None:
        return CopiedPart(start, start + len(quote), place, reference)
    at = document.find(quote, max(0, place.start_char - 1))
    offsets = (at, at + len(quote)) if at >= 0 else (None, None)
    return CopiedPart(start, start + len(quote), place, reference, *offsets)


def _shared(span: Span, answer: str, references: Sequence[object], min_characters: int) -> Iterator[CopiedPart]:
    """The parts of a copy, from the prompt or from a document that may not be cited, that occur in one that may: from
    left to right, at each place the longest."""
    start = span.start_char
    while start + min_characters <= span.end_char:
        longest: CopiedPart | None = None
        for index, reference in enumerate(references if _begins(answer, start) else ()):
            document = text_of(reference) or ""
            at = document.find(answer[start : start + min_characters])
            length = _length(answer[start : span.end_char], document, at) if at >= 0 else 0
            if length >= min_characters and (longest is None or length > longest.end - longest.start):
                place = Place(id_of(reference) or f"references[{index}]", "reference", index, 0, 0, at, at + length)
                longest = CopiedPart(start, start + length, place, reference, at, at + length)
        if longest is not None:
            yield longest
        start = start + 1 if longest is None else longest.end


def _length(quote: str, document: str, at: int) -> int:
    """Number of characters that a quote shares with a document from `at` on, in whole words."""
    length = 0
    while length < min(len(quote), len(document) - at) and quote[length] == document[at + length]:
        length += 1
    while 0 < length < len(quote) and not _begins(quote, length):
        length -= 1
    return len(quote[:length].rstrip())


def _words_before(
    answer: str, start: int, document: str, document_start: int, parts: Sequence[CopiedPart], min_characters: int
) -> int:
    """How far two places of equal text are equal to the left, too, in characters of whole words. These may cover
    shorter parts, but no part of at least `min_characters` characters."""
    floor = next((part.end for part in reversed(parts) if part.end - part.start >= min_characters), 0)
    back = whole = 0
    while (
        start - back > floor
        and document_start > back
        and answer[start - back - 1] == document[document_start - back - 1]
    ):
        back += 1
        at = start - back
        if answer[at].isspace() or not (_begins(answer, at) and _begins(document, document_start - back)):
            continue
        if not any(part.start < at < part.end for part in parts):
            whole = back
    return whole


def _begins(text: str, at: int) -> bool:
    """Whether the place is not inside a word."""
    return at == 0 or not (_is_of_word(text[at - 1]) and _is_of_word(text[at]))


def _is_of_word(character: str) -> bool:
    """Whether it is a letter, a number or a mark, such as the vowel signs of Hindi, but not those of emoji."""
    return unicodedata.category(character)[0] in "LNM" and character not in "\ufe0e\ufe0f\u20e3"


def documents_in(value: object) -> Iterator[object]:
    """Yield the documents inside lists and dicts."""
    waiting, seen = [value], set[int]()  # it may hold itself
    while waiting:
        value = waiting.pop()
        if not isinstance(value, (str, Mapping)) and text_of(value) is not None:
            yield value
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += reversed(list(value.values() if isinstance(value, Mapping) else value))
