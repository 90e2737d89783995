"""Measures transformers' `generate`, prompt lookup and copyspec on a real model with prompts of real tasks.

python -m benchmarks.real --dtype float32 --threads 1 --json real-float32-1.json
python -m benchmarks.real --report real-float32-1.json

The methods run in one process and take turns on each prompt, after a short warm-up run of each. A prompt's time is the
median of its repeats, as wall time and as CPU time of the process. `generate` and prompt lookup (10 tokens) are
transformers' own; plain is copyspec without drafts. Outputs of all repeats are compared with those of `generate` (of
plain if that does not run). Results are written after every prompt, and an interrupted run resumes from its file. Exit
status 1 if float32 outputs of copyspec differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, cast

import torch

import copyspec
from benchmarks.real.cases import TASKS, Case, read_cases
from benchmarks.real.report import table
from kit import places
from kit.reporting import command_line, conditions, generate_padded, resumed, without_cudnn_attention, write_json

if TYPE_CHECKING:
    from copyspec import Engine, Result

METHODS = ("generate", "lookup", "plain", "copyspec")
OLDER = {"methods": list(METHODS), "static": "default"}
"""Settings of reports written before these were stored."""
LOOKUP_TOKENS = 10
WARM_UP_TOKENS = 4
STATIC = {
    "default": None,
    "never": copyspec.StaticOptions(use="never"),
    "masks": copyspec.StaticOptions(use="always", attention="masks"),
    "tree": copyspec.StaticOptions(use="always", attention="tree"),
}
"""Static passes of copyspec's methods, with masks or with tree attention."""


@dataclass(slots=True)
class Run:
    """Result of one method on one prompt or one batch of prompts."""

    tokens: list[list[int]]
    passes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds spent in forward passes, drafting, verifying and elsewhere."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings shared by all methods."""

    max_new_tokens: int
    threads: int
    batch: int


class Bench:
    """Runs the methods on one engine."""

    def __init__(self, engine: Engine, setting: Setting) -> None:
        self._engine, self._setting = engine, setting

    def run(self, method: str, cases: Sequence[Case], max_new_tokens: int | None = None) -> Run:
        """Decode the cases as one batch with `method`."""
        limit = max_new_tokens or self._setting.max_new_tokens
        decode: Callable[[], Run]
        if method in ("generate", "lookup"):
            extra = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if method == "lookup" else {}
            ids = [self._engine.codec.encode_chat(case.chat).ids for case in cases]
            decode = lambda: self._theirs(ids, limit, extra)  # noqa: E731
        else:
            decode = lambda: self._ours(cases, limit, drafts=method == "copyspec")  # noqa: E731
        wall, cpu = perf_counter(), process_time()
        run = decode()
        run.seconds, run.cpu_seconds = perf_counter() - wall, process_time() - cpu
        return run

    def _ours(self, cases: Sequence[Case], limit: int, *, drafts: bool) -> Run:
        results = decoded(self._engine, cases, limit, drafts=drafts)
        stats = max((result.stats for result in results), key=lambda result: result.seconds)
        parts = {
            "passes": stats.prefill_seconds + stats.target_seconds,
            "drafting": stats.draft_seconds,
            "verifying": stats.verify_seconds,
            "elsewhere": stats.other_seconds,
        }
        return Run([list(result.token_ids) for result in results], passes=stats.num_passes, parts=parts)

    def _theirs(self, prompts: Sequence[list[int]], limit: int, extra: Mapping[str, object]) -> Run:
        model = self._engine.model
        pad = cast("int", model.generation_config.pad_token_id)
        end = model.generation_config.eos_token_id
        ends = set(end) if isinstance(end, list) else {end}
        passes: list[None] = []
        hook = model.register_forward_hook(lambda *_: passes.append(None))
        try:
            tokens = generate_padded(model, prompts, ends, pad=pad, max_new_tokens=limit, **extra)
        finally:
            hook.remove()  # copyspec's static passes refuse hooks, which a replay would not run
        return Run(tokens, passes=len(passes))


def decoded(
    engine: Engine,
    cases: Sequence[Case],
    limit: int,
    *,
    drafts: bool,
    temperature: float | None = None,
    seed: int | None = None,
) -> list[Result]:
    """Decode these cases as one batch with copyspec, plainly or with all that may be copied."""
    return engine.generate(
        [case.chat for case in cases],
        [case.references for case in cases],
        edit_source=[case.edit_source for case in cases],
        max_new_tokens=limit,
        batch_size=len(cases),
        drafter="auto" if drafts else "none",
        temperature=temperature,
        seed=seed,
    )


def measure(bench: Bench, cases: Sequence[Case], methods: Sequence[str], repeats: int) -> dict[str, Any]:
    """Run every method on one prompt or batch, and return its entry in the report."""
    for method in methods:
        bench.run(method, cases, WARM_UP_TOKENS)
    runs: dict[str, list[Run]] = {method: [] for method in methods}
    for repeat in range(repeats):
        for turn in range(len(methods)):
            method = methods[(repeat + turn) % len(methods)]
            runs[method].append(bench.run(method, cases))
    base = next((name for name in ("generate", "plain") if name in runs), methods[0])
    first = runs[base][0].tokens
    report: dict[str, Any] = {"ids": [case.id for case in cases], "task": cases[0].task, "methods": {}}
    for method, outputs in runs.items():
        report["methods"][method] = {
            "tokens": sum(map(len, outputs[0].tokens)),
            "passes": outputs[0].passes,
            "seconds": median(run.seconds for run in outputs),
            "cpu_seconds": median(run.cpu_seconds for run in outputs),
            "equal": all(run.tokens == first for run in outputs),
            "parted": [_first_parted([run.tokens[row] for run in outputs], first[row]) for row in range(len(first))],
            "parts": {name: median(run.parts[name] for run in outputs) for name in outputs[0].parts},
        }
    return report


def _first_parted(outputs: Sequence[Sequence[int]], base: Sequence[int]) -> int | None:
    """Where the first of these outputs that differs parts from `base`; None if all are equal."""
    return next((at for at in (_parted(output, base) for output in outputs) if at is not None), None)


def _parted(tokens: Sequence[int], base: Sequence[int]) -> int | None:
    """Index of the first token at which two outputs differ; None if they are equal."""
    if tokens == base:
        return None
    return next(
        (at for at, (a, b) in enumerate(zip(tokens, base, strict=False)) if a != b), min(len(tokens), len(base))
    )


def batches(cases: Sequence[Case], size: int) -> Iterator[list[Case]]:
    """Yield batches of cases of the same task, in the order in which the batches fill up."""
    waiting: dict[str, list[Case]] = {}
    for case in cases:
        waiting.setdefault(case.task, []).append(case)
        if len(waiting[case.task]) == size:
            yield waiting.pop(case.task)
    yield from (rest for rest in waiting.values() if rest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts_folder(parser)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--per-task", type=int, default=30)
    parser.add_argument("--max-prompt", type=int, default=1024, help="skip prompts of more tokens than this")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--static", choices=("default", "never", "masks", "tree"), default="default")
    parser.add_argument(
        "--json", type=Path, help="results file, written after every prompt; an existing one is resumed"
    )
    parser.add_argument(
        "--report", type=Path, nargs="+", help="print the tables of these results files without running anything"
    )
    return parser


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    without_cudnn_attention()
    if options.report:
        for path in options.report:
            print(table(json.loads(path.read_text(encoding="utf-8"))))
        return 0
    # Prompt lookup does not support batches.
    methods = [name for name in options.methods if options.batch == 1 or name != "lookup"]
    torch.set_num_threads(options.threads)
    setting = Setting(options.max_new_tokens, options.threads, options.batch)
    names = ("model", "dtype", "repeats", "methods", "static", "tasks", "per_task", "max_prompt")
    head = {**{name: getattr(options, name) for name in names}, **asdict(setting), **conditions()}
    report: dict[str, Any] = {"command": command_line("benchmarks.real"), **head}
    report["runs"] = resumed(options.json, head, OLDER).get("runs", [])
    engine = copyspec.load(options.model, dtype=options.dtype, static=STATIC[options.static])
    engine.threads = options.threads  # else it measures how many are fastest, and each number rounds in its own way
    bench = Bench(engine, setting)
    cases = read_cases(
        options.transcripts, engine, tasks=options.tasks, per_task=options.per_task, max_prompt=options.max_prompt
    )
    done = {tuple(run["ids"]) for run in report["runs"]}
    for batch in batches(cases, options.batch):
        if tuple(case.id for case in batch) in done:
            continue
        report["runs"].append(measure(bench, batch, methods, options.repeats))
        if options.json is not None:
            write_json(options.json, report)
    print(table(report))
    ours = [run["methods"][name] for run in report["runs"] for name in ("plain", "copyspec") if name in run["methods"]]
    return int(options.dtype == "float32" and not all(method["equal"] for method in ours))
