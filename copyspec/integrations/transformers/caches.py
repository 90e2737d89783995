"""Caches of `generate`: what one holds of each row, how rows are written to one, and what `generate` records along the
way of a finished output: the cache that it leaves behind, hidden states and attentions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.generation.utils import ALL_CACHE_NAMES, GenerateDecoderOnlyOutput
from transformers.utils.generic import ModelOutput

from copyspec.integrations.transformers.arguments import CACHES

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from copyspec.targets.rows.prefixes import Layers

    Recorded = Sequence[torch.Tensor | None] | None  # of one pass, one tensor per layer
    Steps = tuple[tuple[torch.Tensor | None, ...] | None, ...]  # one of these per output token
    Cut = Callable[[torch.Tensor, int, int], torch.Tensor]

_READ = (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer)
"""Layers that hold keys and values as they are; those of other types compress them, or hold a state."""


def cache_of(arguments: Mapping[str, object]) -> Cache | None:
    """The cache among the arguments of a call, empty or not."""
    return next((cache for name in CACHES if isinstance(cache := arguments.get(name), Cache)), None)


def layers_of(cache: Cache) -> Sequence[Any]:
    """The layers of a cache; those of self-attention for encoder-decoder models."""
    own: Any = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    layers: Sequence[Any] = own.layers
    return layers


def cached_columns(cache: Cache | None) -> int:
    """Columns of tokens, padding included, that a cache holds of each row. Raises ValueError for one that cannot be
    read."""
    if cache is None or not any(map(_is_filled, layers_of(cache))):
        return 0
    if isinstance(cache, EncoderDecoderCache):
        raise ValueError(
            "past_key_values holds tokens, and copyspec begins an encoder-decoder model's output with an empty cache: "
            "leave it out"
        )
    for layer in layers_of(cache):
        if not _is_readable(layer):
            raise ValueError(
                f"past_key_values holds tokens in a {type(layer).__name__}, from which copyspec cannot continue: "
                "leave it out, and give the whole text, or leave out custom_generate"
            )
    if getattr(cache, "offloading", False):
        raise ValueError("past_key_values holds tokens and is offloaded: leave it out, or leave out custom_generate")
    return max(int(layer.get_seq_length()) for layer in layers_of(cache) if type(layer) in _READ)


def cached_rows(cache: Cache, seen: torch.Tensor) -> list[Layers]:
    """Keys and values of each row's unmasked tokens, [H, n, D] per layer. `seen`: which columns are not masked, [rows,
    columns]."""
    layers = layers_of(cache)
    for layer in layers:
        if getattr(layer, "keys", None) is not None and len(layer.keys) != len(seen):
            raise ValueError(f"past_key_values holds {len(layer.keys)} rows, and the ids have {len(seen)}")
    return [[_unmasked(layer, row, own) for layer in layers] for row, own in enumerate(seen)]


def _unmasked(layer: Any, row: int, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Keys and values of a row's unmasked tokens, [H, n, D]; zeros for those that have left the layer's window, which
    no later token attends to. None for a layer without any."""
    if getattr(layer, "keys", None) is None:
        return None
    first = max(0, len(seen) - layer.keys.shape[2])
    columns = seen[first:].nonzero().flatten().to(layer.keys.device)

    def of_row(states: torch.Tensor) -> torch.Tensor:
        lost = states.new_zeros((states.shape[1], int(seen[:first].sum()), states.shape[3]))
        return torch.cat([lost, states[row].index_select(1, columns)], dim=1)

    return of_row(layer.keys), of_row(layer.values)


def can_write(cache: Cache | None) -> bool:
    """Whether keys and values can be written to a cache as a model does it, but without the model."""
    return cache is not None and not isinstance(cache, EncoderDecoderCache) and all(map(_is_readable, layers_of(cache)))


def write_rows(cache: Cache, rows: Sequence[Layers], columns: int) -> int:
    """Write rows without masked tokens, [H, n, D] per layer, after the first `columns`, which the cache holds, up to
    where each has some. Returns how many columns it holds then."""
    stop = min(pair[0].shape[1] for row in rows for pair in row if pair is not None)
    for index, pairs in enumerate(zip(*rows, strict=True)):
        if pairs[0] is not None:
            keys, values = (torch.stack([pair[part][:, columns:stop] for pair in pairs]) for part in (0, 1))
            cache.update(keys, values, index)
    return stop


def _is_readable(layer: Any) -> bool:
    """Whether a layer holds keys and values as they are, or nothing."""
    return type(layer) in _READ or (getattr(layer, "keys", None) is None and not hasattr(layer, "has_previous_state"))


def _is_filled(layer: Any) -> bool:
    """Whether a layer holds tokens, or the state of a recurrent one."""
    states = getattr(layer, "has_previous_state", None)
    if isinstance(states, Mapping) and any(states.values()):
        return True
    return getattr(layer, "keys", None) is not None and int(layer.get_seq_length()) > 0


CACHE_FIELD = next(field.name for field in fields(GenerateDecoderOnlyOutput) if field.name in CACHES)
"""Under which name this version of transformers returns the cache."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The outputs of a call."""

    ids: torch.Tensor  # with what the caller gave, [rows, columns]
    width: int  # columns that the caller gave
    columns: int  # the same with those that a cache held before
    rows: Sequence[Layers] | None
    """Keys and values of each row, those of the cache included; None where they are not known, or where tokens are
    masked: copyspec does not read these."""


def replay(
    model: PreTrainedModel, finished: Finished, arguments: Mapping[str, object], config: GenerationConfig
) -> dict[str, object]:
    """Bring the cache among the arguments to where `generate` leaves it, which has not read the last column. Returns
    the fields of the output that this gives.

    What copyspec has not read, or does not know any more, is read again: the caller's columns in a pass of their own,
    as in `generate`, since what a model makes of padding may depend on all tokens of a pass.
    """
    generation: Any = model  # typed Any, since its type does not show GenerationMixin's methods
    wanted, cache = list(_wanted(model, config)), cache_of(arguments)
    if finished.ids.shape[1] == finished.width:  # all rows ended with the caller's step
        return {CACHE_FIELD: cache}
    written, rereads = finished.ids.shape[1] - finished.width - 1, not arguments.get("use_cache", True)
    passes: list[Any] = []
    left = written
    if cache is not None and finished.rows is not None and can_write(cache) and not wanted:
        left += finished.columns - write_rows(cache, finished.rows, cached_columns(cache))
    else:
        config = copy.copy(config)
        config.prefill_chunk_size = None
        passes.append(generation._prefill(finished.ids[:, : finished.width], config, dict(arguments)))
    read = cached_columns(cache) if "attentions" in wanted else 0
    if left:
        updated = generation._update_model_kwargs_for_generation(
            passes[0] if passes else ModelOutput(),  # type: ignore[no-untyped-call]
            dict(arguments),
            is_encoder_decoder=model.config.is_encoder_decoder,
            num_new_tokens=written,
        )
        inputs = generation.prepare_inputs_for_generation(
            finished.ids[:, :-1], next_sequence_length=None if rereads else left, **updated
        )
        passes.append(model(**inputs, return_dict=True))
    if cache is None:
        cache = next((passes[-1][name] for name in ALL_CACHE_NAMES if name in passes[-1]), None)
    recorded: dict[str, object] = {CACHE_FIELD: cache}
    for name in wanted:
        if name.startswith("encoder_"):
            encoded: Any = arguments["encoder_outputs"]
            recorded[name] = encoded.get(name.removeprefix("encoder_"))
            continue
        cut: Cut = partial(_read_again, written) if rereads else _read_once
        if name in ("attentions", "decoder_attentions"):
            windows = [_window(layer) for layer in layers_of(cache)] if isinstance(cache, Cache) else []
            cut = partial(_attention, written, None if rereads else windows, read)
        recorded[name] = _steps([outputs.get(name) for outputs in passes], written, cut)
    return recorded


def _wanted(model: PreTrainedModel, config: GenerationConfig) -> Iterator[str]:
    """Fields of the output that hold hidden states and attentions, if the call asks for them."""
    for name in ("hidden_states", "attentions"):
        if not (config.return_dict_in_generate and getattr(config, f"output_{name}")):
            continue
        if model.config.is_encoder_decoder:
            yield from (f"encoder_{name}", f"decoder_{name}")
        else:
            yield name
    if model.config.is_encoder_decoder and config.return_dict_in_generate and config.output_attentions:
        yield "cross_attentions"


def _window(layer: object) -> int | None:
    return getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None


def _steps(passes: Sequence[Recorded], written: int, cut: Cut) -> Steps:
    """What `generate` records in each step: the caller's columns, then `written` tokens, one after another."""
    first, rest = passes[0], passes[-1]
    steps = [None if first is None else tuple(first)]
    for index in range(1, written + 1):
        if rest is None:
            steps.append(None)
        else:
            layers = enumerate(rest)
            steps.append(tuple(None if states is None else cut(states, layer, index) for layer, states in layers))
    return tuple(steps)


def _read_once(recorded: torch.Tensor, layer: int, index: int) -> torch.Tensor:
    """What a pass over the written tokens recorded for number `index` of them, [..., 1, n]."""
    return recorded[..., [index - 1], :]


def _read_again(written: int, recorded: torch.Tensor, layer: int, index: int) -> torch.Tensor:
    """The same without a cache: each step reads all columns before it, [..., columns, n]."""
    return recorded[..., : recorded.shape[-2] - written + index, :]


def _attention(
    written: int, windows: Sequence[int | None] | None, read: int, recorded: torch.Tensor, layer: int, index: int
) -> torch.Tensor:
    """The same of self-attention, [..., 1, keys]. `windows`: of the cache's layers, of which sliding ones keep no more
    keys, after `read` columns; None without a cache."""
    end = recorded.shape[-1] - written + index
    if windows is None:
        return recorded[..., : recorded.shape[-2] - written + index, :end]
    window = windows[layer] if layer < len(windows) else None
    start = 0 if window is None else end - 1 - min(read + index - 1, window - 1)
    return recorded[..., [index - 1], start:end]
