"""How many positions a model can hold so that every pass gives the logits of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
_BORDER = "original_max_position_embeddings"


class RopeBorder(NamedTuple):
    """The last length at which rotary frequencies are those of any shorter pass."""

    positions: int
    rope_type: str


def max_length(config: PreTrainedConfig) -> int | None:
    """Positions that the configuration names, cut at the border of its rotary frequencies; None where it names none."""
    named = _first(config, _LENGTH_NAMES)
    border = rope_border(config)
    if border is None:
        return named
    return border.positions if named is None else min(named, border.positions)


def encoder_length(config: PreTrainedConfig) -> int | None:
    """Tokens that the encoder of an encoder-decoder reads, where its positions are absolute; None elsewhere."""
    if not config.is_encoder_decoder:
        return None
    encoder = config.get_text_config(encoder=True)
    return _first(encoder, ("max_encoder_position_embeddings", "max_position_embeddings"))


def trained_length(config: PreTrainedConfig) -> int | None:
    """The length that a configuration names though the model's positions, being relative, have no end (T5)."""
    return _first(config.get_text_config(decoder=True), _LENGTH_NAMES)


def rope_border(config: PreTrainedConfig) -> RopeBorder | None:
    """Where the model's rotary frequencies change with the largest position of a pass; None where they never do.

    LongRoPE (arXiv:2402.13753) takes its long factors, and dynamic NTK scaling another base, for all tokens of a
    pass as soon as one position lies beyond the border. A draft node, a piece of a prompt or a longer neighbour in
    the batch would decide for the others, and cached keys keep the frequencies of their own pass.
    """
    borders = []
    for parameters in _rope_parameters(config):
        rope_type = str(parameters.get("rope_type", parameters.get("type")))
        if rope_type == "longrope":
            positions = parameters.get(_BORDER) or _first(config, (_BORDER, *_LENGTH_NAMES))
        elif "dynamic" in rope_type:
            positions = _first(config, _LENGTH_NAMES)
        else:
            continue
        if isinstance(positions, int):
            borders.append(RopeBorder(positions, rope_type))
    return min(borders, default=None)


def _rope_parameters(config: PreTrainedConfig) -> Iterator[Mapping[str, object]]:
    """The rotary settings of all layers, or of each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        parameters = getattr(config, name, None)
        if isinstance(parameters, Mapping):
            yield parameters
            yield from (part for part in parameters.values() if isinstance(part, Mapping))


def _first(config: PreTrainedConfig, names: tuple[str, ...]) -> int | None:
    for name in names:
        length = getattr(config, name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None
