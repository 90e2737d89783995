"""`custom_generate=copyspec.hf`: runs copyspec as the decoding loop inside transformers' `model.generate`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from copyspec import api
from copyspec.common.checks import check_type
from copyspec.engine.asking.call_options import CallOptions, check_options
from copyspec.engine.logits.row_processors import check_processors
from copyspec.engine.results import Result
from copyspec.integrations.transformers.arguments import CACHES, refuse_encoded, refuse_options
from copyspec.integrations.transformers.caches import Finished, replay
from copyspec.integrations.transformers.call import (
    Prepared,
    Rows,
    ScoreRecorder,
    Shown,
    read_rows,
    row_processors,
    row_stops,
)
from copyspec.integrations.transformers.embeds import FirstStep, first_step
from copyspec.models.loading import check_own_steps
from copyspec.targets.model.generation import OwnStopStrings

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
    from transformers.generation.streamers import BaseStreamer
    from transformers.utils.generic import ModelOutput

    from copyspec.decoding.requests import StepOutput
    from copyspec.engine.engine import Engine
    from copyspec.engine.running.jobs import Job
    from copyspec.targets.rows.prefixes import Layers


class NoTokenizer(PreTrainedTokenizerBase):
    """Decodes all tokens to no text, and raises TypeError where a text is to be encoded."""

    is_fast = False

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def decode(self, *args: object, **kwargs: object) -> str:
        return ""

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("the call holds a text, and the model has no name to find its tokenizer by; give tokenizer=")

    def get_vocab(self) -> NoReturn:
        self()


CALL_OPTIONS = (
    *("edit_source", "prediction", "stop", "seed"),
    *("drafter", "draft_model", "datastore", "max_draft_nodes", "output_cache", "threads"),
)
"""Options of `copyspec.generate` that `model.generate` accepts in addition to its own; for the rest it has names of its
own."""

OWN = (*CALL_OPTIONS, "references", "tokenizer", "copyspec_tokenizer", "copyspec_streamer", "on_unsupported")

_LOOP = ("model", "input_ids", "logits_processor", "stopping_criteria", "generation_config", "inputs_tensor")


_NO_TOKENIZER = NoTokenizer()  # type: ignore[no-untyped-call]  # one, so that calls of a model share its engine


class CustomGenerate:
    """The decoding loop for `model.generate(custom_generate=...)`. It is stateless; use the instance `copyspec.hf`."""

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature from which `generate` learns our keyword names."""
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
        **kwargs: Any,
    ) -> ModelOutput | torch.LongTensor:
        check_own_steps(model)
        own = {name: kwargs.pop(name) for name in OWN if name in kwargs}
        explicit = _explicit_arguments(self)
        lost = explicit or {}
        refuse_encoded(lost)
        kwargs.setdefault("synced_gpus", lost.get("synced_gpus"))
        prepared = Prepared(input_ids, inputs_tensor, generation_config, stopping_criteria, kwargs, explicit)
        refuse_options(generation_config)
        check_processors(logits_processor, "leave out custom_generate")
        first: FirstStep | None = None
        if kwargs.get("inputs_embeds") is not None and not model.config.is_encoder_decoder:
            first, prepared = first_step(model, prepared, logits_processor)
        rows = read_rows(model, prepared)
        if first is not None:
            rows = first.before(rows, input_ids, stopping_criteria)
        engine = api.load(model, tokenizer=_tokenizer(model, own, lost), **_loading(own))
        options = _options(rows, own, sampled=bool(generation_config.do_sample))
        jobs, _ = engine.jobs(list(rows.prompts), own.get("references"), options)
        call = _Call(engine, prepared, rows, jobs, options, first)
        call.prepare(logits_processor)
        streamer: Any = kwargs.get("streamer") or lost.get("streamer")
        if own.get("copyspec_streamer") is not None:
            streamer = own["copyspec_streamer"]
            streamer.put(input_ids.cpu())
        call.run(streamer)
        return call.output()


class _Call:
    """One call of `generate`, from its rows to its output."""

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        rows: Rows,
        jobs: list[Job],
        options: CallOptions,
        first: FirstStep | None,
    ) -> None:
        """`first`: a step that was made before; its tokens are the last column of the rows' ids."""
        self._engine, self._model, self._prepared = engine, engine.model, prepared
        self._rows, self._jobs, self._options, self._first = rows, jobs, options, first
        self._logits: list[ScoreRecorder] | None = None
        self._scores: list[ScoreRecorder] | None = None
        self._layers: dict[int, Layers] = {}  # keys and values of rows that have ended

    def prepare(self, processors: LogitsProcessorList) -> None:
        """Replace each request's processors and stop conditions with those that `generate` prepared for its row."""
        ids, device, criteria = self._rows.ids, self._model.device, self._prepared.criteria
        config = self._prepared.config
        if config.return_dict_in_generate and config.output_logits:
            self._logits = [ScoreRecorder() for _ in self._jobs]
        if config.return_dict_in_generate and config.output_scores:
            self._scores = [ScoreRecorder() for _ in self._jobs]
        keeps = self._is_recorded() and self._rows.seen is not None and bool(self._rows.seen.all())
        for row, job in enumerate(self._jobs):
            start = ids[row].tolist() if self._model.config.is_encoder_decoder else None
            read = len(job.request.prompt if start is None else start)
            own = row_processors(processors, row, len(self._jobs), Shown(ids[row : row + 1].to(device), read))
            own = [*(self._logits or ())[row : row + 1], *own, *(self._scores or ())[row : row + 1]]
            stops = row_stops(criteria, ids[row].tolist(), self._rows.max_new_tokens, device)
            if self._options.stop_strings and job.stop_strings is not None:  # else the model's, which are criteria
                stops = [job.stop_strings, *stops]
            job.request = replace(
                job.request,
                processors=own,
                stops=stops,
                start=start,
                past=self._rows.pasts[row],
                take=partial(self._layers.__setitem__, row) if keeps else None,
                # Rows with equal prompts must draw different samples.
                sampling=replace(job.request.sampling, sample=row),
            )

    def run(self, streamer: BaseStreamer | None) -> None:
        """Decode all rows."""
        columns = None if streamer is None else StreamerColumns(streamer, len(self._jobs), self._rows.pad)

        def add(row: int, output: StepOutput) -> None:
            self._jobs[row].add(output)
            if columns is not None:
                columns.push(row, output.tokens, ended=output.finish is not None)

        going = list(range(len(self._jobs)))
        if self._first is not None:
            for row in going:
                add(row, self._first.output(row))
                self._first.record(row, self._scores, self._logits)
            going = [row for row in going if not self._first.ended[row]]
        steps = self._engine.steps([self._jobs[row].request for row in going], self._options)
        try:
            for outputs in steps:
                for output in outputs:
                    add(going[output.row], output)
                if columns is not None:
                    columns.flush()
            if columns is not None:
                columns.flush()
        finally:
            steps.close()
        if streamer is not None:
            streamer.end()  # type: ignore[no-untyped-call]

    def output(self) -> ModelOutput | torch.LongTensor:
        """The output in the form that `generate` returns; a cache of the caller's holds its tokens then."""
        config, ids = self._prepared.config, self._rows.ids
        if self._first is not None:
            ids = ids[:, :-1]
        tokens = sequences(ids, [job.tokens for job in self._jobs], self._rows.pad)
        recorded: dict[str, Any] = {}
        if self._is_recorded():
            layers = [self._layers[row] for row in range(len(ids))] if len(self._layers) == len(ids) else None
            columns = ids.shape[1] if self._rows.seen is None else self._rows.seen.shape[1]
            read, width = (tokens, ids.shape[1]) if self._first is None else (tokens[:, ids.shape[1] :], 1)
            with self._engine.forward_lock:
                finished = Finished(read, width, columns, layers)
                recorded = replay(self._model, finished, self._prepared.arguments, config)
        if not config.return_dict_in_generate:
            return tokens
        kind = CopiedEncoderDecoderOutput if self._model.config.is_encoder_decoder else CopiedDecoderOnlyOutput
        results = [job.result for job in self._jobs if job.result is not None]
        scores, logits = stacked(self._scores), stacked(self._logits)
        return kind(sequences=tokens, scores=scores, logits=logits, results=results, **recorded)

    def _is_recorded(self) -> bool:
        """Whether the call returns more than tokens and scores, or has a cache of its caller's to fill."""
        config, explicit = self._prepared.config, self._prepared.explicit
        if config.return_dict_in_generate:
            return config.use_cache is not False or bool(config.output_hidden_states or config.output_attentions)
        return explicit is None or any(explicit.get(name) is not None for name in CACHES)


def _options(rows: Rows, own: Mapping[str, Any], *, sampled: bool) -> CallOptions:
    options = {name: own[name] for name in CALL_OPTIONS if own.get(name) is not None}
    seed = options.pop("seed", None)
    if sampled and seed is None:
        # From torch's generator, so that `set_seed` works; greedy calls do not touch it, as in `generate`.
        seed = int(torch.randint(2**31 - 1, (), device="cpu"))
    options |= {
        "max_new_tokens": rows.max_new_tokens,
        "temperature": 1.0 if sampled else 0.0,  # the config's temperature is among its processors
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": seed,
        "n": rows.samples,
        "ignore_eos": True,  # the call's end-of-sequence ids apply, not the model config's
        "stop_token_ids": sorted(rows.eos),
        "batch_size": len(rows.ids),
    }
    return check_options(options)


def _loading(own: Mapping[str, Any]) -> dict[str, Any]:
    return {"on_unsupported": own["on_unsupported"]} if own.get("on_unsupported") is not None else {}


def _tokenizer(
    model: PreTrainedModel, own: Mapping[str, Any], lost: Mapping[str, object]
) -> PreTrainedTokenizerBase | None:
    """The tokenizer that was given; None: load the model's own by its name. A model without a name gets one that
    encodes nothing, which token ids do not need."""
    tokenizer = own.get("copyspec_tokenizer") or own.get("tokenizer") or lost.get("tokenizer")
    check_type(tokenizer is None or callable(tokenizer), "tokenizer", tokenizer, "a transformers tokenizer")
    reads_text = own.get("stop") is not None or own.get("output_cache") is not None
    if tokenizer is None and not model.name_or_path and not reads_text:
        return _NO_TOKENIZER
    return cast("PreTrainedTokenizerBase | None", tokenizer)


def _explicit_arguments(loop: object) -> Mapping[str, object] | None:
    """The keyword arguments as given by the caller of `generate`; None if they are not found.

    transformers (5.17 to 5.24) removes `tokenizer`, `streamer` and `synced_gpus` from those of custom loops. They are
    still in the frame of `generate`'s wrapper, recognised by its `custom_generate`. If that frame is not found, the
    caller can give `copyspec_tokenizer` and `copyspec_streamer` instead.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            break
        keywords = frame.f_locals.get("kwargs")
        if isinstance(keywords, dict) and keywords.get("custom_generate") is loop:
            return keywords
        frame = frame.f_back
    return None


hf = CustomGenerate()
"""Decoding loop for `model.generate(..., custom_generate=copyspec.hf)` that verifies copied drafts. The return value
has the same form, and greedy outputs are equal token for token in float32."""


def generate(model: PreTrainedModel, *, tokenizer: Any = None, streamer: Any = None, **kwargs: Any) -> Any:
    """`model.generate` with copyspec, for folders loaded with `custom_generate="folder"`. It accepts what `generate`
    accepts, including `stop_strings`, and returns the same."""
    from transformers import StoppingCriteriaList, StopStringCriteria

    config, criteria = kwargs.get("generation_config"), kwargs.get("stopping_criteria") or []
    configs = [settings for settings in (config, model.generation_config) if settings is not None]
    default = next((settings.stop_strings for settings in configs if settings.stop_strings is not None), None)
    strings = kwargs.pop("stop_strings", default)
    if strings is not None:
        check_type(tokenizer is not None, "tokenizer", tokenizer, "the model's tokenizer, for stop_strings")
        # A criterion of the caller's takes its place, as in `generate`.
        if not any(type(criterion) is StopStringCriteria for criterion in criteria):
            criterion = StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)
            kwargs["stopping_criteria"] = StoppingCriteriaList([*criteria, criterion])
    # The strings are a criterion now: `generate`, which gets no tokenizer, must not find them in a config.
    if config is None:
        kwargs["stop_strings"] = None
    else:
        kwargs["generation_config"] = OwnStopStrings.of(config)
    generator: Any = model
    return generator.generate(**kwargs, custom_generate=hf, copyspec_tokenizer=tokenizer, copyspec_streamer=streamer)


@dataclass
class CopiedDecoderOnlyOutput(GenerateDecoderOnlyOutput):
    """`generate`'s output without attentions, hidden states and cache, plus copyspec's results row by row."""

    results: list[Result] | None = None


@dataclass
class CopiedEncoderDecoderOutput(GenerateEncoderDecoderOutput):
    """`generate`'s output without attentions, hidden states and cache, plus copyspec's results row by row."""

    results: list[Result] | None = None


class StreamerColumns:
    """Passes tokens to a streamer as `generate` does: one column of all rows at a time, [rows], with ended rows
    padded."""

    def __init__(self, streamer: BaseStreamer, rows: int, pad: int) -> None:
        self._streamer, self._pad = streamer, pad
        self._waiting: list[list[int]] = [[] for _ in range(rows)]
        self._ended = [False] * rows

    def push(self, row: int, tokens: Sequence[int], *, ended: bool) -> None:
        """Add a step's tokens to a row."""
        self._waiting[row].extend(tokens)
        self._ended[row] = ended

    def flush(self) -> None:
        """Pass on all columns for which every row has a token or has ended."""
        while any(self._waiting) and all(w or e for w, e in zip(self._waiting, self._ended, strict=True)):
            column = [waiting.pop(0) if waiting else self._pad for waiting in self._waiting]
            self._streamer.put(torch.tensor(column, device="cpu"))  # type: ignore[no-untyped-call]


def sequences(ids: torch.Tensor, outputs: Sequence[Sequence[int]], pad: int) -> torch.LongTensor:
    """`ids`, [rows, width], followed by each row's output padded with `pad`."""
    longest = max(map(len, outputs))
    filled = [[*output, *[pad] * (longest - len(output))] for output in outputs]
    return cast("torch.LongTensor", torch.cat([ids, torch.tensor(filled, dtype=ids.dtype, device=ids.device)], dim=1))


def stacked(records: Sequence[ScoreRecorder] | None) -> tuple[torch.Tensor] | None:
    """The scores of each step, [rows, V], zero for rows that had ended. (transformers annotates a tuple of one
    step.)"""
    if records is None:
        return None
    zeros = torch.zeros_like(records[0].scores[0])
    steps = range(max(len(record.scores) for record in records))
    stacks = (
        torch.stack([record.scores[step] if step < len(record.scores) else zeros for record in records])
        for step in steps
    )
    return cast("tuple[torch.Tensor]", tuple(stacks))
