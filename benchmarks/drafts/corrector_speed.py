"""Measures a corrector that drafts for a larger model, end to end, against copies alone.

python -m benchmarks.drafts.corrector_speed [--correctors smollm2-correct default]
    [--target shape:qwen2.5-1.5b] [--rows 24] [--paper-rows 200 --keep NAME] [--json FILE]

Each corrector is measured twice: with its first choices only (its correction), and with all four texts that it writes
(also with further choices), which take it several times as long.

Run here: the target has a real architecture and random weights, and replays recorded corrections, so that its passes
have their real cost. Outputs are compared with the recorded ones. The corrector's seconds are part of the total. The
corrector is given `--together` sources at once, as `copyspec gec` does, and again one at a time, to count its passes.

On paper: the larger model's passes are those of a replay at 32 nodes (`benchmarks.drafts.hypotheses`). A pass takes the
time of reading its weights at a share of the device's bandwidth, and at least `--least-ms`; prompts also take the time
of their arithmetic. The corrector's passes are those counted here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time

import torch

from benchmarks.drafts.hypotheses import cut, write_versions
from benchmarks.replay.run import Tally, copyspec_drafter, replay, row_sources
from benchmarks.speed.methods import Limits, Method, Methods
from benchmarks.speed.models import Model, load_model
from benchmarks.speed.prompts import Case
from benchmarks.transcripts import Transcript, choose_rows, end_token, load_tokenizer, read_transcripts, tokenise
from copyspec import Input
from copyspec.api import load_corrector
from copyspec.budget import Budget
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.pipelines import ModelCorrector, ModelOptions, Outcome
from copyspec.pipelines.editing.versions import written_versions  # type: ignore[import-not-found]
from kit import places
from kit.reporting import machine, ratio, write_json

NODES = 32
NODES_COST = 1.08  # cost of a pass over 32 nodes, relative to one token: `benchmarks.speed.simulation`, "gpu"
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Device:
    """Computed times of forward passes."""

    bandwidth: float  # bytes per second
    share: float  # fraction of the bandwidth that a pass reaches
    flops: float  # per second, for the matrix products of a prompt
    least: float  # minimum seconds of any pass

    def step(self, size: float) -> float:
        """Seconds of a pass over few tokens; `size`: bytes of the weights."""
        return max(self.least, size / (self.bandwidth * self.share))

    def prompt(self, size: float, tokens: float) -> float:
        """Seconds of the prefill of a prompt, with two bytes per weight."""
        return max(self.step(size), size * tokens / self.flops)


class _FirstChoices:
    """A corrector that is only asked for its first choices."""

    is_encoder_decoder = True  # so that its outputs are not continued

    def __init__(self, corrector: ModelCorrector) -> None:
        self._corrector, self.prefilled_prompt = corrector, corrector.prefilled_prompt

    def continuations(self, inputs: Iterable[Input]) -> Iterator[tuple[int, str]]:
        return iter(())

    def scored(self, texts: Iterable[str | None], logprobs: int | None) -> Iterator[tuple[int, Outcome]]:
        return self._corrector.correct(texts)


class Writer:
    """A corrector, with its passes and seconds so far."""

    def __init__(self, name: str) -> None:
        self.name, self.engine = name, load_corrector(name)
        self.engine.threads = torch.get_num_threads()
        self.corrector = ModelCorrector(self.engine, ModelOptions(by_sentence=True))
        self.size = weight_bytes(self.engine.model)
        self.passes, self.cpu, self.wall = 0, 0.0, 0.0

    def versions(self, texts: Sequence[str], together: int, *, first: bool = False) -> dict[str, tuple[str, ...]]:
        """Return the corrector's outputs for each text, `together` texts at once. `first`: only the first choices."""
        self.passes, self.cpu, self.wall = 0, 0.0, 0.0
        versions: dict[str, tuple[str, ...]] = {}
        with self._counted():
            for at in range(0, len(texts), together):
                asked = texts[at : at + together]
                cpu, wall = process_time(), perf_counter()
                written = written_versions(_FirstChoices(self.corrector) if first else self.corrector, asked)
                versions.update((text, row[: 1 if first else None]) for text, row in zip(asked, written, strict=True))
                self.cpu += process_time() - cpu
                self.wall += perf_counter() - wall
        return versions

    @contextmanager
    def _counted(self) -> Iterator[None]:
        def count(*_: object) -> None:
            self.passes += 1

        handle = self.engine.model.register_forward_hook(count)
        try:
            yield
        finally:
            handle.remove()


def weight_bytes(model: torch.nn.Module) -> float:
    """Bytes that a pass reads in bfloat16: all weights except the input embeddings."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    tied = head is not None and head.weight is table.weight
    count = sum(weight.numel() for weight in model.parameters())
    return 2.0 * (count if tied else count - table.weight.numel())


def run_here(
    methods: Methods, rows: Sequence[Transcript], writers: dict[str, Writer], options: argparse.Namespace
) -> dict[str, Figures]:
    """Run the target; return wall seconds, CPU seconds and passes over all rows with copies alone and with each
    corrector."""
    tokenizer, texts = load_tokenizer(options.tokenizer), list(dict.fromkeys(row.references[0] for row in rows))
    eos = end_token(tokenizer)
    limits = Limits(4096, frozenset({eos}), NODES)
    result: dict[str, Figures] = {"copies": dict.fromkeys(("cpu", "wall", "passes"), 0.0)}
    further: dict[str, dict[str, tuple[str, ...]]] = {"copies": {}}
    for name, writer, first in _ways(writers):
        writer.versions(texts[:1], 1, first=first)  # warm-up
        further[name] = writer.versions(texts, options.together, first=first)
        counts = {"corrector cpu": writer.cpu, "corrector wall": writer.wall, "corrector passes": writer.passes}
        result[name] = {"cpu": writer.cpu, "wall": writer.wall, "passes": 0.0, **counts}
    ways: dict[str, Method] = {name: methods.own(_drafter, NODES) for name in result}
    for number, row in enumerate((rows[0], *rows)):
        order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
        for name in order:
            versions = further[name].get(row.references[0], ())
            tokens = tokenise(replace(row, references=(*row.references, *versions)), tokenizer, eos)
            case = Case(tokens.prompt, tuple(row_sources(row.task, tokens)), tokens.output, tokens.ngrams)
            cpu, wall = process_time(), perf_counter()
            run = ways[name]([case], limits)
            if run.outputs != [tokens.output]:
                raise AssertionError(f"{name}: another output for row {row.id!r}")
            if number:  # the first row is decoded twice, as a warm-up
                result[name]["cpu"] += process_time() - cpu
                result[name]["wall"] += perf_counter() - wall
                result[name]["passes"] += run.calls
    for name in further.keys() - {"copies"}:
        for kind in ("cpu", "wall"):
            result[name][f"over copies, {kind}"] = ratio(result["copies"][kind], result[name][kind])
        saved = result["copies"]["passes"] - result[name]["passes"]
        result[name]["pays from, cpu seconds a pass"] = ratio(result[name]["corrector cpu"], saved)
    return result


def on_paper(
    rows: Sequence[Transcript], writers: dict[str, Writer], options: argparse.Namespace, live: Sequence[str]
) -> dict[str, Figures]:
    """Compute milliseconds per source with copies alone and with each corrector, one source at a time and several at
    once."""
    tokenizer = load_tokenizer(options.tokenizer)
    eos, device = end_token(tokenizer), Device(options.bandwidth, options.share, options.flops, options.least_ms / 1e3)
    result: dict[str, Figures] = {}
    for name, writer, first in _ways(writers):
        keep = Path(f"{options.keep}.{writer.name}.jsonl") if options.keep else None
        known = write_versions((row.references[0] for row in rows), writer.corrector, keep)
        tallies, prompts = (Tally(), Tally()), []
        for row in rows:
            versions = known[row.references[0]][0][: 1 if first else None]
            for tally, further in zip(tallies, ((), versions), strict=True):
                tokens = tokenise(replace(row, references=(*row.references, *further)), tokenizer, eos)
                replay(copyspec_drafter(row.task, tokens), tokens.output, Budget(NODES), tally)
            prompts.append(len(tokens.prompt))
        copies, drafted = (tally.calls / len(rows) for tally in tallies)
        figures = {"passes, copies": copies, "passes": drafted}
        for together in dict.fromkeys((1, options.together)):
            writer.versions(live, together, first=first)
            figures[f"corrector's passes, {together} at once"] = passes = writer.passes / len(live)
            for target in options.paper:
                size = weight_bytes(load_model(target, "meta", torch.bfloat16).model)
                prompt, step = mean(device.prompt(size, count) for count in prompts), NODES_COST * device.step(size)
                whole = prompt + drafted * step + passes * device.step(writer.size)
                figures[f"{target}, pass, ms"] = device.step(size) * 1e3
                figures[f"{target}, copies, ms"] = 1e3 * (prompt + copies * step)
                figures[f"{target}, {together} at once, ms"] = 1e3 * whole
                figures[f"{target}, {together} at once, over copies"] = (prompt + copies * step) / whole
        result[name] = figures
    return result


def _ways(writers: Mapping[str, Writer]) -> Iterator[tuple[str, Writer, bool]]:
    """Yield (name, corrector, whether only its first choices are used)."""
    for name, writer in writers.items():
        yield f"{name}, first choices", writer, True
        yield name, writer, False


def _drafter(case: Case, ends: frozenset[int]) -> Drafter:
    return create(case.sources, ends, ngrams=case.ngrams)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    add("--correctors", nargs="+", default=["smollm2-correct", "default"])
    add("--models", default="gpt-4.1,claude,Llama-4", help="use outputs of models whose name contains this")
    add("--target", default="shape:qwen2.5-1.5b", help="target to run here (default: %(default)s)")
    add("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    add("--rows", type=int, default=24, help="rows of each file to run here")
    add("--together", type=int, default=8, help="number of sources given to the corrector at once")
    add(
        "--paper",
        nargs="+",
        default=["shape:llama-7b", "shape:llama3-70b"],
        help="larger models computed on paper (default: %(default)s)",
    )
    add("--paper-rows", type=int, default=0, help="rows of each file computed on paper (default: none)")
    add("--keep", help="prefix of the files that keep the correctors' outputs for the rows on paper")
    add("--bandwidth", type=float, default=4.8e12, help="bytes per second (default: an H200's)")
    add("--share", type=float, default=0.45, help="fraction of the bandwidth that passes reach (docs/gpu.md, G1)")
    add("--flops", type=float, default=4e14, help="operations per second, for prompts")
    add(
        "--least-ms",
        type=float,
        default=1.0,
        help="minimum time of a pass: kernels of thirty layers, replayed as a graph",
    )
    add("--threads", type=int, default=1)
    add("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    writers = {name: Writer(name) for name in options.correctors}
    model = load_model(options.target, "cpu", getattr(torch, options.dtype)) if options.rows else None
    result: dict[str, object] = {"machine": machine(), "target": options.target, "dtype": options.dtype}
    for file in options.transcripts:
        result[Path(file).name] = _measured(file, model, writers, options)
        print(json.dumps({Path(file).name: result[Path(file).name]}, indent=1), flush=True)
        if options.json:
            write_json(options.json, result)
    return 0


def _measured(
    file: str, model: Model | None, writers: dict[str, Writer], options: argparse.Namespace
) -> dict[str, object]:
    names = options.models.split(",")
    candidates = [row for row in read_transcripts([file]) if any(name in row.model for name in names)]
    figures: dict[str, object] = {}
    rows = cut(choose_rows(candidates, options.rows or 6, 0), options.rows or 6)
    if model is not None:
        methods = Methods(model)
        try:
            figures["here"] = {"rows": len(rows), **run_here(methods, rows, writers, options)}
        finally:
            methods.close()
    if options.paper_rows:
        live = list(dict.fromkeys(row.references[0] for row in rows))
        wide = cut(choose_rows(candidates, options.paper_rows, 0), options.paper_rows)
        figures["on paper"] = {"rows": len(wide), **on_paper(wide, writers, options, live)}
    return figures


if __name__ == "__main__":
    sys.exit(main())
