"""The first step of a call that gives embeddings instead of token ids: `generate`'s own, after which tokens follow."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from copyspec.decoding.requests import Finish, StepOutput
from copyspec.integrations.transformers.arguments import check_padding, check_positions, mask_of, refuse_arguments
from copyspec.integrations.transformers.caches import cache_of, cached_columns
from copyspec.targets.model.locks import lock_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from copyspec.integrations.transformers.call import Prepared, Rows, ScoreRecorder


@dataclass(frozen=True, slots=True)
class FirstStep:
    """What one step of `generate` gave."""

    tokens: Sequence[int]  # one per row
    ended: Sequence[Finish | None]  # by the call's criteria
    scores: tuple[torch.Tensor, ...] | None
    logits: tuple[torch.Tensor, ...] | None

    def before(self, rows: Rows, ids: torch.Tensor, criteria: StoppingCriteriaList) -> Rows:
        """`rows`, which begin with the tokens of this step, after the `ids` that the caller gave beside embeddings."""
        shown = torch.cat([ids, rows.ids.to(ids.device)], dim=1)
        return replace(rows, ids=shown, max_new_tokens=max(1, int(criteria.max_length or 0) - shown.shape[1]))

    def output(self, row: int) -> StepOutput:
        """The step as one of a row."""
        return StepOutput(row, [self.tokens[row]], [None], self.ended[row])

    def record(self, row: int, *records: Sequence[ScoreRecorder] | None) -> None:
        """Put the step's scores and logits before those of a row."""
        for record, values in zip(records, (self.scores, self.logits), strict=True):
            if record is not None and values is not None:
                record[row].scores.append(values[0][row])


class _Once(StoppingCriteria):
    """Ends after one token, and records which rows would have ended, and why."""

    def __init__(self, criteria: StoppingCriteriaList) -> None:
        # Length is the least of reasons.
        self._criteria = sorted(criteria, key=lambda criterion: isinstance(criterion, MaxLengthCriteria))
        self.ended: list[Finish | None] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:
        self.ended = [None] * len(input_ids)
        for criterion in self._criteria:
            met = torch.as_tensor(criterion(input_ids, scores, **kwargs)).expand(len(input_ids)).tolist()
            for row, token in enumerate(input_ids[:, -1].tolist()):
                if met[row] and isinstance(criterion, MaxLengthCriteria):
                    self.ended[row] = self.ended[row] or Finish("length")
                elif met[row]:
                    detail = token if isinstance(criterion, EosTokenCriteria) else type(criterion).__name__
                    self.ended[row] = self.ended[row] or Finish("stop", detail)
        return cast("torch.BoolTensor", torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device))


def first_step(model: PreTrainedModel, call: Prepared, processors: LogitsProcessorList) -> tuple[FirstStep, Prepared]:
    """Read the embeddings and pick the first tokens. Returns them, and the call that goes on from there."""
    arguments, config = dict(call.arguments), copy.copy(call.config)
    embeds = arguments.pop("inputs_embeds")
    assert isinstance(embeds, torch.Tensor)
    explicit = None if call.explicit is None else {**call.explicit, "inputs_embeds": None}
    refuse_arguments(model, arguments, explicit)
    cache = cache_of(arguments)
    if cache is None:
        raise ValueError(f"inputs_embeds need a cache, and {type(model).__name__} has none: give input_ids=")
    cached_columns(cache)  # raises for one that cannot be read
    for name in ("output_hidden_states", "output_attentions"):
        if call.config.return_dict_in_generate and getattr(call.config, name):
            raise ValueError(f"{name}=True cannot be combined with inputs_embeds; leave one out")
    mask = mask_of(len(embeds), embeds.shape[1], arguments)
    seen = torch.ones(embeds.shape[:2], dtype=torch.bool) if mask is None else mask.cpu()
    check_padding(model, seen, embeds.shape[1] + int(call.criteria.max_length or 0))
    positions = arguments.get("position_ids")
    check_positions(positions, seen)
    config.return_dict_in_generate = True
    once, generation = _Once(call.criteria), cast("Any", model)
    passed = {name: value for name, value in call.arguments.items() if name not in ("synced_gpus", "streamer")}
    with lock_of(model):
        output = generation._sample(call.ids, processors, StoppingCriteriaList([once]), config, **passed)
    step = FirstStep(output.sequences[:, -1].tolist(), once.ended, output.scores, output.logits)
    if mask is not None:
        mask = cast("torch.Tensor", arguments["attention_mask"])
        arguments["attention_mask"] = torch.cat([mask, mask.new_ones((len(mask), 1))], dim=1)
    if isinstance(positions, torch.Tensor):
        arguments["position_ids"] = torch.cat([positions, positions[..., -1:] + 1], dim=-1)
    config = copy.copy(call.config)
    if (length := getattr(config, "_mask_length", None)) is not None:
        config._mask_length = length + 1
    return step, replace(call, ids=output.sequences[:, -1:], config=config, arguments=arguments, explicit=explicit)
