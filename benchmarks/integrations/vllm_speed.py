"""Times vLLM without drafts, with its own drafters, and with copyspec's, on texts that the model corrects.

All engines run in this process, in turns, on one thread; a figure is the median over the repeats of wall time and of
the process's CPU time. Outputs are compared with those without drafts; exit status 1 if one differs. vLLM's suffix
decoding remembers the outputs of earlier requests, so only its first round of the first set is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.integrations import vllm_engines as engines
from kit.reporting import command_line, machine, ratio, write_json

SUFFIX = "suffix"

METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "n-gram as shipped": {"method": "ngram", "num_speculative_tokens": 5},
    "n-gram 1..5, 16": {
        "method": "ngram",
        "num_speculative_tokens": 16,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 5,
    },
    SUFFIX: {"method": "suffix", "num_speculative_tokens": 32},
    "copyspec 16": {"copyspec": 16},
    "copyspec 16, fixed": {"copyspec": 16, "adaptive": False},
    "copyspec 16, prompt only": {"copyspec": 16, "with_source": False},
    "copyspec 32": {"copyspec": 32},
}

TASKS: dict[str, dict[str, Any]] = {
    "corrections": {"max_tokens": 128},
    "little to copy": {"max_tokens": 100, "repetition_penalty": 2.0, "ignore_eos": True},
}


class Method:
    """One engine, with the options of its requests."""

    def __init__(self, name: str, folder: str) -> None:
        from copyspec.integrations import vllm as plug_in

        settings = dict(METHODS[name])
        adaptive, self._with_source = (
            settings.pop("adaptive", True),
            settings.pop("with_source", "copyspec" in settings),
        )
        if "copyspec" in settings:
            settings = plug_in.config(settings["copyspec"])
        self.llm = engines.engine(folder, settings or None, adaptive=adaptive)
        self.counter = engines.Counter(self.llm)

    def run(self, texts: Sequence[str], options: dict[str, Any], size: int) -> list[list[int]]:
        """Decode all texts, `size` at a time, and return the outputs."""
        from vllm import SamplingParams

        from copyspec.integrations import vllm as plug_in

        ids: list[list[int]] = []
        for start in range(0, len(texts), size):
            part = texts[start : start + size]
            parameters = [SamplingParams(temperature=0, **options) for _ in part]
            if self._with_source:
                pairs = zip(parameters, part, strict=True)
                parameters = [plug_in.copying(params, edit_source=text) for params, text in pairs]
            prompts = [engines.TEMPLATE.format(text=text) for text in part]
            outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
            ids += [list(output.outputs[0].token_ids) for output in outputs]
        return ids


def measure(
    methods: dict[str, Method], texts: Sequence[str], options: argparse.Namespace, task: str, size: int
) -> dict[str, Any]:
    """Measure one task and batch size."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    outputs: dict[str, list[list[int]]] = {}
    counted: dict[str, dict[str, int]] = {}
    order = list(methods)
    for repeat in range(options.repeat):
        first = repeat % len(order)
        for name in order[first:] + order[:first]:
            if name == SUFFIX and repeat:
                continue
            methods[name].counter.read()
            wall, cpu = perf_counter(), process_time()
            ids = methods[name].run(texts, TASKS[task], size)
            seconds[name].append((perf_counter() - wall, process_time() - cpu))
            if outputs.setdefault(name, ids) != ids:
                raise ValueError(f"{name} does not repeat its outputs")
            if not repeat:
                counted[name] = methods[name].counter.read()
    expected, base = outputs["none"], seconds["none"]
    tokens = sum(map(len, expected))
    return {
        name: {
            "seconds": median(wall for wall, _ in seconds[name]),
            "cpu_seconds": median(cpu for _, cpu in seconds[name]),
            "speedup": median(ratio(b[0], s[0]) for b, s in zip(base, seconds[name], strict=name != SUFFIX)),
            "cpu_speedup": median(ratio(b[1], s[1]) for b, s in zip(base, seconds[name], strict=name != SUFFIX)),
            "equal": sum(one == other for one, other in zip(expected, outputs[name], strict=True)),
            "tokens": tokens,
            **counted[name],
        }
        for name in methods
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    options = _parser().parse_args(words)
    engines.set_up()
    texts = engines.read_texts(options.texts, options.rows)
    report: dict[str, Any] = {
        "benchmark": "vllm_speed",
        "command": command_line("benchmarks.integrations.vllm_speed", words),
        "machine": machine(),
        "versions": engines.versions(),
        "repeat": options.repeat,
        "sets": [],
    }
    equal = True
    with engines.model_folder(options.model) as folder:
        methods = {name: Method(name, folder) for name in ["none", *options.methods]}
        for method in methods.values():
            method.run(
                engines.read_texts(None, 8), TASKS["corrections"], 8
            )  # other texts, so that suffix decoding has nothing to remember
        for task in options.tasks:
            for size in options.batch_sizes:
                results = measure(methods, texts, options, task, size)
                methods.pop(SUFFIX, None)
                report["sets"].append({"task": task, "batch_size": size, "texts": len(texts), "methods": results})
                print(f"\n{task}: {len(texts)} texts, {size} at once")
                for name, figures in results.items():
                    equal = equal and figures["equal"] == len(texts)
                    passes = figures["tokens"] / (figures["passes"] or figures["tokens"])
                    times = (
                        f"{figures['seconds']:7.2f} s {figures['speedup']:5.2f}x, CPU {figures['cpu_speedup']:5.2f}x"
                    )
                    print(f"{name:26} {times}, {passes:5.2f} tokens a pass, {figures['equal']} equal", flush=True)
                if options.json:
                    write_json(options.json, report)
    return int(not equal)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.integrations.vllm_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    default = [name for name in METHODS if name not in ("none", SUFFIX, "copyspec 16, fixed")]
    add("--model", default="default", help="default, smollm2, or a folder (default: %(default)s)")
    add("--texts", help="file with one text per line, or JSON lines (default: the built-in sentences)")
    add("--rows", type=int, help="maximum number of texts (default: all)")
    add("--methods", nargs="*", choices=[*METHODS][1:], default=default, help='methods to compare with "none"')
    add("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    add("--batch-sizes", type=int, nargs="+", default=[1, 32])
    add("--repeat", type=int, default=5)
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
