"""Measures the methods of docs/survey.md on Spec-Bench's six groups of tasks (Xia et al. 2024, arXiv 2401.07851).

python -m benchmarks.spec_bench --heads FOLDER --json spec-bench.json
python -m benchmarks.spec_bench --report spec-bench.json

The prompts are those of the recorded transcripts; the outputs are the model's own, decoded greedily. The methods run in
one process and take turns on each prompt; times are CPU times. Outputs of lossless methods are compared with those of
plain decoding, token by token. Tokens per pass count all forward passes of the model, including the first. Results are
written after every prompt, and an interrupted run resumes from its file; methods may be added then.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import torch

import copyspec
from benchmarks.real.cases import Case, case_of
from benchmarks.transcripts import Transcript, read_transcripts
from copyspec import literature
from kit import places
from kit.reporting import INPUTS, command_line, conditions, resumed, write_json

GROUPS: dict[str, tuple[str, str]] = {
    "conversation": ("chat", "mtbench"),
    "translation": ("translation", ""),
    "summarization": ("summarization", ""),
    "question answering": ("chat", "qa"),
    "mathematics": ("math", ""),
    "RAG": ("rag", ""),
}
"""Maps each group to its transcripts file and the set names that belong to it."""

PLAIN = "plain"
AGAIN = "plain again"  # plain decoding once more, to show how much two identical runs differ
SAMPLED = {"temperature": 0.7, "seed": 0}


def methods(folders: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Return the call options of each method by name.

    `folders` maps methods that need trained weights to their folder. Outputs of methods with a temperature or a
    lossy rule are not compared."""
    early: dict[str, Any] = {"draft_model": "layers:10"}
    found: dict[str, dict[str, Any]] = {
        PLAIN: {"drafter": "none"},
        AGAIN: {"drafter": "none"},
        "copy": {"drafter": "copy"},
        "pool": {"drafter": literature.Pool()},
        "copy + pool": {"drafter": ["auto", literature.Pool()]},
        "jacobi": {"drafter": copyspec.Jacobi(6)},
        "lookahead": {"drafter": copyspec.Lookahead()},
        "copy + lookahead": {"drafter": ["copy", copyspec.Lookahead()]},
        "layers": {"drafter": "model", **early},
        "copy + layers": early,
    }
    for name, prefix in TRAINED.items():
        if folder := folders.get(name):
            found[name] = {"drafter": "model", "draft_model": f"{prefix}{folder}"}
            found[f"copy + {name}"] = {"draft_model": f"{prefix}{folder}"}
    if folder := folders.get("heads"):
        found["copy + heads + pool"] = {"draft_model": f"heads:{folder}", "drafter": ["auto", literature.Pool()]}
    found["plain, sampled"] = {"drafter": "none", **SAMPLED}
    found["copy, sampled"] = {"drafter": "copy", **SAMPLED}
    found["copy, k-sequential"] = {"drafter": "copy", "rule": literature.KSequential(), **SAMPLED}
    found["copy, BiLD"] = {"drafter": "copy", "rule": literature.BiLD()}
    found["contrast, plain"] = {"drafter": "none", "rule": literature.Contrast("layers:10")}
    found["contrast"] = {"rule": literature.Contrast("layers:10")}
    return found


TRAINED = {
    "heads": "heads:", "parallel heads": "heads:", "eagle": "heads:", "student": "",
}  # fmt: skip
"""Methods that need trained weights, and the prefix of their folder in `draft_model`."""

BASES = {
    "copy, sampled": "plain, sampled",
    "copy, k-sequential": "plain, sampled",
    "contrast": "contrast, plain",
}
"""Methods whose time is compared with another baseline than plain decoding."""

LOOSE = {"copy, k-sequential", "copy, BiLD"}  # methods whose outputs may differ from their baseline's


def read_prompts(folder: Path, engine: copyspec.Engine, per_group: int, most: int) -> dict[str, list[Case]]:
    """Read prompts of each group: one per question, of at most `most` tokens."""
    found: dict[str, list[Case]] = {}
    for group, (file, named) in GROUPS.items():
        if not (folder / f"{file}.jsonl.gz").is_file():
            continue
        rows: list[Transcript] = [row for row in read_transcripts([folder / f"{file}.jsonl.gz"]) if named in row.set]
        rows.sort(key=lambda row: row.group)  # groups are hashes, so that this order is arbitrary but reproducible
        cases, seen = list[Case](), set[str]()
        for row in rows:
            case = case_of(row)
            if row.group in seen or len(engine.codec.encode_chat(case.chat).ids) > most:
                continue
            seen.add(row.group)
            cases.append(case)
            if len(cases) == per_group:
                break
        found[group] = cases
    return found


def run(engine: copyspec.Engine, case: Case, options: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Run one method on one prompt, and return its entry in the report."""
    references = case.references if options.get("drafter") != "none" else None
    started = process_time()
    result = engine.generate(case.chat, references, max_new_tokens=tokens, **options)
    seconds = process_time() - started
    stats = result.stats
    return {
        "seconds": round(seconds, 4),
        "tokens": list(result.token_ids),
        "passes": stats.num_passes,
        "drafting": round(stats.draft_seconds, 4),
        "nodes": stats.num_draft_tokens,
        "accepted": dict(stats.num_accepted_tokens_per_source),
    }


@dataclass(frozen=True, slots=True)
class Line:
    """Figures of one method."""

    method: str
    tokens_per_pass: float
    faster: Mapping[str, float]  # by group and for "all": speed-up over the baseline, per token
    equal: str  # "N of M" outputs equal the baseline's; "" if they may differ


def lines(report: Mapping[str, Any]) -> Iterator[Line]:
    """Compute the figures of each method on the prompts for which it and its baseline have results."""
    for name in report["methods"]:
        base = BASES.get(name, PLAIN)
        prompts = [each for each in report["prompts"] if name in each["runs"] and base in each["runs"]]
        runs = [each["runs"][name] for each in prompts]
        if not runs:
            continue
        groups = {group: [each for each in prompts if each["group"] == group] for group in GROUPS}
        faster = {group: _ratio(each, name, base) for group, each in groups.items() if each}
        same = sum(each["runs"][name]["tokens"] == each["runs"][base]["tokens"] for each in prompts)
        yield Line(
            name,
            sum(len(one["tokens"]) for one in runs) / sum(one["passes"] for one in runs),
            {**faster, "all": _ratio(prompts, name, base)},
            "" if name in LOOSE or name in BASES.values() else f"{same} of {len(prompts)}",
        )


def table(report: Mapping[str, Any]) -> str:
    """Format a Markdown table with a line per method: tokens per pass over all groups, and speed-up by group."""
    groups = [group for group in GROUPS if any(each["group"] == group for each in report["prompts"])]
    written = [
        f"| method | tokens per pass | {' | '.join(groups)} | all | equal |",
        "|---|--:|" + "--:|" * (len(groups) + 1) + "---|",
    ]
    for line in lines(report):
        times = " | ".join(f"{line.faster[one]:.2f}x" if one in line.faster else "" for one in (*groups, "all"))
        written.append(f"| {line.method} | {line.tokens_per_pass:.2f} | {times} | {line.equal} |")
    return "\n".join(written)


def _ratio(prompts: Sequence[Mapping[str, Any]], name: str, base: str) -> float:
    """Speed-up per token, since outputs of lossy methods differ in length."""
    per_token: list[float] = [
        sum(each["runs"][one]["seconds"] for each in prompts)
        / sum(len(each["runs"][one]["tokens"]) for each in prompts)
        for one in (base, name)
    ]
    return per_token[0] / per_token[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts_folder(parser)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--heads", help="folder written by training.heads")
    parser.add_argument("--parallel", help="folder written by training.heads --kind parallel, or Medusa's")
    parser.add_argument(
        "--features", help="folder of a feature layer written by training.heads --kind feature, or EAGLE's"
    )
    parser.add_argument("--student", help="folder written by training.distill")
    parser.add_argument("--methods", nargs="+", help="run only these methods")
    parser.add_argument("--per-group", type=int, default=2)
    parser.add_argument("--max-prompt", type=int, default=512, help="skip prompts of more tokens than this")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--json", type=Path, help="results file, written after every prompt; an existing one is resumed"
    )
    parser.add_argument("--report", type=Path, help="print the table of this results file without running anything")
    given = parser.parse_args()
    if given.report:
        if not given.report.is_file():
            parser.error(f"--report: there is no file {str(given.report)!r}; a run with --json writes it")
        print(table(json.loads(given.report.read_text(encoding="utf-8"))))
        return 0
    folders = {
        "heads": given.heads, "parallel heads": given.parallel, "eagle": given.features, "student": given.student,
    }  # fmt: skip
    chosen = methods(folders)
    for name in given.methods or ():
        if name not in chosen:
            parser.error(f"--methods: no method {name!r}, or no folder for it; there are {', '.join(chosen)}")
    files = dict.fromkeys(f"{file}.jsonl.gz" for file, _ in GROUPS.values())
    missing = [file for file in files if not (given.transcripts / file).is_file()]
    if len(missing) == len(files):
        parser.error(f"there is no {', '.join(missing)} in {str(given.transcripts)!r}; {INPUTS}")
    if missing:
        print(f"without the groups of {', '.join(missing)}, which {given.transcripts} lacks", file=sys.stderr)
    chosen = {name: options for name, options in chosen.items() if not given.methods or name in given.methods}
    torch.set_num_threads(given.threads)
    names = ("model", "dtype", "max_new_tokens", "max_prompt", "threads")
    head: dict[str, Any] = {**{name: getattr(given, name) for name in names}, **conditions()}
    head["folders"] = {name: folder for name, folder in folders.items() if folder is not None}
    before = resumed(given.json, head)
    report: dict[str, Any] = {"methods": list(dict.fromkeys([*before.get("methods", []), *chosen]))}
    report |= {"prompts": before.get("prompts", []), **head, "folders": before.get("folders", {}) | head["folders"]}
    report["command"] = command_line("benchmarks.spec_bench")
    engine = copyspec.load(given.model, dtype=given.dtype)
    engine.threads = given.threads
    held = {each["id"]: each for each in report["prompts"]}
    try:
        groups = read_prompts(given.transcripts, engine, given.per_group, given.max_prompt)
    except ValueError as error:
        parser.error(str(error))
    for place in range(given.per_group):
        for group, cases in groups.items():
            if place >= len(cases):
                continue
            case = cases[place]
            if case.id not in held:
                held[case.id] = {"id": case.id, "group": group, "runs": {}}
                report["prompts"].append(held[case.id])
            for name, options in chosen.items():
                if name not in held[case.id]["runs"]:
                    run(engine, case, options, 4)
                    held[case.id]["runs"][name] = run(engine, case, options, given.max_new_tokens)
                    if given.json is not None:
                        write_json(given.json, report)
    print(table(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
