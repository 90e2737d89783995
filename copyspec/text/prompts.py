"""Parses what callers give: prompts (text, chats, token ids, lists of those), and texts to copy from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard

from copyspec.checks import brief, check_ids, encodable, is_ids, plain_value, shown
from copyspec.text.chat import Message, check_chat, map_texts
from copyspec.text.codec import Encoded

OnePrompt: TypeAlias = "str | Sequence[int] | Sequence[Message] | Mapping[str, object]"
"""Text, token ids, a chat, or a tokenizer's output for one text."""
ManyPrompts: TypeAlias = "list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]"

ACCEPTED = "a str, a chat ([{'role': 'user', 'content': ...}]), a list of token ids, or a list of those"
ACCEPTED_REFERENCES = (
    "a str, an object with .page_content, {'text': ...}, a LlamaIndex or Haystack document, a list of token ids, "
    "a list of those, or one such list per prompt"
)

_NAMES = ("source", "file_path", "file_name")  # metadata keys that may hold a document's name


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference, as text or as token ids."""

    name: str
    index: int | None
    """Index in the caller's `references`; None for predictions, edited texts and ambient references."""
    text: str | None = None
    ids: Sequence[int] | None = None
    kind: str = "reference"
    """The kind shown in spans. Kinds other than `reference` have no known relevance and get the prior of the prompt."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: exactly one of `text`, `chat` and `ids` is set. Also holds its edit source and references."""

    text: str | None = None
    chat: list[Message] | None = None
    ids: list[int] | None = None
    leaves_space: bool = False  # for ids: see `Encoded`
    edit: Reference | None = None
    references: Sequence[Reference] = ()


def parse_prompts(prompt: object) -> tuple[list[Prompt], bool]:
    """Parse prompts; the bool says whether a single one was given (which gets one result instead of a list).

    Raises TypeError or ValueError that names the value and the accepted forms.
    """
    if isinstance(prompt, str):
        return [_parse_one(prompt, "prompt")], True
    prompt = _unpadded(prompt, "prompt") if _is_encoding(prompt) else plain_value(prompt)
    if not isinstance(prompt, (list, tuple)):
        return [_parse_one(prompt, "prompt")], True
    if not prompt:
        raise ValueError(f"prompt is an empty list; give {ACCEPTED}")
    if is_ids(prompt) or any(isinstance(item, Mapping) and not _is_encoding(item) for item in prompt):
        return [_parse_one(prompt, "prompt")], True
    return [_parse_one(item, f"prompt[{i}]") for i, item in enumerate(prompt)], False


def _parse_one(prompt: object, where: str) -> Prompt:
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError(f"{where} is an empty string; the model needs at least one token to continue from")
        return Prompt(text=encodable(prompt, where))
    if isinstance(prompt, Encoded):
        return Prompt(ids=prompt.ids, leaves_space=prompt.leaves_space)
    if _is_encoding(prompt):
        rows = _unpadded(prompt, where)
        prompt = rows[0] if isinstance(rows, list) and len(rows) == 1 and isinstance(rows[0], (list, tuple)) else rows
    prompt = plain_value(prompt)
    if isinstance(prompt, Mapping):
        raise TypeError(f"{where} is a single chat message; a chat is a list of messages: [{brief(dict(prompt))}]")
    if isinstance(prompt, (list, tuple)):
        if not prompt:
            raise ValueError(f"{where} is an empty list; the model needs at least one token to continue from")
        if is_ids(prompt):
            return Prompt(ids=check_ids(prompt, where))
        if any(isinstance(item, Mapping) for item in prompt):
            chat = check_chat(prompt, where)
            map_texts(chat, lambda text, role: encodable(text, f"{where}, a message of {role!r},"))
            return Prompt(chat=chat)
    raise TypeError(f"{where} must be {ACCEPTED}; got {shown(prompt)}")


def _is_encoding(value: object) -> TypeGuard[Mapping[str, object]]:
    """Whether `value` is a tokenizer's output: a BatchEncoding, or a dict of its tensors."""
    return isinstance(value, Mapping) and "input_ids" in value


def _unpadded(encoding: Mapping[str, object], where: str) -> object:
    """The token ids of an encoding (one list, or one per row) without padding on either side."""
    ids, mask = plain_value(encoding["input_ids"]), plain_value(encoding.get("attention_mask"))
    if mask is None or not isinstance(ids, (list, tuple)):
        return ids
    if is_ids(ids):
        return _seen(ids, mask, where)
    if not isinstance(mask, (list, tuple)) or len(mask) != len(ids):
        raise ValueError(f"{where}: input_ids has {len(ids)} rows, and attention_mask has another number of them")
    return [_seen(plain_value(row), plain_value(seen), where) for row, seen in zip(ids, mask, strict=True)]


def _seen(ids: object, mask: object, where: str) -> list[object]:
    if not isinstance(ids, (list, tuple)) or not isinstance(mask, (list, tuple)) or len(ids) != len(mask):
        raise ValueError(f"{where}: input_ids and attention_mask differ in shape")
    seen = [i for i, each in enumerate(mask) if each]
    if seen and seen[-1] - seen[0] + 1 != len(seen):
        raise ValueError(f"{where}: attention_mask masks tokens between others; it may mask padding on either side")
    return [ids[i] for i in seen]


# References of the `with copyspec.references(...)` blocks around the call, outermost first.
AMBIENT: ContextVar[tuple[Reference, ...]] = ContextVar("copyspec_references", default=())


@contextmanager
def references(*texts: object) -> Iterator[None]:
    """Add references to every call inside the block, in this thread or asyncio task.

    `texts` are references as `generate` takes them for one prompt: strings, documents, or lists of those.
    """
    found: list[Reference] = []
    for text in texts:
        found.extend(_parse_references(text, "references"))
    token = AMBIENT.set(AMBIENT.get() + tuple(replace(reference, index=None) for reference in found))
    try:
        yield
    finally:
        AMBIENT.reset(token)


def parse_references(value: object, prompts: int) -> list[list[Reference]]:
    """References per prompt; a flat list is shared by all. Raises TypeError or ValueError with the remedy."""
    value = plain_value(value)
    if not _is_per_prompt(value):
        return [_parse_references(value, "references")] * prompts
    assert isinstance(value, (list, tuple))
    if len(value) != prompts:
        raise ValueError(
            f"references holds {len(value)} lists for {prompts} prompt{'s' if prompts != 1 else ''}; "
            "give one list per prompt, or one flat list for all of them"
        )
    for i, item in enumerate(value):
        if item is not None and not isinstance(plain_value(item), (list, tuple)):
            raise TypeError(
                f"references mixes lists with single references: references[{i}] is {shown(item)}; "
                "give one list per prompt, or one flat list for all of them"
            )
    return [_parse_references(item, f"references[{i}]") for i, item in enumerate(value)]


def parse_prediction(value: object) -> list[Reference]:
    """Parse OpenAI's `prediction` into one reference."""
    if value is None:
        return []
    if isinstance(value, str):
        return [Reference("prediction", None, encodable(value, "prediction"))]
    content = value.get("content") if isinstance(value, Mapping) and value.get("type") == "content" else None
    if isinstance(content, str):
        return [Reference("prediction", None, encodable(content, "prediction"))]
    if isinstance(content, (list, tuple)):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if parts and all(isinstance(part, str) for part in parts):
            return [Reference("prediction", None, encodable("".join(map(str, parts)), "prediction"))]
    raise TypeError(f"prediction must be {{'type': 'content', 'content': 'the expected text'}}; got {shown(value)}")


def parse_earlier(value: object) -> list[Reference]:
    """Parse `Input.earlier`: lists of token ids."""
    value = plain_value(value)
    for i, item in enumerate(value if isinstance(value, (list, tuple)) else [value]):
        # Every input may bring many short lists, so they are checked in one pass; `check_ids` is used only for its
        # message.
        if not isinstance(item, (list, tuple)) or not all(isinstance(token, int) for token in item):
            raise TypeError(f"earlier must hold lists of token ids; got {shown(item)}")
        if min(item, default=0) < 0:
            check_ids(item, f"earlier[{i}]")
    assert isinstance(value, (list, tuple))
    return [Reference("earlier", None, ids=item, kind="earlier") for item in value]


def parse_edits(value: object, prompts: int) -> list[Reference | None]:
    """The edited text of each prompt, from a str for one prompt or a list with one str (or None) per prompt."""
    value = plain_value(value)
    if value is None:
        return [None] * prompts
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and is_ids(value)):
        if prompts != 1:
            raise TypeError(f"edit_source is one text for {prompts} prompts; give a list with one text per prompt")
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"edit_source must be a str, or a list with one per prompt; got {shown(value)}")
    if len(value) != prompts:
        raise ValueError(
            f"edit_source holds {len(value)} text{'s' if len(value) != 1 else ''} for {prompts} "
            f"prompt{'s' if prompts != 1 else ''}; give one per prompt (None where nothing is edited)"
        )
    edits: list[Reference | None] = []
    for i, item in enumerate(map(plain_value, value)):
        if item is None:
            edits.append(None)
        elif isinstance(item, str):
            edits.append(Reference("edit_source", None, encodable(item, f"edit_source[{i}]")))
        elif isinstance(item, (list, tuple)) and is_ids(item):
            edits.append(Reference("edit_source", None, ids=check_ids(item, f"edit_source[{i}]")))
        else:
            raise TypeError(f"edit_source[{i}] must be a str; got {shown(item)}")
    return edits


def _is_per_prompt(value: object) -> bool:
    """Whether `value` is a list of lists that are not token ids: one list per prompt."""
    if not isinstance(value, (list, tuple)) or is_ids(value):
        return False
    inner = [plain_value(item) for item in value]
    return any(isinstance(item, (list, tuple)) and not is_ids(item) for item in inner)


def _parse_references(value: object, where: str) -> list[Reference]:
    """Parse the references of one prompt, numbered in the caller's order."""
    value = plain_value(value)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or is_ids(value):
        return [_parse_reference(value, where, 0)]
    return [_parse_reference(item, f"{where}[{i}]", i) for i, item in enumerate(value)]


def text_and_metadata(value: object) -> tuple[str, Mapping[str, object]] | None:
    """Text and metadata of a LangChain document (`page_content`, `metadata`), LlamaIndex node (`get_content()`,
    `metadata`) or Haystack document (`content`, `meta`); None for anything else."""
    content = getattr(value, "page_content", None)
    metadata = getattr(value, "metadata", None)
    if content is None and callable(get := getattr(value, "get_content", None)) and isinstance(metadata, Mapping):
        content = get()
    elif content is None and isinstance(meta := getattr(value, "meta", None), Mapping):
        content, metadata = getattr(value, "content", None), meta
    if not isinstance(content, str):
        return None
    return content, metadata if isinstance(metadata, Mapping) else {}


def _parse_reference(value: object, where: str, index: int) -> Reference:
    value = plain_value(value)
    name = f"references[{index}]"
    if isinstance(value, str):
        return Reference(name, index, encodable(value, where))
    if isinstance(value, (list, tuple)) and is_ids(value):
        return Reference(name, index, ids=check_ids(value, where))
    if isinstance(value, Mapping):
        if isinstance(value.get("text"), str):
            given = next((value[key] for key in ("name", "source", "id") if isinstance(value.get(key), str)), name)
            return Reference(str(given), index, encodable(value["text"], where))
        raise TypeError(f"{where} is a dict without a text; write {{'text': 'the text'}}, got {shown(dict(value))}")
    document = text_and_metadata(value)
    if document is not None:
        content, metadata = document
        source = next((metadata[key] for key in _NAMES if isinstance(metadata.get(key), str)), name)
        return Reference(str(source), index, encodable(content, where))
    hint = "; read the file first, no path is opened here" if hasattr(value, "__fspath__") else ""
    raise TypeError(f"{where} must be {ACCEPTED_REFERENCES}; got {shown(value)}{hint}")
