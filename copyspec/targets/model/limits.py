"""The number of positions up to which every pass of a model gives the logits of plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
_BORDER = "original_max_position_embeddings"


class RopeLimit(NamedTuple):
    """The last length at which rotary frequencies equal those of shorter passes."""

    positions: int
    rope_type: str


def max_length(config: PreTrainedConfig) -> int | None:
    """Maximum positions by the configuration, limited by its rotary frequencies; None if neither limits it."""
    named = _first(config, _LENGTH_NAMES)
    rope = rope_limit(config)
    if rope is None:
        return named
    return rope.positions if named is None else min(named, rope.positions)


def encoder_length(config: PreTrainedConfig) -> int | None:
    """Maximum encoder input of an encoder-decoder model with absolute positions, in tokens; None for other models."""
    if not config.is_encoder_decoder:
        return None
    encoder = config.get_text_config(encoder=True)
    return _first(encoder, ("max_encoder_position_embeddings", "max_position_embeddings"))


def trained_length(config: PreTrainedConfig) -> int | None:
    """The length named by the configuration of a model whose relative positions have no limit (T5)."""
    return _first(config.get_text_config(decoder=True), _LENGTH_NAMES)


def rope_limit(config: PreTrainedConfig) -> RopeLimit | None:
    """The length at which the rotary frequencies depend on the largest position of a pass; None if they never do.

    Beyond it LongRoPE (arXiv:2402.13753) switches to its long factors, and dynamic NTK scaling to another base, for
    all tokens of the pass. A draft node, a prefill chunk or a longer row of the batch would thus change the other
    tokens, and cached keys keep the frequencies of their own pass.
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
            borders.append(RopeLimit(positions, rope_type))
    return min(borders, default=None)


def _rope_parameters(config: PreTrainedConfig) -> Iterator[Mapping[str, object]]:
    """The rotary settings of the model, and those per layer type."""
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
