"""Measures draft models beside copying: tokens per call with copies only, a model only, and both in one tree.

python -m benchmarks.drafts.models --draft FOLDER --transcripts PATHS... [--rows 20] [--nodes 32] [--json FILE]
python -m benchmarks.drafts.models --model FOLDER --draft layers:2 --prompts FILE [--temperature 0.8]
python -m benchmarks.drafts.models --model default --draft FOLDER --sources PATHS... [--least-overlap 100]

With --transcripts, recorded outputs are replayed in the draft model's tokens, and no target runs. With --model that
model generates, and the outputs of all methods must be equal: it continues the lines of --prompts, or corrects the
sources of --sources (.jsonl.gz rows with a "source"), each being the text edited. --least-overlap keeps the sources
that the plain output repeats least, measured by the share of output tokens in runs of four or more source tokens.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from benchmarks.drafts.model_chain import LanguageModelDrafter
from benchmarks.drafts.prompts import Prompt, least_overlap, read_prompts
from benchmarks.transcripts import EDIT_TASKS, Transcript, choose_rows, end_token, read_transcripts, tokenise
from copyspec.budget import Budget
from copyspec.decoding.loop import DecodeSettings, decode
from copyspec.decoding.requests import Request
from copyspec.drafters import create
from copyspec.drafters.blend import BlendDrafter, PredictorDrafter
from copyspec.drafters.predictors.base import RowContext
from copyspec.drafters.predictors.early_exit import early_exit
from copyspec.drafters.predictors.language_model import DraftModel, ModelPredictor
from copyspec.drafters.predictors.ngrams import NGrams
from copyspec.engine.logits.language import Language
from copyspec.models.loading import resolve_name
from copyspec.models.pretrained import Pretrained
from copyspec.options import DraftOptions, SamplingOptions
from copyspec.sources import Source
from copyspec.targets import wrap
from copyspec.text.codec import Codec
from kit.reporting import machine, ratio, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from copyspec.drafters.base import Drafter

METHODS = ("plain", "copy", "model chain", "model tree", "both")
LAYERS = "layers:"


@dataclass(slots=True)
class Tally:
    """Counts of one method on one set."""

    set: str
    method: str
    rows: int = 0
    output_tokens: int = 0
    calls: int = 0
    reads: int = 0  # forward passes of the draft model
    nodes: int = 0
    seconds: float = 0.0
    accepted_by_source: dict[str, int] = field(default_factory=dict)

    @property
    def line(self) -> dict[str, object]:
        per_call = round(ratio(self.output_tokens, self.calls), 4)
        return asdict(self) | {
            "tokens_per_call": per_call,
            "calls_per_token": round(ratio(self.calls, self.output_tokens), 4),
            "reads_per_call": round(ratio(self.reads, self.calls), 3),
        }


class CountingModel(DraftModel):
    """A draft model that counts its forward passes."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(wrap(model))
        self.reads = 0

    def took(self, seconds: float, columns: int) -> None:
        self.reads += 1
        super().took(seconds, columns)


def make(
    method: str, model: DraftModel, sources: Sequence[Source], eos: int, row: RowContext, ngrams: NGrams | None = None
) -> Drafter:
    """Make the drafter of one row, for any method except "plain"."""
    if method == "copy":
        return create(sources, [eos], ngrams=ngrams)
    if method == "model chain":
        return LanguageModelDrafter(model, row)
    predictors = [ModelPredictor(model, row)]
    if method == "model tree":
        return PredictorDrafter(predictors)
    return BlendDrafter(sources, predictors, eos=eos, ngrams=ngrams)


def replayed(
    rows: Iterable[Transcript], tokenizer: Tokenizer, draft: PreTrainedModel, methods: Sequence[str], nodes: int
) -> list[Tally]:
    """Replay recorded outputs: each call accepts the longest matching path and one token of the target's own."""
    from benchmarks.replay.run import Tally as Replayed
    from benchmarks.replay.run import replay

    eos = end_token(tokenizer)
    tallies: dict[tuple[str, str], Tally] = {}
    models = {method: CountingModel(draft) for method in methods}
    for row in rows:
        tokens = tokenise(row, tokenizer, eos)
        if len(tokens.prompt) + len(tokens.output) > (models[methods[0]].target.max_length or sys.maxsize):
            continue
        kinds = [
            "edit" if index == 0 and row.task in EDIT_TASKS else "reference" for index in range(len(tokens.references))
        ]
        sources = [Source(reference, kind) for reference, kind in zip(tokens.references, kinds, strict=True)]  # type: ignore[arg-type]
        sources.append(Source(tokens.prompt, "prompt"))
        context = RowContext(tokens.prompt, SamplingOptions(), len(tokens.prompt), models[methods[0]].target.vocab_size)
        for method in methods:
            tally = tallies.setdefault((row.task, method), Tally(row.task, method))
            counted, before = Replayed(), models[method].reads
            started = time.perf_counter()
            if method == "plain":
                counted.calls = counted.output_tokens = len(tokens.output)
            else:
                drafter = make(method, models[method], sources, eos, context, tokens.ngrams)
                replay(drafter, tokens.output, Budget(nodes), counted)
            tally.seconds += time.perf_counter() - started
            tally.rows += 1
            tally.output_tokens += counted.output_tokens
            tally.calls += counted.calls
            tally.nodes += counted.nodes
            tally.reads += models[method].reads - before
    return list(tallies.values())


def spoken(
    name: str,
    prompts: Sequence[Prompt],
    eos: frozenset[int],
    models: tuple[PreTrainedModel, PreTrainedModel],
    options: argparse.Namespace,
    ngrams: NGrams | None = None,
) -> list[Tally]:
    """Decode the target's own outputs with every method. Raises ValueError if they differ."""
    target, tallies = wrap(models[0]), []
    reference: list[list[int]] = []
    for method in options.methods.split(","):
        model = CountingModel(models[1])
        tally = Tally(name, method)
        for index, prompt in enumerate(prompts):
            sampling = SamplingOptions(options.temperature, seed=index)
            tokens, sources = list[int](), prompt.sources
            row = RowContext(prompt.tokens, sampling, len(prompt.tokens), target.vocab_size)
            request = Request(prompt.tokens, options.tokens, sampling, eos, sources)
            if method != "plain":
                request.drafter = partial(make, method, model, sources, min(eos), row, ngrams)
            started = time.perf_counter()
            draft = DraftOptions(max_nodes=options.nodes, adaptive=options.adaptive)
            for outputs in decode(target, [request], DecodeSettings(draft=draft)):
                for output in outputs:
                    tokens += output.tokens
                    if output.stats is not None:
                        tally.calls += output.stats.num_passes
                        tally.nodes += output.stats.num_draft_tokens
                        for kind, count in output.stats.num_accepted_tokens_per_source.items():
                            tally.accepted_by_source[kind] = tally.accepted_by_source.get(kind, 0) + count
            tally.seconds += time.perf_counter() - started
            tally.rows += 1
            tally.output_tokens += len(tokens)
            if index == len(reference):
                reference.append(tokens)
            elif reference[index] != tokens:
                raise ValueError(f"prompt {index}: {method!r} gave other tokens than {options.methods.split(',')[0]!r}")
        tally.reads = model.reads
        tallies.append(tally)
    return tallies


def table(tallies: Sequence[Tally]) -> str:
    lines = [
        f"{'set':<16}{'method':<14}{'rows':>5}{'tokens':>8}{'tok/call':>10}{'calls/tok':>11}{'reads/call':>12}{'s':>8}"
    ]
    for tally in tallies:
        line = tally.line
        lines.append(
            f"{tally.set[:15]:<16}{tally.method:<14}{tally.rows:>5}{tally.output_tokens:>8}"
            f"{line['tokens_per_call']:>10.3f}{line['calls_per_token']:>11.3f}{line['reads_per_call']:>12.2f}{tally.seconds:>8.1f}"
        )
    return "\n".join(lines)


def load(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from transformers import AutoModelForCausalLM

    pretrained = Pretrained(resolve_name(name))
    model = pretrained.model(AutoModelForCausalLM, pretrained.config(), dtype=torch.float32)
    model.train(False)
    return model, pretrained.tokenizer()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafts.models", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--model", default=None, help="target for --prompts or --sources: default, a folder or a hub id"
    )
    parser.add_argument("--draft", required=True, help=f"folder or hub id of the draft model, or {LAYERS}N of --model")
    parser.add_argument("--transcripts", nargs="*", default=[], help=".jsonl.gz files or folders of them")
    parser.add_argument("--tasks", default="", help="comma-separated tasks (default: all)")
    parser.add_argument("--rows", type=int, default=10, help="maximum rows per set")
    parser.add_argument("--prompts", default=None, help="file with one prompt per line")
    parser.add_argument(
        "--sources", nargs="*", default=[], help=".jsonl.gz files whose rows have a `source` to correct"
    )
    parser.add_argument("--least-overlap", type=int, default=0, help="number of --sources to keep (default: all)")
    parser.add_argument("--tokens", type=int, default=64, help="maximum output tokens per prompt")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--nodes", type=int, default=32, help="maximum draft nodes per call")
    parser.add_argument(
        "--adaptive", action="store_true", help="adapt draft sizes to the costs measured on this machine"
    )
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--json", default=None, help="write the figures to this file")
    options = parser.parse_args(arguments)
    unknown = [method for method in options.methods.split(",") if method not in METHODS]
    if unknown:
        parser.error(f"--methods: no method {unknown[0]!r}; there are {', '.join(METHODS)}")
    if (bool(options.transcripts), bool(options.prompts), bool(options.sources)).count(True) != 1:
        parser.error("give one of --transcripts, --prompts and --sources")
    if not options.transcripts and not options.model:
        parser.error("--prompts and --sources need --model, the model that speaks")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.transcripts:
        draft, tokenizer = load(options.draft)
        rows = choose_rows(read_transcripts(options.transcripts), options.rows)
        rows = [row for row in rows if not options.tasks or row.task in options.tasks.split(",")]
        backend = cast("Tokenizer", tokenizer.backend_tokenizer)
        tallies = replayed(rows, backend, draft, options.methods.split(","), options.nodes)
    else:
        model, tokenizer = load(options.model)
        layers = options.draft.startswith(LAYERS)
        draft = early_exit(model, int(options.draft[len(LAYERS) :])) if layers else load(options.draft)[0]
        eos = frozenset({int(tokenizer.eos_token_id)})
        prompts = read_prompts(tokenizer, options)
        if options.least_overlap:
            prompts = least_overlap(wrap(model), prompts, eos, options)
        language = Language(Codec(tokenizer), int(model.config.vocab_size))
        name = Path((options.sources or [options.prompts])[0]).name.split(".")[0]
        tallies = spoken(name, prompts[: options.rows], eos, (model, draft), options, language.ngrams)
    print(table(tallies))
    if options.json:
        write_json(
            options.json, {"machine": machine(), "options": vars(options), "lines": [tally.line for tally in tallies]}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
