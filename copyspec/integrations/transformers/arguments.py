"""What of a call of `generate` is refused: options that copyspec does not have, and arguments that it would not pass on
to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from copyspec.common.checks import shown
from copyspec.targets.facts import forward_arguments
from copyspec.targets.selftest.probes import ignores_zero_types

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
    model: PreTrainedModel, arguments: Mapping[str, object], asked: Mapping[str, object] | None
) -> None:
    """Raise ValueError for a model argument that copyspec would not pass on.

    `arguments`: those that `generate` has prepared; `asked`: those of its caller, None if they are not known. What
    `generate` adds for a text is no more than the model makes of the text by itself, but from an image it makes other
    arguments, and drops the image.
    """
    read = forward_arguments(model)
    checked = dict(arguments)
    if asked is not None:
        checked = {name: value for name, value in arguments.items() if name in asked}
        checked |= {name: value for name, value in asked.items() if name in read}
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


def refuse_encoded(asked: Mapping[str, object]) -> None:
    """Raise ValueError if the caller of `generate` gave the encoder's outputs. The arguments of a custom loop always
    hold some, since `generate` computes them where the caller gives none."""
    if asked.get("encoder_outputs") is not None:
        raise ValueError("copyspec runs the encoder itself: leave encoder_outputs out, and give input_ids=")
