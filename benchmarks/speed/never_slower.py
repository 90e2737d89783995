"""Checks that drafting does not cost time: copyspec, and drafters that are wrong on purpose, against plain decoding.

    python -m benchmarks.speed.never_slower --model shape:qwen2.5-0.5b --dtype bfloat16
    python -m benchmarks.speed.never_slower --simulate all

Recorded outputs are replayed, by default those of chat, math and translation, where little can be copied. `wrong-N`
drafts N wrong nodes per call and claims a probability of 95 % for each; `wrong-tree-N` spreads them over four branches.
Methods take turns row by row. A figure is the median over the repeats of plain time divided by the method's time, for a
whole set including prompts. It is given for wall time and for CPU time, which is steadier on a busy machine.

With `--simulate` no model runs: passes take the time given by a measured curve (`benchmarks.speed.simulation`), so that
the figures are those of the controller alone and the same in every run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from time import process_time

import torch

from benchmarks.speed.methods import Limits, Method, Methods
from benchmarks.speed.models import load_model
from benchmarks.speed.prompts import Case, PromptSet, TranscriptOptions, transcript_cases, transcript_sets
from benchmarks.speed.run import DTYPES
from benchmarks.speed.simulation import DEVICES, AlwaysWrong, Device, MakeDrafter, simulate
from copyspec.budget import CostModel
from copyspec.decoding.stats import Stats
from copyspec.drafters import create
from copyspec.drafters.base import Drafter
from copyspec.options import DraftOptions
from kit import places
from kit.reporting import command_line, ratio, surroundings, write_json

TASKS = "chat,math,translation"
BARS = {"copyspec": 0.97, "wrong": 0.95}
"""Minimum of plain time divided by the method's time, by the first part of the method's name."""

WRONG_NODES = (1, 4, 8, 32, 64)
WIDE, BRANCHES = 32, 4  # nodes of a wrong tree, and its chains


@dataclass(slots=True)
class Line:
    """Result of one method on one set."""

    set: str
    method: str
    rows: int
    tokens: int
    wall: float = 0.0  # plain wall time divided by the method's
    cpu: float = 0.0  # the same for CPU time; 0: simulated
    nodes_per_call: float = 0.0
    decisions: dict[str, int] = field(default_factory=dict)  # summed over all rows, in the first repeat
    repeats: list[float] = field(default_factory=list)  # `wall` of each repeat

    @property
    def bar(self) -> float:
        return next(bar for name, bar in BARS.items() if self.method.startswith(name))

    def count(self, stats: Sequence[Stats]) -> None:
        """Take over the counters of its rows."""
        decisions: Counter[str] = Counter()
        for row in stats:
            decisions.update(row.decisions)
        self.decisions = dict(decisions)
        self.nodes_per_call = ratio(sum(row.num_draft_tokens for row in stats), sum(row.num_passes for row in stats))


def drafters(nodes: int | None) -> dict[str, tuple[MakeDrafter, int | None]]:
    """Return, for each method except plain decoding, the function that makes a row's drafter, and its nodes per
    call."""

    def copies(case: Case, eos: frozenset[int]) -> Drafter:
        return create(case.sources, eos, ngrams=case.ngrams)

    def wrong(width: int, case: Case, eos: frozenset[int]) -> Drafter:
        return AlwaysWrong(case, width=width)

    makers: dict[str, tuple[MakeDrafter, int | None]] = {"copyspec": (copies, nodes)}
    makers |= {f"wrong-{count}": (partial(wrong, 1), count) for count in WRONG_NODES}
    return makers | {f"wrong-tree-{WIDE}": (partial(wrong, BRANCHES), WIDE)}


def measured(prompts: PromptSet, methods: Mapping[str, Method], limits: Limits, repeat: int, size: int) -> list[Line]:
    """Run the methods on a model in turn. The first of `methods` must be plain decoding."""
    batches = [prompts.cases[start : start + size] for start in range(0, len(prompts.cases), size)]
    longest = max(batches, key=lambda cases: max(len(case.prompt) for case in cases))
    for method in methods.values():
        method(longest, limits)
    names = list(methods)
    lines = {name: Line(prompts.name, name, len(prompts.cases), 0) for name in names}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for index in range(repeat):
        sums = {name: [0.0, 0.0] for name in names}
        stats: dict[str, list[Stats]] = {name: [] for name in names}
        tokens = dict.fromkeys(names, 0)
        for number, cases in enumerate(batches):
            first = (index + number) % len(names)
            for name in names[first:] + names[:first]:
                started = process_time()
                run = methods[name](cases, limits)
                sums[name][0] += run.total_seconds
                sums[name][1] += process_time() - started
                stats[name] += run.stats
                tokens[name] += sum(map(len, run.outputs))
                expected = [(case.recorded or [])[: limits.max_new_tokens] for case in cases]
                assert run.outputs == expected, f"{name} does not say what was recorded"
        for name in names:
            times[name].append((sums[name][0], sums[name][1]))
            lines[name].tokens = tokens[name]
            if index == 0:
                lines[name].count(stats[name])
    plain = times[names[0]]
    for name in names:
        pairs = list(zip(plain, times[name], strict=True))
        lines[name].repeats = [ratio(base[0], own[0]) for base, own in pairs]
        lines[name].wall = median(lines[name].repeats)
        lines[name].cpu = median(ratio(base[1], own[1]) for base, own in pairs)
    return [lines[name] for name in names[1:]]


def simulated(
    name: str, cases: Sequence[Case], device: Device, costs: Mapping[str, CostModel], limits: Limits, size: int
) -> list[Line]:
    """Run the methods in simulated time. `costs`: the methods, with the cost model of each, kept between calls."""

    def run(make: MakeDrafter | None, nodes: int | None, model: CostModel) -> tuple[float, list[Stats]]:
        seconds, stats = 0.0, []
        for start in range(0, len(cases), size):
            part, draft = cases[start : start + size], DraftOptions(nodes)
            one = simulate(part, device, draft, model, make, max_new_tokens=limits.max_new_tokens, batch_size=size)
            seconds += one.seconds
            stats += one.stats
        return seconds, stats

    plain, _ = run(None, 0, CostModel())
    known, lines = drafters(limits.draft_nodes), list[Line]()
    for method, model in costs.items():
        seconds, stats = run(*known[method], model)
        line = Line(name, method, len(cases), sum(row.num_output_tokens for row in stats), ratio(plain, seconds))
        line.count(stats)
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return 0 if every figure reaches its minimum, 1 if one does not, 2 for invalid arguments."""
    options = _parser().parse_args(arguments)
    try:
        report = _simulate(options) if options.simulate else _measure(options)
    except ValueError as error:
        print(f"benchmarks.speed.never_slower: {error}", file=sys.stderr)
        return 2
    lines = [line for part in report.values() for line in part]
    clock = "wall" if options.simulate else options.clock
    for where, part in report.items():
        print(f"\n{where}\n{_table(part, clock)}", flush=True)
    if options.json:
        head = {"benchmark": "never_slower", "command": command_line("benchmarks.speed.never_slower", arguments)}
        about = {**head, **surroundings("cpu"), "simulated": bool(options.simulate), "bars": BARS}
        write_json(
            options.json, {**about, "results": {where: list(map(asdict, part)) for where, part in report.items()}}
        )
    return 0 if all(getattr(line, clock) >= line.bar for line in lines) else 1


def _measure(options: argparse.Namespace) -> dict[str, list[Line]]:
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load_model(options.model, options.device, DTYPES[options.dtype])
    sets = transcript_sets(model, _transcripts(options))
    methods = Methods(model)
    chosen = {"plain": methods.get("plain")}
    chosen |= {name: methods.own(make, nodes) for name, (make, nodes) in _drafters(options).items()}
    try:
        lines: list[Line] = []
        for prompts in sets:
            limits = Limits(options.max_new_tokens, prompts.eos_token_ids, options.draft_nodes)
            lines += measured(prompts, chosen, limits, options.repeat, options.batch_size)
            print(_table(lines[-len(chosen) + 1 :], options.clock), flush=True)
    finally:
        methods.close()
    return {f"{options.model}, {options.dtype}": lines}


def _simulate(options: argparse.Namespace) -> dict[str, list[Line]]:
    names = list(DEVICES) if options.simulate == "all" else [options.simulate]
    if names[0] not in DEVICES:
        raise ValueError(f"--simulate {names[0]!r}: all, or one of {', '.join(DEVICES)}")
    sets, eos = transcript_cases(_transcripts(options))
    limits = Limits(options.max_new_tokens, frozenset({eos}), options.draft_nodes)
    report = {}
    for name in names:
        costs = {method: CostModel() for method in _drafters(options)}
        run: Callable[[str, list[Case]], list[Line]] = lambda key, cases, device=DEVICES[name], costs=costs: simulated(  # type: ignore[misc]  # noqa: E731
            key, cases, device, costs, limits, options.batch_size
        )
        run("", next(iter(sets.values()))[:1])  # warm-up, since an engine in use has seen other rows before
        report[f"{name}, simulated"] = [line for key, cases in sets.items() for line in run(" ".join(key), cases)]
    return report


def _drafters(options: argparse.Namespace) -> dict[str, tuple[MakeDrafter, int | None]]:
    """The drafters of the chosen methods; "plain", which needs none, always runs. Raises ValueError for a name that is
    none."""
    known = drafters(options.draft_nodes)
    chosen = [name for name in options.methods or () if name != "plain"] or list(known)
    for name in chosen:
        if name not in known:
            raise ValueError(f"--methods: no method {name!r}; there are {', '.join(known)}")
    return {name: known[name] for name in chosen}


def _transcripts(options: argparse.Namespace) -> TranscriptOptions:
    return TranscriptOptions(
        options.transcripts, options.tokenizer, options.tasks, options.rows, options.max_prompt_tokens, options.seed
    )


def _table(lines: Sequence[Line], clock: str) -> str:
    rows = [f"{'set':<34}{'method':<14}{'wall':>7}{'cpu':>7}{'nodes':>7}  decisions"]
    for line in lines:
        below = " BELOW" if getattr(line, clock) < line.bar else ""
        decisions = " ".join(f"{what[:2]} {count}" for what, count in sorted(line.decisions.items()))
        cpu = f"{line.cpu:>7.3f}" if line.cpu else f"{'-':>7}"
        rows.append(
            f"{line.set[:33]:<34}{line.method:<14}{line.wall:>7.3f}{cpu}{line.nodes_per_call:>7.2f}  {decisions}{below}"
        )
    return "\n".join(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.never_slower",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    add(
        "--tasks",
        type=lambda value: value.split(","),
        default=TASKS.split(","),
        help=f"comma-separated tasks (default: {TASKS})",
    )
    add("--rows", type=int, default=3, help="rows per set (default: %(default)s)")
    add("--max-prompt-tokens", type=int, default=1024, help="skip longer rows (default: %(default)s)")
    add("--max-new-tokens", type=int, default=96, help="default: %(default)s")
    add("--model", default="shape:qwen2.5-0.5b", help="default: %(default)s")
    add("--dtype", choices=list(DTYPES), default="bfloat16")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--simulate", help=f"simulate a device instead of running a model: {', '.join(DEVICES)} or all")
    add(
        "--methods",
        type=lambda value: value.split(","),
        help="comma-separated, from copyspec,wrong-1,...,wrong-tree-32 (default: all)",
    )
    add("--draft-nodes", type=int, help="maximum nodes of a draft tree (default: as many as pay)")
    add("--batch-size", type=int, default=1)
    add("--repeat", type=int, default=3)
    add("--clock", choices=["wall", "cpu"], default="wall", help="which time decides the exit status")
    add(
        "--threads",
        type=int,
        default=1,
        help="number of torch threads (default: 1, for which CPU time is most meaningful)",
    )
    add("--seed", type=int, default=0)
    add("--json", help="write the report to this file")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
