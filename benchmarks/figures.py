"""Runs the commands of the documentation's tables on the sample of recorded outputs: ``python -m benchmarks.figures``.

Each command runs as the docs name it, with less of everything; its figures are printed beside those of
benchmarks/results/sample.json, from which the docs' sample columns are made. The exit status is 1 if one differs. Where
a model runs, drafts are as long as measured costs allow, so that only equality of outputs is compared, not tokens per
pass; times never are. ``--write`` stores the figures, ``--only NAME...`` runs some commands.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import places
from kit.reporting import write_json

RESULTS = places.ROOT / "benchmarks" / "results" / "sample.json"
Values = dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Figure:
    """A table of the docs, the commands that make it, and what of their result is compared."""

    name: str
    page: str
    commands: tuple[str, ...]  # after `python -m`; OUT stands for a folder, and the last one writes OUT/figures.json
    read: Callable[[Any], Values]
    runs_model: bool = False

    def run(self, out: Path) -> Values:
        """Return its values. Raises RuntimeError, with the end of what it printed, if a command fails."""
        environment = {**os.environ, places.VARIABLE: str(places.SAMPLE)}
        for command in self.commands:
            words = shlex.split(command.replace("OUT", str(out)))
            done = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=places.ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"python -m {command}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        return self.read(json.loads((out / "figures.json").read_text("utf-8")))


def replayed(lines: list[dict[str, Any]]) -> Values:
    """Tokens per call of each method on each set."""
    return {
        f"{line['task']} {line['set']} {line['model'].split(' (')[0]}, {line['method']}, {line['nodes']} nodes": round(
            line["tokens_per_call"], 2
        )
        for line in lines
    }


def beside_peers(report: dict[str, Any]) -> Values:
    """The same of the copy benchmark, without peers that must be built."""
    return replayed([line for line in report["figures"] if line["method"].startswith(("copyspec", "transformers"))])


def forms(lines: list[dict[str, Any]]) -> Values:
    """Tokens per call from the prompt alone, by its form."""
    return {line["form"]: round(line["prompt_only"], 2) for line in lines}


def never_slower(report: dict[str, Any]) -> Values:
    """The least speed of copyspec, and of drafters that are wrong on purpose, on any set and device."""
    figures: Values = {}
    for name in ("copyspec", "wrong"):
        values = [row["wall"] for rows in report["results"].values() for row in rows if row["method"].startswith(name)]
        figures[f"least speed, {name}"] = round(min(values), 2)
    return figures


def simulated(report: dict[str, Any]) -> Values:
    return {
        f"{model}, {name}: passes": float(figures["passes"])
        for model, methods in report["found"].items()
        for name, figures in methods.items()
    }


def with_texts(report: dict[str, Any]) -> Values:
    return {line["method"]: round(line["tokens_per_call"], 2) for line in report["methods"]}


def answered(report: dict[str, Any]) -> Values:
    """Tokens per pass and equal outputs of a real model, by task."""
    from benchmarks.real.report import equal, figures

    values: Values = {}
    for task in dict.fromkeys(run["task"] for run in report["runs"]):
        runs = [run for run in report["runs"] if run["task"] == task]
        values[f"{task}: equal"] = equal(runs)
        values[f"{task}: tokens a pass"] = round(figures(runs, ("generate", "lookup", "plain"))["tokens a pass"], 2)
    return values


def surveyed(report: dict[str, Any]) -> Values:
    from benchmarks.spec_bench import lines

    listed = list(lines(report))
    return {f"{line.method}: tokens per pass": round(line.tokens_per_pass, 2) for line in listed} | {
        f"{line.method}: equal": line.equal for line in listed if line.equal
    }


def retrieved(report: dict[str, Any]) -> Values:
    """Whether outputs are those of the plain form."""
    return {
        f"{table['index']}, {method['method']}: equal": "yes" if method["equal"] else "no"
        for table in report["tables"]
        for method in table["methods"]
    }


def applied(report: dict[str, Any]) -> Values:
    return {
        f"{form}: {outcome}": f"{count} of {report['edits']}"
        for form, counts in report["counts"].items()
        for outcome, count in counts.items()
    }


def sped(report: dict[str, Any]) -> Values:
    values: Values = {}
    for one in report["sets"]:
        (own,) = (method for method in one["methods"] if method["method"] == "copyspec")
        values[f"{one['name']}: equal"] = "yes" if own["equal"] else "no"
        values[f"{one['name']}: tokens a pass"] = round(own["mean_acceptance_length"], 2)
    return values


JSON = "--json OUT/figures.json"
RULES = "--methods copyspec,copies,hf-prompt-lookup,longest-suffix,sad,llma"
FIGURES = (
    Figure("replay", "replay.md#figures", (f"benchmarks.replay {RULES} --nodes 32 {JSON}",), replayed),
    Figure(
        "prompt only",
        "replay.md#from-the-prompt-alone",
        (f"benchmarks.replay --prompt-only --methods copyspec,hf-prompt-lookup {JSON}",),
        replayed,
    ),
    Figure(
        "whole files",
        "replay.md#whole-files",
        (
            "benchmarks.replay.whole_files OUT/whole.jsonl.gz --tokens 2000 --rows 10",
            f"benchmarks.replay OUT/whole.jsonl.gz --methods copyspec,hf-prompt-lookup --nodes 32,128 {JSON}",
        ),
        replayed,
    ),
    Figure(
        "the copy benchmark",
        "copybench.md#results",
        (f"benchmarks.copybench --nodes 32 --rows 5 --search-rows 2 {JSON}",),
        beside_peers,
    ),
    Figure(
        "forms of prompts",
        "replay.md#from-the-prompt-alone",
        (f"benchmarks.replay.forms --rows 10 {JSON}",),
        forms,
    ),
    Figure(
        "never slower",
        "benchmarks.md#what-drafting-costs-where-it-cannot-pay",
        (f"benchmarks.speed.never_slower --simulate all {JSON}",),
        never_slower,
    ),
    Figure(
        "a GPU, simulated",
        "gpu.md#measured-on-an-h200",
        (f"benchmarks.gpu.simulation --rows 4 --prompts 4 --batch 1 --models 8B {JSON}",),
        simulated,
    ),
    Figure(
        "datastore",
        "retrieval.md#drafting-from-it",
        (f"benchmarks.drafts.rest --text benchmarks/data/correct_sentences.txt --tasks chat {JSON}",),
        with_texts,
    ),
    Figure("edits of agents", "tutorials/apply.md#measured", (f"benchmarks.applying --rows 20 {JSON}",), applied),
    Figure(
        "whole runs",
        "benchmarks.md#whole-runs",
        (f"benchmarks.speed --model default --methods plain,hf,copyspec --rows 3 --repeat 1 {JSON}",),
        sped,
        runs_model=True,
    ),
    Figure(
        "a real model",
        "benchmarks.md#a-real-model",
        (f"benchmarks.real --model default --per-task 2 --repeats 1 --max-new-tokens 32 {JSON}",),
        answered,
        runs_model=True,
    ),
    Figure(
        "survey",
        "survey.md#figures",
        (
            "benchmarks.spec_bench --model default --per-group 1 --max-new-tokens 24 "
            f"--methods plain copy pool lookahead {JSON}",
        ),
        surveyed,
        runs_model=True,
    ),
    Figure(
        "speculative retrieval",
        "rag.md#measured",
        (f"benchmarks.retrieval --questions 3 --kinds exact bm25 --ratios 2 --tokens 24 {JSON}",),
        retrieved,
    ),
)


def compared(figure: Figure, values: Values) -> Values:
    """Return those of the values that are the same on every machine."""
    return {name: value for name, value in values.items() if isinstance(value, str) or not figure.runs_model}


def differing(figure: Figure, values: Values, stored: Values) -> list[str]:
    """Return the names of the values that are not the stored ones."""
    ours, known = compared(figure, values), compared(figure, stored)
    return [name for name in dict.fromkeys([*ours, *known]) if ours.get(name) != known.get(name)]


SHOWN = 6
"""Values of a table's row, at most; of more, their range is shown."""


def table() -> str:
    """Return the table of docs/benchmarks.md: each command on the sample, and what it finds."""
    stored = json.loads(RESULTS.read_text("utf-8"))
    lines = ["| figures of | command on the sample | finds |", "|---|---|---|"]
    for figure in FIGURES:
        commands = "<br>".join(f"`python -m {command.replace(f' {JSON}', '')}`" for command in figure.commands)
        finds = _summary(compared(figure, stored[figure.name]))
        lines.append(f"| [{figure.name}]({figure.page}) | {commands} | {finds} |")
    return "\n".join(lines)


def _summary(values: Values) -> str:
    if len(values) <= SHOWN:
        return "; ".join(f"{name} {value}" for name, value in values.items())
    numbers = [value for value in values.values() if not isinstance(value, str)]
    texts = sorted({value for value in values.values() if isinstance(value, str)})
    parts = [f"{len(numbers)} figures, {min(numbers):g} to {max(numbers):g}"] if numbers else []
    return "; ".join([*parts, *([f"{len(values) - len(numbers)} others: {', '.join(texts)}"] if texts else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[figure.name for figure in FIGURES], help="run only these")
    parser.add_argument("--write", action="store_true", help="store the figures instead of comparing them")
    options = parser.parse_args(arguments)
    stored: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    begun, wrong = time.perf_counter(), 0
    for figure in FIGURES:
        if options.only and figure.name not in options.only:
            continue
        since = time.perf_counter()
        with tempfile.TemporaryDirectory() as out:
            try:
                values = figure.run(Path(out))
            except RuntimeError as error:
                print(f"\n{figure.name} FAILED: {error}", flush=True)
                wrong += 1
                continue
        print(f"\n{figure.name} (docs/{figure.page}), {time.perf_counter() - since:.0f} s", flush=True)
        others = [] if options.write else differing(figure, values, stored.get(figure.name, {}))
        for name, value in values.items():
            print(f"  {name}: {value}" + (f"  NOT {stored.get(figure.name, {}).get(name)}" * (name in others)))
        wrong += len(others)
        stored[figure.name] = values
    print(f"\n{time.perf_counter() - begun:.0f} s, {wrong or 'nothing'} other than in the docs")
    if options.write:
        write_json(RESULTS, {figure.name: stored[figure.name] for figure in FIGURES if figure.name in stored})
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
