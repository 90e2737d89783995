"""Times `model.generate` with and without `custom_generate=copyspec.hf`, on texts that the bundled model corrects.

Methods take turns on the same left-padded batches. A figure is the median over the repeats of the total time of all
batches, as wall time and as CPU time of this process, which is more reliable on a busy machine. Outputs are compared
with those of `generate` token by token; exit status 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import Any, cast

import torch

import copyspec
from benchmarks.data import SENTENCES, lines
from benchmarks.speed.prompts import TEMPLATE
from kit.reporting import command_line, ratio, surroundings, write_json

Seconds = dict[str, list[tuple[float, float]]]
"""(wall, CPU) seconds of each repeat, by method."""

Method = Callable[[dict[str, torch.Tensor], list[str]], torch.Tensor]

DTYPES = ("float32", "bfloat16")


def methods(model: Any, tokenizer: Any, max_new_tokens: int, batch_size: int) -> dict[str, Method]:
    """Return the methods by name, the baseline first."""

    def run(inputs: dict[str, torch.Tensor], texts: list[str], **options: Any) -> torch.Tensor:
        ids: torch.Tensor = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens, **options)
        return ids

    def with_source(inputs: dict[str, torch.Tensor], texts: list[str]) -> torch.Tensor:
        return run(inputs, texts, custom_generate=copyspec.hf, tokenizer=tokenizer, edit_source=texts)

    ways: dict[str, Method] = {"generate": run}
    if batch_size == 1:  # prompt lookup does not support batches
        ways["prompt lookup"] = partial(run, prompt_lookup_num_tokens=10)
    # What faster layers bring by themselves: the rest of the other two is brought by drafts.
    ways["copyspec, no drafts"] = partial(run, custom_generate=copyspec.hf, tokenizer=tokenizer, drafter="none")
    ways["copyspec, prompt only"] = partial(run, custom_generate=copyspec.hf, tokenizer=tokenizer)
    return ways | {"copyspec, edit source": with_source}


def measure(model: Any, tokenizer: Any, texts: Sequence[str], options: argparse.Namespace, size: int) -> dict[str, Any]:
    """Measure one batch size."""
    batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
    encoded = [
        tokenizer(
            [options.template.format(text=text) for text in batch],
            return_tensors="pt",
            padding=True,
            return_token_type_ids=False,
        )
        for batch in batches
    ]
    chosen = methods(model, tokenizer, options.max_new_tokens, size)
    for method in chosen.values():  # warm-up: copyspec prepares its n-grams, torch allocates memory
        method(encoded[0], batches[0])
    seconds: Seconds = {name: [(0.0, 0.0)] * options.repeat for name in chosen}
    differing = dict.fromkeys(chosen, 0)
    for repeat in range(options.repeat):
        for number, (inputs, batch) in enumerate(zip(encoded, batches, strict=True)):
            first = (repeat + number) % len(chosen)
            order = [*chosen][first:] + [*chosen][:first]
            outputs = {}
            for name in order:
                wall, cpu = perf_counter(), process_time()
                outputs[name] = chosen[name](inputs, batch)
                before = seconds[name][repeat]
                seconds[name][repeat] = (before[0] + perf_counter() - wall, before[1] + process_time() - cpu)
            for name, output in outputs.items():
                differing[name] += _differing(outputs["generate"], output)
    return {"batch_size": size, "prompts": len(texts), "methods": _figures(seconds, differing)}


def _differing(expected: torch.Tensor, got: torch.Tensor) -> int:
    if expected.shape != got.shape:
        return len(expected)
    return int((expected != got).any(-1).sum())


def _figures(seconds: Seconds, differing: dict[str, int]) -> dict[str, dict[str, Any]]:
    base = seconds["generate"]
    return {
        name: {
            "seconds": median(wall for wall, _ in times),
            "cpu_seconds": median(cpu for _, cpu in times),
            "speedup": median(ratio(b[0], s[0]) for b, s in zip(base, times, strict=True)),
            "cpu_speedup": median(ratio(b[1], s[1]) for b, s in zip(base, times, strict=True)),
            "differing": differing[name],
        }
        for name, times in seconds.items()
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    options = _parser().parse_args(words)
    if options.threads:
        torch.set_num_threads(options.threads)
    texts = lines(options.texts or SENTENCES)[: options.rows]
    engine = copyspec.load("default", dtype=options.dtype)
    tokenizer, model = engine.tokenizer, cast("Any", engine.model)
    tokenizer.padding_side = "left"
    report: dict[str, Any] = {
        "benchmark": "custom_generate",
        "command": command_line("benchmarks.integrations.custom_generate", words),
        **surroundings("cpu"),
        **{name: getattr(options, name) for name in ("dtype", "threads", "max_new_tokens", "repeat")},
        "sets": [],
    }
    for size in options.batch_sizes:
        results = measure(model, tokenizer, texts, options, size)
        report["sets"].append(results)
        print(f"\n{len(texts)} texts, {options.dtype}, batch size {size}")
        for name, figures in results["methods"].items():
            differ = f"; {figures['differing']} outputs differ" if figures["differing"] else ""
            times = f"{figures['seconds']:8.3f} s {figures['speedup']:6.2f}x, CPU {figures['cpu_speedup']:6.2f}x"
            print(f"{name:24} {times}{differ}", flush=True)
    if options.json:
        write_json(options.json, report)
    return int(any(figures["differing"] for one in report["sets"] for figures in one["methods"].values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.integrations.custom_generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--texts", help="file with one text per line (default: the built-in sentences)")
    add("--rows", type=int, help="maximum number of texts (default: all)")
    add("--template", default=TEMPLATE, help="instruction around each text (default: %(default)r)")
    add("--batch-sizes", type=int, nargs="+", default=[1, 32])
    add("--dtype", choices=list(DTYPES), default="float32")
    add("--max-new-tokens", type=int, default=128)
    add("--repeat", type=int, default=5)
    add("--threads", type=int, help="number of torch threads (default: torch's own choice)")
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
