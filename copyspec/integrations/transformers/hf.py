"""`custom_generate=copyspec.hf`: `model.generate` prepares and returns as ever, copyspec runs the decoding loop."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import torch

from copyspec import api
from copyspec.checks import check_type
from copyspec.engine.call_options import check_options
from copyspec.integrations.transformers.call import Rows, read_rows
from copyspec.integrations.transformers.outputs import (
    CopiedDecoderOnlyOutput,
    CopiedEncoderDecoderOutput,
    StreamerColumns,
    sequences,
    stacked,
)
from copyspec.integrations.transformers.rows import ScoreRecorder, check_processors, row_processors, row_stops

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        LogitsProcessorList,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        StoppingCriteriaList,
    )
    from transformers.generation.streamers import BaseStreamer
    from transformers.utils.generic import ModelOutput

    from copyspec.engine.call_options import CallOptions
    from copyspec.engine.engine import Engine
    from copyspec.engine.jobs import Job

CALL_OPTIONS = (
    *("edit_source", "prediction", "stop", "seed"),
    *("drafter", "draft_model", "datastore", "max_draft_nodes", "output_cache", "threads"),
)
"""Options of `copyspec.generate` that `model.generate` takes beside its own; the others have a name of its own."""

OWN = (*CALL_OPTIONS, "references", "tokenizer", "copyspec_tokenizer", "copyspec_streamer", "on_unsupported")

_LOOP = ("model", "input_ids", "logits_processor", "stopping_criteria", "generation_config", "inputs_tensor")


class CustomGenerate:
    """A decoding loop for `model.generate(custom_generate=...)`. It has no state: `copyspec.hf` is the one to use."""

    @property
    def __signature__(self) -> inspect.Signature:
        """What `generate` hands over: it takes the names of keywords of ours from here."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = [inspect.Parameter(name, kind, default=None) for name in (*_LOOP, *OWN)]
        return inspect.Signature([*named, inspect.Parameter("model_kwargs", inspect.Parameter.VAR_KEYWORD)])

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: torch.Tensor | None = None,
        **given: Any,
    ) -> ModelOutput | torch.LongTensor:
        own = {name: given.pop(name) for name in OWN if name in given}
        lost = _lost_arguments(self)
        rows = read_rows(model, input_ids, inputs_tensor, generation_config, stopping_criteria, given)
        check_processors(logits_processor)
        engine = api.load(model, tokenizer=_tokenizer(own, lost), **_loading(own))
        options = _options(rows, own, sampled=bool(generation_config.do_sample))
        jobs, _ = engine.jobs(list(rows.prompts), own.get("references"), options)
        call = _Call(engine, model, rows, jobs, options)
        call.prepare(logits_processor, stopping_criteria, generation_config)
        streamer: Any = given.get("streamer") or lost.get("streamer")
        if own.get("copyspec_streamer") is not None:
            streamer = own["copyspec_streamer"]
            streamer.put(input_ids.cpu())
        call.run(streamer)
        return call.output(generation_config)


class _Call:
    """One call of `generate`, from its rows to what it gives back."""

    def __init__(
        self, engine: Engine, model: PreTrainedModel, rows: Rows, jobs: list[Job], options: CallOptions
    ) -> None:
        self._engine, self._model, self._rows, self._jobs, self._options = engine, model, rows, jobs, options
        self._logits: list[ScoreRecorder] | None = None
        self._scores: list[ScoreRecorder] | None = None

    def prepare(
        self, processors: LogitsProcessorList, criteria: StoppingCriteriaList, config: GenerationConfig
    ) -> None:
        """Gives each request what `generate` has prepared for its row, in place of what copyspec would."""
        ids, device = self._rows.ids, self._model.device
        if config.return_dict_in_generate and config.output_logits:
            self._logits = [ScoreRecorder() for _ in self._jobs]
        if config.return_dict_in_generate and config.output_scores:
            self._scores = [ScoreRecorder() for _ in self._jobs]
        for row, job in enumerate(self._jobs):
            padding = 0 if self._model.config.is_encoder_decoder else ids.shape[1] - len(job.request.prompt)
            own = row_processors(processors, row, len(self._jobs), ids[row : row + 1, :padding].to(device))
            own = [*(self._logits or ())[row : row + 1], *own, *(self._scores or ())[row : row + 1]]
            stops = row_stops(criteria, ids[row].tolist(), self._rows.max_new_tokens, device)
            job.request = replace(
                job.request,
                processors=own,
                stops=[*([job.stop_strings] if job.stop_strings is not None else []), *stops],
                # Rows of equal prompts draw different samples.
                sampling=replace(job.request.sampling, sample=row),
            )

    def run(self, streamer: BaseStreamer | None) -> None:
        """Decodes all rows."""
        columns = None if streamer is None else StreamerColumns(streamer, len(self._jobs), self._rows.pad)
        steps = self._engine.steps([job.request for job in self._jobs], self._options)
        try:
            for outputs in steps:
                for output in outputs:
                    self._jobs[output.row].add(output)
                    if columns is not None:
                        columns.push(output.row, output.tokens, ended=output.finish is not None)
                if columns is not None:
                    columns.flush()
        finally:
            steps.close()
        if streamer is not None:
            streamer.end()  # type: ignore[no-untyped-call]

    def output(self, config: GenerationConfig) -> ModelOutput | torch.LongTensor:
        """As `generate` gives it back."""
        found = sequences(self._rows.ids, [job.tokens for job in self._jobs], self._rows.pad)
        if not config.return_dict_in_generate:
            return found
        kind = CopiedEncoderDecoderOutput if self._model.config.is_encoder_decoder else CopiedDecoderOnlyOutput
        results = [job.result for job in self._jobs if job.result is not None]
        return kind(sequences=found, scores=stacked(self._scores), logits=stacked(self._logits), results=results)


def _options(rows: Rows, own: Mapping[str, Any], *, sampled: bool) -> CallOptions:
    given = {name: own[name] for name in CALL_OPTIONS if own.get(name) is not None}
    # Drawn from torch's generator, so that `set_seed` decides; greedy calls leave it alone, as `generate` does.
    seed = given.pop("seed", None) if not sampled or "seed" in given else int(torch.randint(2**31 - 1, ()))
    given |= {
        "max_new_tokens": rows.max_new_tokens,
        "temperature": 1.0 if sampled else 0.0,  # the config's own temperature is among its processors
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": seed,
        "n": rows.samples,
        "ignore_eos": True,  # of the model's config: the call's decides
        "stop_token_ids": sorted(rows.eos),
        "batch_size": len(rows.ids),
    }
    return check_options(given)


def _loading(own: Mapping[str, Any]) -> dict[str, Any]:
    return {"on_unsupported": own["on_unsupported"]} if own.get("on_unsupported") is not None else {}


def _tokenizer(own: Mapping[str, Any], lost: Mapping[str, object]) -> PreTrainedTokenizerBase | None:
    """The one that was given; None: the model's own, found by its name."""
    tokenizer = own.get("copyspec_tokenizer") or own.get("tokenizer") or lost.get("tokenizer")
    check_type(tokenizer is None or callable(tokenizer), "tokenizer", tokenizer, "a transformers tokenizer")
    return cast("PreTrainedTokenizerBase | None", tokenizer)


def _lost_arguments(loop: object) -> Mapping[str, object]:
    """`tokenizer` and `streamer` as the caller of `generate` gave them.

    transformers (5.17 to 5.23) takes both away from loops that are not its own. They are still in the frame of
    `generate`'s wrapper, whose `custom_generate` is this very object. Where that is not found, nothing is lost but
    these two, and `copyspec_tokenizer` and `copyspec_streamer` say the same.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            break
        keywords = frame.f_locals.get("kwargs")
        if isinstance(keywords, dict) and keywords.get("custom_generate") is loop:
            return keywords
        frame = frame.f_back
    return {}


hf = CustomGenerate()
"""`model.generate(..., custom_generate=copyspec.hf)`: `generate`'s own loop, with copies verified instead of one token
a pass. Returns what `generate` returns; greedy outputs are equal token for token in float32."""


def generate(model: PreTrainedModel, *, tokenizer: Any = None, streamer: Any = None, **given: Any) -> Any:
    """`model.generate` with copyspec, for folders that `custom_generate="folder"` loads: it takes what `generate`
    takes, `stop_strings` too, and gives back the same."""
    strings = given.pop("stop_strings", None)
    if strings is not None:
        from transformers import StoppingCriteriaList, StopStringCriteria

        check_type(tokenizer is not None, "tokenizer", tokenizer, "the model's tokenizer, for stop_strings")
        criterion = StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)
        given["stopping_criteria"] = StoppingCriteriaList([*(given.get("stopping_criteria") or []), criterion])
    generator: Any = model
    return generator.generate(**given, custom_generate=hf, copyspec_tokenizer=tokenizer, copyspec_streamer=streamer)
