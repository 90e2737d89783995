"""Passes a request's texts to copy from through vLLM, in `SamplingParams.extra_args`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from copyspec.common.checks import check_whole, shown
from copyspec.engine.asking.inputs import parse_edits, parse_prediction, parse_references
from copyspec.engine.results.spans import Reference
from copyspec.server.settings import MAX_CHARACTERS, check_references, count_characters
from copyspec.text.codec import encodable

EDIT_SOURCE = "copyspec_edit_source"
REFERENCES = "copyspec_references"
DRAFTS = "copyspec_drafts"  # 0: none for this request
"""Keys in `SamplingParams.extra_args`, and in `vllm_xargs` of HTTP bodies."""

IDS_PER_CHARACTER = 4  # at most: with byte fallback, one for each byte of a character

SEPARATOR = -1
"""Separates references in one flat list of token ids, because `vllm_xargs` takes no nested lists. No copy crosses
it."""

MAX_SPECULATIVE_TOKENS = 128  # vLLM's own limit
MAX_ID = 2**31 - 1  # vLLM's arrays of token ids have 32 bits, and its messages to the engine 64

Text = str | Sequence[int]


class HasExtraArgs(Protocol):
    """The part of `vllm.SamplingParams` that is needed here."""

    extra_args: dict[str, Any] | None


Params = TypeVar("Params", bound=HasExtraArgs)


def config(num_speculative_tokens: int = 16) -> dict[str, object]:
    """The `speculative_config` of an engine that drafts with copyspec, with a maximum of draft tokens per request and
    step."""
    check_whole("num_speculative_tokens", num_speculative_tokens, low=1, high=MAX_SPECULATIVE_TOKENS)
    return {"model": "copyspec.integrations.vllm.Proposer", "num_speculative_tokens": num_speculative_tokens}


def copying(
    params: Params, *, edit_source: object = None, references: object = None, prediction: object = None
) -> Params:
    """A copy of `params` for a request that may copy from these texts, which the model does not see.

    The texts are those of `copyspec.generate` for one prompt: `edit_source`, the text being edited; `references`, a
    text, a document, token ids, or a list of those; `prediction`, the expected output as a str or in OpenAI's format.
    Raises TypeError or ValueError for anything else, and for more than a million characters.
    """
    extra_args = getattr(params, "extra_args", None)
    if not hasattr(params, "extra_args") or not (extra_args is None or isinstance(extra_args, dict)):
        raise TypeError(f"params must be vllm.SamplingParams; got {shown(params)}")
    extra = texts(edit_source, references, prediction)
    check_size(extra, extra.get(REFERENCES))
    copied = copy.copy(params)  # vLLM makes a deep copy when it takes the request
    copied.extra_args = {**(extra_args or {}), **extra}
    return copied


def check_size(fields: Mapping[str, object], references: object) -> None:
    """Raise ValueError if `fields`, of which `references` are a part, is more than the engine would copy from."""
    check_references(references)
    if (count := count_characters(fields)) > MAX_CHARACTERS:
        raise ValueError(
            f"the texts to copy from have {count} characters, and at most {MAX_CHARACTERS} are taken: give those that "
            "the output is likely to repeat"
        )


def texts(edit_source: object = None, references: object = None, prediction: object = None) -> dict[str, Any]:
    """The texts as entries of `extra_args`. Without an edit source, the prediction takes its place."""
    expected = [_plain(reference) for reference in parse_prediction(prediction)]
    edits = [_plain(edit) for edit in parse_edits(edit_source, 1) if edit is not None] or expected[:1]
    others = [_plain(reference) for reference in parse_references(references, 1)[0]] + (
        expected if edits != expected else []
    )
    extra: dict[str, Any] = {EDIT_SOURCE: edits[0]} if edits else {}
    return extra | ({REFERENCES: others} if others else {})


def read_texts(extra_args: Mapping[str, Any] | None) -> tuple[Text | None, list[Text]]:
    """The edit source and the references of a request. Raises TypeError or ValueError for invalid values, since HTTP
    bodies may hold anything under these names. Of token ids only the first is looked at: `check_ids` checks them."""
    extra = extra_args or {}
    edit, references = extra.get(EDIT_SOURCE), extra.get(REFERENCES)
    if edit is not None and not _is_text(edit):
        raise TypeError(f"{EDIT_SOURCE} must be a str or token ids; got {shown(edit)}")
    if references is None or _is_text(references):
        references = [references] if references else []
    check_references(references)
    if not isinstance(references, (list, tuple)) or not all(map(_is_text, references)):
        raise TypeError(f"{REFERENCES} must be a str, token ids, or a list of those; got {shown(references)}")
    # The middleware has limited the characters of texts, of which each may have become several ids.
    if (size := sum(map(len, (edit or (), *references)))) > IDS_PER_CHARACTER * MAX_CHARACTERS:
        raise ValueError(
            f"{EDIT_SOURCE} and {REFERENCES} hold {size} characters and ids; at most "
            f"{IDS_PER_CHARACTER * MAX_CHARACTERS}"
        )
    for name, values in ((EDIT_SOURCE, [edit]), (REFERENCES, references)):
        for text in values:
            if isinstance(text, str):
                encodable(text, name)
    return edit or None, [reference for reference in references if reference]


def joined(references: Sequence[Sequence[int]]) -> list[int]:
    """Flatten references into one list of ids."""
    ids: list[int] = []
    for reference in references:
        ids += [SEPARATOR, *reference] if ids else reference
    return ids


def check_ids(ids: Sequence[int]) -> None:
    """Raise TypeError if one of `ids` is no int."""
    if set(map(type, ids)) - {int}:
        wrong = next(token for token in ids if type(token) is not int)
        raise TypeError(f"token ids to copy from must be integers; got {shown(wrong)}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, (list, tuple)) and bool(value) and type(value[0]) is int)


def _plain(reference: Reference) -> Any:
    if reference.text is not None:
        return reference.text
    ids = list(reference.ids or ())
    if max(ids, default=0) > MAX_ID:
        raise ValueError(f"{shown(max(ids))} in edit_source or references is not a token id: the largest is {MAX_ID}")
    return ids
