"""Prompts given as a tokenizer's output: token ids with padding, which an attention mask hides or its token shows."""

from __future__ import annotations

from collections.abc import Mapping

from copyspec.checks import brief, is_ids, plain_value, shown

_TOKEN_TYPES = frozenset(("token_type_ids", "mm_token_type_ids"))  # 0 for a single text; see `Prompt.has_types`
_BOOKKEEPING = frozenset(
    {"special_tokens_mask", "offset_mapping", "length", "assistant_masks"}
    | {"overflow_to_sample_mapping", "overflowing_tokens", "num_truncated_tokens"}
)
"""What tokenizers say about an encoding, none of which a model reads."""


def unpadded(encoding: Mapping[str, object], where: str) -> object:
    """The token ids of an encoding (one list, or one per row) without padding on either side."""
    _check_text(encoding, where)
    ids, mask = plain_value(encoding["input_ids"]), plain_value(encoding.get("attention_mask"))
    if not isinstance(ids, (list, tuple)):
        raise TypeError(f"{where}: input_ids must be token ids; got {shown(ids)}")
    if mask is None:
        return ids
    if is_ids(ids):
        return _seen(ids, mask, where)
    if not isinstance(mask, (list, tuple)) or len(mask) != len(ids):
        raise ValueError(f"{where}: input_ids has {len(ids)} rows, and attention_mask has another number of them")
    return [_seen(plain_value(row), plain_value(seen), where) for row, seen in zip(ids, mask, strict=True)]


def without_padding(ids: list[int], pad: int, where: str) -> list[int]:
    """Token ids without the padding token `pad` on either side: `generate` hides it where there is no
    attention_mask."""
    kept = [i for i, token in enumerate(ids) if token != pad]
    if len(kept) == len(ids):
        return ids
    if not kept or kept[-1] + 1 - kept[0] != len(kept):
        place = "between others" if kept else "alone"
        raise ValueError(
            f"{where} holds the padding token {pad} {place}, and generate would hide it: give an attention_mask beside "
            "input_ids, or a list of the ids that the model shall read"
        )
    return ids[kept[0] : kept[-1] + 1]


def _check_text(encoding: Mapping[str, object], where: str) -> None:
    """Raise TypeError for an encoding with more than text for the model to read, such as an image."""
    for name, value in encoding.items():
        if name in ("input_ids", "attention_mask") or name in _BOOKKEEPING or value is None:
            continue
        if name in _TOKEN_TYPES and _is_zero(value):
            continue
        raise TypeError(
            f"{where} is an encoding with {name} ({shown(value)}), and copyspec gives a model text only: leave it out, "
            "and any image or audio that it came from"
        )


def _is_zero(value: object) -> bool:
    """Whether a list of numbers, or of such lists, holds nothing but 0."""
    found = plain_value(value)
    rows = found if isinstance(found, (list, tuple)) and not is_ids(found) else [found]
    return all(isinstance(row := plain_value(each), (list, tuple)) and not any(row) for each in rows)


def _seen(ids: object, mask: object, where: str) -> list[object]:
    if not isinstance(ids, (list, tuple)) or not isinstance(mask, (list, tuple)) or len(ids) != len(mask):
        raise ValueError(f"{where}: input_ids and attention_mask differ in shape")
    for each in mask:
        if each not in (0, 1):
            raise ValueError(f"{where}: attention_mask holds 0 and 1; got {brief(each)}")
    seen = [i for i, each in enumerate(mask) if each]
    if seen and seen[-1] - seen[0] + 1 != len(seen):
        raise ValueError(f"{where}: attention_mask masks tokens between others; it may mask padding on either side")
    return [ids[i] for i in seen]
