"""Times `copyspec gec` without its start-up: with copying, plain, and against `generate` in batches.

    python -m benchmarks.speed.gec_files --jfleg build/data/gec/jfleg_dev.jsonl.gz --json FILE
    python -m benchmarks.speed.gec_files --model smollm2 --jfleg FILE --rows 100 --paths examples/texts/essay.txt

There are three kinds of input: sentences of JFLEG, one per line; an essay; pages of the project's docs. Each goes
through the whole command with default settings (reading, segmentation, correction, guards, writing): `copied`, and
`plain` as with `--plain`. In `oracle` the text to copy is the output itself, so nearly every draft is right: what is
left is the time of the model and of the pipeline, which no drafter saves. In `first` every text ends after its first
token: prompts are read and files are written, but nothing else is decoded, so no method can be faster. `hf` is greedy
`model.generate` on the same texts in padded batches of the same size, in the pipeline's order. `single` and `lookup`
decode one text at a time, with `generate` and with its prompt lookup. Methods take turns; figures are medians of wall
time and of the process's CPU time. Outputs are compared with those of `plain` token by token.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

import copyspec
from benchmarks.speed.throughput import Baselines, Outputs, read_sentences
from copyspec import Input
from copyspec.pipelines import FileOptions, FormatOptions, ModelCorrector, ModelOptions, Outcome, Runner, correct_files
from copyspec.pipelines.models import engine_in
from kit.reporting import machine, ratio, without_cudnn_attention, write_json

ROOT = Path(__file__).parent.parent.parent
ESSAY = ROOT / "examples" / "texts" / "essay.txt"
DOCS = ("rag.md", "small_models.md")


class Heard(ModelCorrector):
    """A corrector that records the texts it was given and the model's outputs."""

    asked: list[str]
    outputs: dict[str, list[int]]
    passes: float  # forward passes of the model; a pass over a batch counts once

    def correct(self, texts: Iterable[str | None]) -> Iterator[tuple[int, Outcome]]:
        self.asked, self.outputs, self.passes = [], {}, 0.0

        def passing() -> Iterator[str | None]:
            for text in texts:
                if text is not None:
                    self.asked.append(text)
                yield text

        for index, outcome in super().correct(passing()):
            if outcome.result is not None:
                self.outputs[self.asked[index]] = list(outcome.result.token_ids)
            yield index, outcome


class Oracle(Heard):
    """A corrector that copies from the outputs of an earlier run, `known`, instead of from the texts."""

    known: dict[str, list[int]]

    def _inputs(self, *args: Any) -> Iterator[Input | None]:
        for input_ in super()._inputs(*args):
            if input_ is not None and input_.edit_source is not None:
                input_ = replace(input_, edit_source=engine_in(self.model).codec.decode(self.known[input_.edit_source]))
            yield input_


Method = Callable[[], dict[str, list[int]]]
METHODS = ("copied", "plain", "oracle", "first", "hf", "single", "lookup")


def pipeline(paths: Sequence[Path], corrector: Heard) -> Method:
    """Run the command's own code on `paths`, writing into a temporary folder."""
    runner = Runner(corrector)

    def run() -> dict[str, list[int]]:
        outputs: dict[str, list[int]] = {}
        for path in paths:
            form = "lines" if path.suffix == ".lines" else None
            with tempfile.TemporaryDirectory() as folder:
                files = FileOptions(form, FormatOptions(), output=Path(folder, path.name))
                for report in correct_files(runner, [str(path)], files):
                    if report.error is not None:
                        raise report.error
            outputs |= corrector.outputs
        return outputs

    return run


def batched(corrector: Heard, texts: Sequence[str], size: int) -> Method:
    """Decode the same texts with `generate` in batches, each limited by its longest text."""
    limits = [corrector._max_new_tokens(text) for text in texts]

    def run() -> dict[str, list[int]]:
        outputs: Outputs = []
        for start in range(0, len(texts), size):
            theirs = Baselines(corrector, max(limits[start : start + size]))
            outputs += theirs.batched(texts[start : start + size], size)
        return dict(zip(texts, outputs, strict=True))

    return run


def one_by_one(corrector: Heard, texts: Sequence[str], *, lookup: bool) -> Method:
    """Decode the same texts with `generate`, one at a time, each with its own limit."""

    def run() -> dict[str, list[int]]:
        outputs = {}
        for text in texts:
            theirs = Baselines(corrector, corrector._max_new_tokens(text))
            outputs[text] = (theirs.prompt_lookup if lookup else theirs.one_by_one)([text])[0]
        return outputs

    return run


def measure(methods: dict[str, Method], repeats: int) -> dict[str, Any]:
    """Measure wall seconds, CPU seconds and the number of outputs that differ from `plain` in any repeat, by method."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    outputs: dict[str, list[dict[str, list[int]]]] = {name: [] for name in methods}
    names = list(methods)
    for repeat in range(repeats):
        for turn in range(len(names)):
            name = names[(repeat + turn) % len(names)]
            wall, cpu = perf_counter(), process_time()
            outputs[name].append(methods[name]())
            times[name].append((perf_counter() - wall, process_time() - cpu))
    expected = outputs["plain"][0]
    report: dict[str, Any] = {"texts": len(expected), "tokens": sum(map(len, expected.values()))}
    for name in names:
        seconds, cpu_seconds = (median(values) for values in zip(*times[name], strict=True))
        limit = 1 if name == "first" else None
        differing = sum(
            any(run.get(text) != tokens[:limit] for run in outputs[name]) for text, tokens in expected.items()
        )
        report[name] = {"seconds": seconds, "cpu_seconds": cpu_seconds, "differing": differing}
    return report


def line(kind: str, results: dict[str, Any]) -> str:
    """Format the times of the other methods divided by that of `copied`, with CPU time in brackets; `oracle` and
    `first` as a share of it."""
    own = results["copied"]
    cells = [f"{kind:<10}{results['texts']:>6} texts{results['tokens']:>7} tokens{own['seconds']:>8.1f} s"]
    for name in ("plain", "hf", "single", "lookup"):
        if name in results:
            wall = ratio(results[name]["seconds"], own["seconds"])
            cpu = ratio(results[name]["cpu_seconds"], own["cpu_seconds"])
            cells.append(f"over {name} {wall:.2f}x ({cpu:.2f}x)")
    for name in ("oracle", "first"):
        if name in results:
            cells.append(f"{name} in {ratio(results[name]['seconds'], own['seconds']):.2f} of that")
    return "  ".join([*cells, f"differing {own['differing']}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--jfleg", type=Path, help="JSON lines with `source`, or one sentence per line")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--paths", type=Path, nargs="*", help="one more input, replacing the essay and the docs")
    parser.add_argument("--batch-size", type=int, default=ModelOptions().batch_size)
    parser.add_argument(
        "--threads", type=int, help="number of torch threads (default: chosen by measuring; torch's own for `generate`)"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["hf"], help="methods besides `copied` and `plain`"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_cudnn_attention()
    if options.threads:
        torch.set_num_threads(options.threads)  # for the methods of transformers
    engine = copyspec.load(options.model, dtype=options.dtype)
    engine.threads = options.threads
    report: dict[str, Any] = {
        **{name: str(value) for name, value in vars(options).items() if name not in ("json", "jfleg", "paths")},
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "machine": machine(),
        "torch": torch.__version__,
        "inputs": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        inputs: dict[str, list[Path]] = {}
        if options.jfleg is not None:
            inputs["jfleg"] = [Path(folder, "jfleg.lines")]
            texts = read_sentences(options.jfleg, options.rows)
            inputs["jfleg"][0].write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        if options.paths is None:
            inputs |= {"essay": [ESSAY], "docs": [ROOT / "docs" / name for name in DOCS]}
        elif options.paths:
            inputs[options.paths[0].stem if len(options.paths) == 1 else "paths"] = options.paths
        asked = ModelOptions(batch_size=options.batch_size)
        for kind, paths in inputs.items():
            corrector, oracle = Heard(engine, asked), Oracle(engine, asked)
            methods = {"copied": pipeline(paths, corrector), "oracle": pipeline(paths, oracle)}
            oracle.known = methods["copied"]()  # the first run also warms up
            texts = list(oracle.known)
            methods["plain"] = pipeline(paths, Heard(engine, replace(asked, drafts=False)))
            methods["first"] = pipeline(paths, Heard(engine, replace(asked, drafts=False, max_new_tokens=1)))
            methods["hf"] = batched(corrector, texts, options.batch_size)
            for name in ("single", "lookup"):
                methods[name] = one_by_one(corrector, texts, lookup=name == "lookup")
            chosen = dict.fromkeys(["copied", "plain", *options.methods])
            results = measure({name: methods[name] for name in chosen}, options.repeats)
            report["inputs"][kind] = results
            print(line(kind, results), flush=True)
            if options.json is not None:
                write_json(options.json, report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
