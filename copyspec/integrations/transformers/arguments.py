"""What of a call of `generate` is refused: options that copyspec does not have, arguments that it would not pass on to
the model, and attention masks that the model would read otherwise than `generate` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from copyspec.common.checks import shown
from copyspec.targets.hooks.recurrence import is_recurrent
from copyspec.targets.model.facts import forward_arguments
from copyspec.targets.selftest.probes import ignores_zero_types, reads_rows_alone, skips_masked

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

REFUSED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "num_beams": ((None, 1), "copyspec decodes with one beam; leave it out"),
    "num_beam_groups": ((None, 1), "copyspec decodes with one beam; leave it out"),
    "constraints": ((None,), "copyspec decodes with one beam; leave it out"),
    "force_words_ids": ((None,), "copyspec decodes with one beam; leave it out"),
    "penalty_alpha": ((None, 0, 0.0), "contrastive search is not supported; leave it out"),
    "dola_layers": ((None,), "DoLa is not supported; leave it out"),
    "guidance_scale": ((None, 1, 1.0), "guidance runs the model a second time for each token; leave it out"),
    "prompt_lookup_num_tokens": ((None,), "copyspec drafts itself; leave it out, or leave out custom_generate"),
    "assistant_early_exit": ((None,), "write draft_model='layers:N' instead"),
    "use_mtp": ((None, False), "write draft_model='mtp' instead"),
    "speculation_type": ((None,), "copyspec drafts itself; leave it out, or leave out custom_generate"),
}
"""Options of the generation config with their neutral values, and the remedy for any other value."""

CACHES = ("cache", "past_key_values")
"""Names of the argument that holds a cache, in newer and in older versions of transformers."""

HARMLESS = frozenset(
    {"input_ids", "decoder_input_ids", "attention_mask", "position_ids", "encoder_outputs", *CACHES}
    | {"use_cache", "logits_to_keep", "cache_position", "streamer", "return_dict", "output_router_logits"}
    | {"output_attentions", "output_hidden_states"}
)
"""Model arguments that are checked elsewhere, that `generate` derives from the tokens, or that do not affect them."""


def refuse_options(config: GenerationConfig) -> None:
    """Raise ValueError for a generation option that copyspec does not support."""
    for name, (neutral, instead) in REFUSED.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise ValueError(f"{name}={value!r} cannot be combined with custom_generate=copyspec.hf: {instead}")
    if config.cache_implementation == "quantized":
        raise ValueError("cache_implementation='quantized' changes the output, and copyspec has a cache of its own")
    if config.return_dict_in_generate and config.prefill_chunk_size is not None:
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(config, name):
                raise ValueError(f"{name}=True with prefill_chunk_size returns those of the last chunk; leave one out")


def refuse_arguments(
    model: PreTrainedModel, arguments: Mapping[str, object], explicit: Mapping[str, object] | None
) -> None:
    """Raise ValueError for a model argument that copyspec would not pass on.

    `arguments`: those that `generate` has prepared; `explicit`: those of its caller, None if they are not known. What
    `generate` adds for a text is no more than the model makes of the text by itself, but from an image it makes other
    arguments, and drops the image.
    """
    read = forward_arguments(model)
    checked = dict(arguments)
    if explicit is not None:
        checked = {name: value for name, value in arguments.items() if name in explicit}
        checked |= {name: value for name, value in explicit.items() if name in read}
    for name, value in checked.items():
        if name in HARMLESS or _is_neutral(model, name, value):
            continue
        got = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else shown(value)
        raise ValueError(f"copyspec does not pass {name} to the model (got {got}); leave out custom_generate")


def _is_neutral(model: PreTrainedModel, name: str, value: object) -> bool:
    if isinstance(value, torch.Tensor):
        if name == "mm_token_type_ids":  # 0 is text
            return not bool(value.any())
        if name == "token_type_ids":
            return not bool(value.any()) and ignores_zero_types(model)
        if name == "decoder_attention_mask":
            return bool((value == 1).all())
        return value.numel() == 0
    if isinstance(value, Mapping):
        return all(_is_neutral(model, name, part) for part in value.values())
    return value is None or value is False or (isinstance(value, (list, tuple)) and not value)


def refuse_encoded(explicit: Mapping[str, object]) -> None:
    """Raise ValueError if the caller of `generate` gave the encoder's outputs. The arguments of a custom loop always
    hold some, since `generate` computes them where the caller gives none."""
    if explicit.get("encoder_outputs") is not None:
        raise ValueError("copyspec runs the encoder itself: leave encoder_outputs out, and give input_ids=")


_BLOCKS = ("local_radius", "global_block_size", "attention_window", "block_size")
"""Settings of encoders that attend within blocks of columns, masked or not."""


def mask_of(rows: int, width: int, arguments: Mapping[str, object]) -> torch.Tensor | None:
    """The attention mask for the model's main input, [rows, width], as bools; None if there is none. Raises ValueError
    for one that `generate` would read as something else."""
    mask = arguments.get("attention_mask")
    if not isinstance(mask, torch.Tensor):
        return None
    if mask.dim() != 2 or mask.shape[1] != width or not rows or len(mask) % rows:
        raise ValueError(
            f"attention_mask has the shape {list(mask.shape)}, and the tokens have {[rows, width]}; give one of their "
            "shape, or leave it out"
        )
    mask = mask[:: len(mask) // rows]  # may be expanded by num_return_sequences
    if bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"attention_mask must hold 0 and 1 only; got {shown(mask)}")
    for row in _rows((mask == 0).all(1)):
        raise ValueError(f"row {row} has no token: its attention_mask is 0 everywhere")
    return mask.bool()


def check_padding(model: PreTrainedModel, mask: torch.Tensor, length: int) -> None:
    """Raise ValueError for masked tokens that change what `generate` gives for the others: a decoder's row is decoded
    without them. `length`: columns of the longest output, with what precedes it."""
    if len(mask) > 1 and is_recurrent(model) and not reads_rows_alone(model):
        raise ValueError(
            f"{type(model).__name__} lets the rows of a batch change each other in generate itself: give one at a time"
        )
    for row in _rows(~mask[:, -1]):
        raise ValueError(
            f"row {row} is padded on the right, where generate itself goes on from the padding: tokenize with "
            "padding_side='left'"
        )
    config = model.config.get_text_config(decoder=True)
    chunk, window = getattr(config, "attention_chunk_size", None), getattr(config, "sliding_window", None)
    counts = chunk is not None and length > chunk
    _check(model, mask, before=counts, between=counts or (window is not None and length > window))


def check_encoder_padding(model: PreTrainedModel, mask: torch.Tensor) -> None:
    """`check_padding` of what an encoder reads, which may be padded on the right."""
    config = model.config.get_text_config(encoder=True)
    counts = any(getattr(config, name, None) is not None for name in _BLOCKS)
    _check(model, mask, before=counts, between=counts)


def _check(model: PreTrainedModel, mask: torch.Tensor, *, before: bool, between: bool) -> None:
    """`before`, `between`: whether the model is known to count tokens that are masked there."""
    name = type(model).__name__
    for row in _rows(~mask[:, 0]):
        if before or not skips_masked(model, "before"):
            raise ValueError(
                f"row {row} is padded on the left, and {name} counts from the padding, so that the row would differ "
                "from its own output: give rows of one length together, or one at a time"
            )
    resumed = (mask.long().diff(dim=1) == 1) & (mask[:, :-1].cumsum(1) > 0)
    for row in _rows(resumed.any(1)):
        if between or not skips_masked(model, "between"):
            raise ValueError(
                f"row {row} has masked tokens between others, and {name} counts their places: leave them out of the ids"
            )


def _rows(chosen: torch.Tensor) -> list[int]:
    rows: list[int] = chosen.nonzero().flatten().tolist()
    return rows


def check_positions(positions: object, mask: torch.Tensor) -> None:
    """Raise ValueError for positions other than those of the unmasked tokens, counted from 0."""
    if not isinstance(positions, torch.Tensor):
        return
    counted = mask.long().cumsum(-1) - 1
    if positions.shape[-1] != mask.shape[1] or bool(((positions.to(mask.device) != counted) & mask).any()):
        raise ValueError("copyspec counts positions from the first unmasked token; leave position_ids out")
