"""Finds the documents of a run that its prompt holds: only these may be named. A chain may have filtered out the rest,
because the reader may not see them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.prompt_values import PromptValue
from pydantic import BaseModel

from .documents import Dropped, documents_in, gather, id_of, text_of

Key = tuple[str, str]
"""What tells documents apart: text, and names and metadata."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is known of the documents of the run around a model's call."""

    events: Sequence[Sequence[object]] = ()  # as for `in_prompt`
    said: Sequence[str] | None = ()
    """Texts that the runs around the call were given, such as the reader's question; None: unknown."""
    written: Set[Key] = frozenset()  # documents whose text a step has written


def references_of(
    handed_over: Sequence[object], around: Around, prompt: str, shown: Sequence[Sequence[object]] = ()
) -> tuple[list[object], int]:
    """Return all references of a call, and how many of them may be named, which come first.

    The rest was found in the run, and is only drafted from. `shown`: documents of messages, the latest first.
    """
    events = [*shown, *around.events]
    named = in_prompt(events, prompt, handed_over)
    own = {key_of(document) for event in shown for document in event} | around.written
    # A reader may have typed the text of a document that was not shown.
    said = around.said
    named = [
        it for it in named if key_of(it) in own or (said is not None and is_written(text_of(it) or "", [prompt], said))
    ]
    documents = [document for event in events for document in event]
    return gather(handed_over, [*named, *documents]), len(gather(handed_over, named))


def artifacts(messages: Iterable[BaseMessage]) -> list[list[object]]:
    """Return the documents that tools returned as artifacts, by message, the latest first. What a message does not show
    of them was filtered out."""
    results = [message for message in messages if isinstance(message, ToolMessage) and message.artifact is not None]
    shown = [(documents_in(result.artifact), texts_in(result)) for result in reversed(results)]
    return [[it if is_written(text_of(it) or "", texts) else Dropped.of(it) for it in found] for found, texts in shown]


def in_prompt(events: Sequence[Sequence[object]], prompt: str, handed_over: Sequence[object] = ()) -> list[object]:
    """Return the documents whose whole text stands in `prompt`, each text once.

    `events`: documents as they were found or passed on by steps of the chain, the latest first. Of documents with equal
    texts, the latest step that had any decides; if it had several, as many must stand in the prompt, else none is
    named. A text inside a longer document does not count, nor does one inside `handed_over`, which are named anyway.
    White space may differ, and texts may be escaped as in `repr` or JSON.
    """
    prompt = _plain(prompt)
    candidates = _latest(events)
    own = {text for document in handed_over if (text := text_of(document)) is not None}
    named: set[str] = set()
    for text in sorted(own | candidates.keys(), key=len, reverse=True):
        count, prompt = _take(prompt, text)
        if len(candidates.get(text, ())) in range(1, count + 1):
            named.add(text)
    return [documents[0] for text, documents in candidates.items() if text in named]


def _latest(events: Sequence[Sequence[object]]) -> dict[str, list[object]]:
    """The different documents with each text, of the latest event that has any."""
    latest: dict[str, list[object]] = {}
    for event in events:
        texts: dict[str, dict[str, object]] = {}
        for document in event:
            text = text_of(document)
            if text is not None and text not in latest and not isinstance(document, Dropped):
                texts.setdefault(text, {}).setdefault(_identity(document), document)
        latest |= {text: list(documents.values()) for text, documents in texts.items()}
    return latest


def key_of(document: object) -> Key:
    return text_of(document) or "", _identity(document)


def texts_in(value: object) -> list[str]:
    """The texts inside lists, dicts, messages and prompts, without those of documents."""
    texts, waiting, seen = list[str](), [value], set[int]()  # it may hold itself
    while waiting:
        value = waiting.pop()
        if isinstance(value, BaseMessage):
            value = value.content
        if isinstance(value, (str, PromptValue)):
            texts.append(value if isinstance(value, str) else value.to_string())
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, Mapping) else value
        elif (parts := _fields(value)) and text_of(value) is None and id(value) not in seen:
            seen.add(id(value))
            waiting += parts
    return texts


def _fields(value: object) -> list[object]:
    """The values of a dataclass or a pydantic model, as states of graphs are."""
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return [*vars(value).values()] if isinstance(value, BaseModel) else []


def is_written(text: str, texts: Sequence[str], before: Sequence[str] = ()) -> bool:
    """Whether one of `texts` holds a document's whole text, as `in_prompt` asks it of a prompt, and not as a part of
    one that was there `before`, such as a question."""
    known = [_plain(earlier) for earlier in before if _take(_plain(earlier), text)[0]]
    for plain in map(_plain, texts):
        for other in known:
            plain = plain.replace(other, "\0")
        if _take(plain, text)[0]:
            return True
    return False


def _identity(document: object) -> str:
    """What tells documents of equal text apart: their names and metadata, but not scores, which each search sets."""
    metadata: object = document if isinstance(document, Mapping) else getattr(document, "metadata", None)
    fields = metadata if isinstance(metadata, Mapping) else {}
    return repr((id_of(document), sorted((str(key), repr(it)) for key, it in fields.items() if type(it) is not float)))


def _plain(text: str) -> str:
    return " ".join(text.split())


def _take(prompt: str, text: str) -> tuple[int, str]:
    """How often a text stands in the prompt as whole words, and the prompt without it."""
    count = 0
    forms = (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for form in dict.fromkeys(map(_plain, forms)):
        pieces, begin, at = [], 0, prompt.find(form) if form else -1
        while at >= 0:
            end = at + len(form)
            if _is_bounded(prompt, at) and _is_bounded(prompt, end):
                pieces.append(prompt[begin:at])
                begin, count = end, count + 1
            at = prompt.find(form, max(begin, at + 1))
        prompt = "\0".join([*pieces, prompt[begin:]])
    return count, prompt


def _is_bounded(text: str, at: int) -> bool:
    """Whether the place is not inside a word."""
    return at in (0, len(text)) or not (text[at - 1].isalnum() and text[at].isalnum())
