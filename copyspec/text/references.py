"""Parses references: texts to copy from that the model does not see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from copyspec.checks import check_ids, encodable, is_ids, plain_list, shown

ACCEPTED = (
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


# References of the `with copyspec.references(...)` blocks around the call, outermost first.
_AMBIENT: ContextVar[tuple[Reference, ...]] = ContextVar("copyspec_references", default=())


@contextmanager
def references(*texts: object) -> Iterator[None]:
    """Add references to every call inside the block, in this thread or asyncio task.

    `texts` are references as `generate` takes them for one prompt: strings, documents, or lists of those.
    """
    found: list[Reference] = []
    for text in texts:
        found.extend(_parse_list(text, "references"))
    token = _AMBIENT.set(_AMBIENT.get() + tuple(replace(reference, index=None) for reference in found))
    try:
        yield
    finally:
        _AMBIENT.reset(token)


def ambient_references() -> tuple[Reference, ...]:
    """The references of the `references(...)` blocks around the caller."""
    return _AMBIENT.get()


def parse_references(value: object, prompts: int) -> list[list[Reference]]:
    """References per prompt; a flat list is shared by all. Raises TypeError or ValueError with the remedy."""
    value = plain_list(value)
    if not _is_per_prompt(value):
        return [_parse_list(value, "references")] * prompts
    assert isinstance(value, (list, tuple))
    if len(value) != prompts:
        raise ValueError(
            f"references holds {len(value)} lists for {prompts} prompt{'s' if prompts != 1 else ''}; "
            "give one list per prompt, or one flat list for all of them"
        )
    for i, item in enumerate(value):
        if item is not None and not isinstance(plain_list(item), (list, tuple)):
            raise TypeError(
                f"references mixes lists with single references: references[{i}] is {shown(item)}; "
                "give one list per prompt, or one flat list for all of them"
            )
    return [_parse_list(item, f"references[{i}]") for i, item in enumerate(value)]


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
    value = plain_list(value)
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
    value = plain_list(value)
    if value is None:
        return [None] * prompts
    if isinstance(value, str) or (isinstance(value, (list, tuple)) and is_ids(value)):
        if prompts != 1:
            raise TypeError(f"edit_source is one text for {prompts} prompts; give a list with one text per prompt")
        return [_edit(value, "edit_source")]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"edit_source must be a str, or a list with one per prompt; got {shown(value)}")
    if len(value) != prompts:
        raise ValueError(
            f"edit_source holds {len(value)} text{'s' if len(value) != 1 else ''} for {prompts} "
            f"prompt{'s' if prompts != 1 else ''}; give one per prompt (None where nothing is edited)"
        )
    return [_edit(item, f"edit_source[{i}]") for i, item in enumerate(value)]


def _edit(value: object, where: str) -> Reference | None:
    value = plain_list(value)
    if value is None:
        return None
    if isinstance(value, str):
        return Reference("edit_source", None, encodable(value, where))
    if isinstance(value, (list, tuple)) and is_ids(value):
        return Reference("edit_source", None, ids=check_ids(value, where))
    raise TypeError(f"{where} must be a str; got {shown(value)}")


def _is_per_prompt(value: object) -> bool:
    """Whether `value` is a list of lists that are not token ids: one list per prompt."""
    if not isinstance(value, (list, tuple)) or is_ids(value):
        return False
    inner = [plain_list(item) for item in value]
    return any(isinstance(item, (list, tuple)) and not is_ids(item) for item in inner)


def _parse_list(value: object, where: str) -> list[Reference]:
    """Parse the references of one prompt, numbered in the caller's order."""
    value = plain_list(value)
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or is_ids(value):
        return [_parse_one(value, where, 0)]
    return [_parse_one(item, f"{where}[{i}]", i) for i, item in enumerate(value)]


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


def _parse_one(value: object, where: str, index: int) -> Reference:
    value = plain_list(value)
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
    raise TypeError(f"{where} must be {ACCEPTED}; got {shown(value)}{hint}")
