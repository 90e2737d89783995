"""Converts the arguments of `model.generate` into rows that copyspec can decode, and rejects what it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import Cache, EncoderDecoderCache, EosTokenCriteria, MaxLengthCriteria

from copyspec.checks import shown
from copyspec.targets.facts import vocabulary_size
from copyspec.targets.seq2seq import first_tokens

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList

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
    "use_mtp": ((None, False), "copyspec drafts itself; leave it out, or leave out custom_generate"),
    "speculation_type": ((None,), "copyspec drafts itself; leave it out, or leave out custom_generate"),
}
"""Options of the generation config with their neutral values, and the remedy for any other value."""

HARMLESS = frozenset(
    {"attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache_position", "encoder_outputs"}
    | {"decoder_attention_mask", "streamer", "return_dict", "output_router_logits"}
)
"""Model arguments that `generate` derives from the tokens, or that do not affect the tokens."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one call. For encoder-decoder models `prompts` are the encoder's inputs."""

    ids: torch.Tensor
    """The decoder's tokens with padding, [rows, width], as processors and criteria see them."""
    prompts: Sequence[Sequence[int]]  # without padding; one per `samples` rows
    samples: int
    max_new_tokens: int
    eos: frozenset[int]
    pad: int


def read_rows(
    model: PreTrainedModel,
    ids: torch.Tensor,
    inputs: torch.Tensor | None,
    config: GenerationConfig,
    criteria: StoppingCriteriaList,
    arguments: Mapping[str, object],
) -> Rows:
    """Parse the arguments. `ids`: the decoder's, [rows, width]; `inputs`: the model's main input. Raises ValueError or
    TypeError for anything unsupported, before decoding starts."""
    refuse_options(config)
    refuse_arguments(arguments)
    samples = config.num_return_sequences or 1
    if model.config.is_encoder_decoder:
        prompts = _encoder_prompts(inputs, arguments)
        _check_start(ids, first_tokens(model))
    else:
        prompts = _prompts(ids[::samples], arguments)
        _check_positions(ids, arguments)
    limit = criteria.max_length
    eos = [token for each in criteria if isinstance(each, EosTokenCriteria) for token in _tokens(each)]
    pad = getattr(config, "_pad_token_tensor", config.pad_token_id)
    if pad is None and len(ids) > 1 and any(not isinstance(each, MaxLengthCriteria) for each in criteria):
        raise ValueError("rows may end at different lengths, and there is no padding token; give pad_token_id=")
    if limit is None:
        raise ValueError("no length ends the output; give max_new_tokens=")
    room: float = limit - ids.shape[1]
    room = int(room) if float(room).is_integer() else room  # generate takes max_new_tokens=5.0
    size = vocabulary_size(model)
    known = frozenset(token for token in eos if 0 <= token < size)  # some configs have -1 for none
    return Rows(ids, prompts, samples, room, known, 0 if pad is None else int(pad))  # type: ignore[arg-type]


def refuse_options(config: GenerationConfig) -> None:
    """Raise ValueError for a generation option that copyspec does not support."""
    for name, (neutral, instead) in REFUSED.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise ValueError(f"{name}={value!r} cannot be combined with custom_generate=copyspec.hf: {instead}")
    if config.cache_implementation == "quantized":
        raise ValueError("cache_implementation='quantized' changes the output, and copyspec has a cache of its own")
    if config.return_dict_in_generate:
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(config, name):
                raise ValueError(f"{name}=True: a pass over drafts has none for each token; leave out custom_generate")


def refuse_arguments(arguments: Mapping[str, object]) -> None:
    """Raise ValueError for a model argument that copyspec would not pass on."""
    for name, value in arguments.items():
        if name in HARMLESS or value is None or value is False:
            continue
        if name == "token_type_ids" and isinstance(value, torch.Tensor) and not bool(value.any()):
            continue
        if isinstance(value, Cache):  # `generate` creates an empty one
            cache = value.self_attention_cache if isinstance(value, EncoderDecoderCache) else value
            if any(getattr(layer, "is_initialized", False) for layer in cache.layers):
                raise ValueError(f"{name} holds tokens; copyspec begins with an empty cache: leave it out")
            continue
        raise ValueError(f"copyspec does not pass {name} to the model (got {shown(value)}); leave out custom_generate")


def refuse_encoded(given: Mapping[str, object]) -> None:
    """Raise ValueError if the caller of `generate` gave the encoder's outputs. The arguments of a custom loop always
    hold some, since `generate` computes them where the caller gives none."""
    if given.get("encoder_outputs") is not None:
        raise ValueError("copyspec runs the encoder itself: leave encoder_outputs out, and give input_ids=")


def _prompts(ids: torch.Tensor, arguments: Mapping[str, object]) -> list[list[int]]:
    mask = _mask(ids, arguments)
    if mask is None:
        return _lists(ids)
    for row in (~mask[:, -1]).nonzero().flatten().tolist():
        raise ValueError(f"row {row} is padded on the right: tokenize with padding_side='left'")
    _check_whole(mask)
    return [tokens[keep].tolist() for tokens, keep in zip(ids, mask, strict=True)]


def _mask(ids: torch.Tensor, arguments: Mapping[str, object]) -> torch.Tensor | None:
    """The attention mask of `ids`, [rows, width], as bools; None if there is none. Raises ValueError for one that
    `generate` would read as something else."""
    mask = arguments.get("attention_mask")
    if not isinstance(mask, torch.Tensor):
        return None
    if ids.dim() != 2 or mask.dim() != 2 or mask.shape[1] != ids.shape[1] or not len(ids) or len(mask) % len(ids):
        raise ValueError(
            f"attention_mask has the shape {list(mask.shape)}, and the ids have {list(ids.shape)}; give one of their "
            "shape, or leave it out"
        )
    mask = mask[:: len(mask) // len(ids)].to(ids.device)  # may be expanded by num_return_sequences
    if bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError(f"attention_mask must hold 0 and 1 only; got {shown(mask)}")
    for row in (mask == 0).all(1).nonzero().flatten().tolist():
        raise ValueError(f"row {row} has no token: its attention_mask is 0 everywhere")
    return mask.bool()


def _encoder_prompts(inputs: torch.Tensor | None, arguments: Mapping[str, object]) -> list[list[int]]:
    if inputs is None or inputs.dim() != 2 or inputs.is_floating_point():
        raise TypeError("copyspec decodes from token ids: give input_ids=")
    mask = _mask(inputs, arguments)
    if mask is None:
        return _lists(inputs)
    # An encoder may count positions from the first token, masked or not.
    for row in (~mask[:, 0]).nonzero().flatten().tolist():
        raise ValueError(f"row {row} of the encoder's input is padded on the left: tokenize with padding_side='right'")
    _check_whole(mask)
    return [tokens[keep].tolist() for tokens, keep in zip(inputs, mask, strict=True)]


def _check_start(ids: torch.Tensor, start: Sequence[int]) -> None:
    """Raise ValueError for rows that begin with other tokens than `start`, with which the model begins all outputs."""
    if ids.shape[1] != 1:
        raise ValueError(
            f"decoder_input_ids of {ids.shape[1]} tokens: copyspec begins outputs with the decoder's start token"
        )
    for row, (token,) in enumerate(_lists(ids)):
        if token != start[0]:
            raise ValueError(
                f"row {row} begins with token {token}, and copyspec begins all rows with the model's own start token, "
                f"{start[0]}: set model.generation_config.decoder_start_token_id = {token}, and leave "
                "decoder_start_token_id and decoder_input_ids out of the call"
            )


def _check_whole(mask: torch.Tensor) -> None:
    """Raise ValueError for masked tokens between others: logits processors would see them, and decoding would not."""
    for row in (mask.long().diff(dim=1).ne(0).sum(1) > 1).nonzero().flatten().tolist():
        raise ValueError(f"row {row} has masked tokens between others: leave them out of the ids")


def _check_positions(ids: torch.Tensor, arguments: Mapping[str, object]) -> None:
    """Raise ValueError for positions other than those of the unmasked tokens, counted from 0."""
    given, mask = arguments.get("position_ids"), arguments.get("attention_mask")
    if not isinstance(given, torch.Tensor) or given.dim() != 2:
        return
    kept = mask.long() if isinstance(mask, torch.Tensor) else torch.ones_like(ids)
    expected = kept.cumsum(-1) - 1
    if given.shape[1] != ids.shape[1] or bool(((given != expected) & kept.bool()).any()):
        raise ValueError("copyspec counts positions from the first unmasked token; leave position_ids out")


def _tokens(criterion: EosTokenCriteria) -> list[int]:
    tokens: list[int] = torch.as_tensor(criterion.eos_token_id, device="cpu").flatten().tolist()
    return tokens


def _lists(ids: torch.Tensor) -> list[list[int]]:
    rows: list[list[int]] = ids.tolist()
    return rows
