"""Converts the arguments of `model.generate` into rows that copyspec can decode, and rejects what it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from transformers import EosTokenCriteria, LogitsProcessor, LogitsProcessorList, MaxLengthCriteria

from copyspec.engine.logits.row_processors import of_row
from copyspec.integrations.transformers.arguments import (
    check_encoder_padding,
    check_padding,
    check_positions,
    mask_of,
    refuse_arguments,
)
from copyspec.integrations.transformers.caches import cache_of, cached_columns, cached_rows
from copyspec.targets.model.facts import vocabulary_size
from copyspec.targets.rows.prefixes import Past
from copyspec.text.stops import CriterionStop

if TYPE_CHECKING:
    from transformers import Cache, GenerationConfig, PreTrainedModel, StoppingCriteriaList

    from copyspec.decoding.requests import StopCondition


class Shown(NamedTuple):
    """What `generate` shows of a row before its output."""

    ids: torch.Tensor  # with masked tokens, [1, width]
    read: int  # how many tokens of the row are decoded from


class RowProcessors(LogitsProcessor):
    """The processors of one row, called with the masked tokens of its prompt, too.

    `generate` calls them with the whole batch, whose rows have the same length. Here rows advance at different speeds,
    so each calls them with its own ids, [1, L]."""

    def __init__(self, processors: Sequence[LogitsProcessor], shown: Shown) -> None:
        self._processors = LogitsProcessorList(processors)
        self._shown = shown

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        ids, read = self._shown
        if ids.shape[1] != read:
            input_ids = cast("torch.LongTensor", torch.cat([ids, input_ids[:, read:]], dim=1))
        return cast("torch.FloatTensor", self._processors(input_ids, scores))


class ScoreRecorder(LogitsProcessor):
    """Records the scores of each output token at its position among the processors."""

    def __init__(self) -> None:
        self.scores: list[torch.Tensor] = []  # [V] each

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.scores.append(scores[0].clone())
        return scores


def row_processors(processors: LogitsProcessorList, row: int, rows: int, shown: Shown) -> list[LogitsProcessor]:
    """`processors` for row number `row` of `rows`, as a list of at most one."""
    own = [of_row(processor, row, rows) for processor in processors]
    return [RowProcessors(own, shown)] if own else []


def row_stops(
    criteria: StoppingCriteriaList, ids: Sequence[int], room: int, device: torch.device
) -> list[StopCondition]:
    """`criteria` for a row that starts with `ids`, without those for length and end of sequence."""
    kinds = (MaxLengthCriteria, EosTokenCriteria)
    return [CriterionStop(criterion, ids, room, device) for criterion in criteria if not isinstance(criterion, kinds)]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `generate` gives to a loop of its own, or to one in its place."""

    ids: torch.Tensor  # the decoder's, [rows, width]
    inputs: torch.Tensor | None  # the model's main input
    config: GenerationConfig
    criteria: StoppingCriteriaList
    arguments: Mapping[str, object]  # of the model
    explicit: Mapping[str, object] | None  # the keyword arguments of `generate` itself; None if they are not known


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one call. For encoder-decoder models `prompts` are the encoder's inputs."""

    ids: torch.Tensor
    """The decoder's tokens with padding, [rows, width], as processors and criteria see them."""
    prompts: Sequence[Sequence[int]]  # without masked tokens; one per `samples` rows
    seen: torch.Tensor | None
    """Which tokens of a decoder are not masked, [rows, columns]: those of `ids`, after those of a filled cache that
    `ids` do not hold."""
    pasts: Sequence[Past | None]  # what a filled cache holds of each row
    samples: int
    max_new_tokens: int
    eos: frozenset[int]
    pad: int


def read_rows(model: PreTrainedModel, call: Prepared) -> Rows:
    """Parse the arguments. Raises ValueError or TypeError for anything unsupported, before decoding starts."""
    ids, config, criteria = call.ids, call.config, call.criteria
    refuse_arguments(model, call.arguments, call.explicit)
    samples = config.num_return_sequences or 1
    limit = criteria.max_length
    eos = [token for rule in criteria if isinstance(rule, EosTokenCriteria) for token in _tokens(rule)]
    pad = getattr(config, "_pad_token_tensor", config.pad_token_id)
    if pad is None and len(ids) > 1 and any(not isinstance(rule, MaxLengthCriteria) for rule in criteria):
        raise ValueError("rows may end at different lengths, and there is no padding token; give pad_token_id=")
    if limit is None:
        raise ValueError("no length ends the output; give max_new_tokens=")
    room: float = limit - ids.shape[1]
    room = int(room) if float(room).is_integer() else room  # generate takes max_new_tokens=5.0
    pasts: Sequence[Past | None] = [None] * len(ids)
    seen: torch.Tensor | None = None
    cache = cache_of(call.arguments)
    cached = cached_columns(cache)
    if config.return_dict_in_generate and config.output_attentions and getattr(cache, "is_compileable", False):
        raise ValueError("output_attentions=True cannot be combined with a static cache; leave one out")
    if model.config.is_encoder_decoder:
        prompts = _encoder_prompts(model, call)
    else:
        seen = _seen(call, cached)
        check_padding(model, seen, seen.shape[1] + int(room))
        check_positions(call.arguments.get("position_ids"), seen)
        prompts = [row[own[-len(row) :]].tolist() for row, own in zip(ids, seen, strict=True)][::samples]
        if cache is not None and cached:
            pasts = _pasts(cache, seen, ids.shape[1], cached)
    size = vocabulary_size(model)
    known = frozenset(token for token in eos if 0 <= token < size)  # some configs have -1 for none
    return Rows(ids, prompts, seen, pasts, samples, room, known, 0 if pad is None else int(pad))  # type: ignore[arg-type]


def _seen(call: Prepared, cached: int) -> torch.Tensor:
    """See `Rows.seen`. As in `generate`, the width of the mask says whether the ids hold what is cached."""
    rows, width = call.ids.shape
    columns = width
    if cached:
        mask = call.arguments.get("attention_mask")
        # A mask that hides nothing is dropped after this is set.
        full = mask.shape[1] if isinstance(mask, torch.Tensor) else getattr(call.config, "_mask_length", None)
        columns = width if full == width else cached + width
        if full is not None and full not in (width, columns):
            raise ValueError(
                f"attention_mask has {full} columns, and past_key_values holds {cached}, and the ids {width}: give a "
                "mask of the ids, if they begin with what is cached, else of both"
            )
    mask = mask_of(rows, columns, call.arguments)
    if mask is None:
        return torch.ones((rows, columns), dtype=torch.bool, device=call.ids.device)
    return mask.to(call.ids.device)


def _pasts(cache: Cache, seen: torch.Tensor, width: int, cached: int) -> list[Past]:
    if cached >= seen.shape[1]:
        raise ValueError(
            f"past_key_values holds {cached} tokens, and of the {width} ids none follows them; give the whole text and "
            "its continuation, or the continuation alone with an attention_mask for both"
        )
    counts = seen[:, :cached].sum(1).tolist()
    hidden = counts if width < seen.shape[1] else [0] * len(seen)
    return [Past(layers, before) for layers, before in zip(cached_rows(cache, seen[:, :cached]), hidden, strict=True)]


def _encoder_prompts(model: PreTrainedModel, call: Prepared) -> list[list[int]]:
    inputs = call.inputs
    if inputs is None or inputs.dim() != 2 or inputs.is_floating_point():
        raise TypeError("copyspec decodes from token ids: give input_ids=")
    rows, width = inputs.shape
    mask = mask_of(rows, width, call.arguments)
    if mask is None:
        return _lists(inputs)
    check_encoder_padding(model, mask)
    return [tokens[own].tolist() for tokens, own in zip(inputs, mask.to(inputs.device), strict=True)]


def _tokens(criterion: EosTokenCriteria) -> list[int]:
    tokens: list[int] = torch.as_tensor(criterion.eos_token_id, device="cpu").flatten().tolist()
    return tokens


def _lists(ids: torch.Tensor) -> list[list[int]]:
    rows: list[list[int]] = ids.tolist()
    return rows
