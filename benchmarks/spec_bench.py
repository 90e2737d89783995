"""Measures the methods of docs/survey.md on Spec-Bench's six groups of tasks (Xia et al. 2024, arXiv 2401.07851).

python -m benchmarks.spec_bench --heads FOLDER --json spec-bench.json
python -m benchmarks.spec_bench --prompts FILE --methods plain copy sad llma "prompt lookup" suffix lookahead
python -m benchmarks.spec_bench --report spec-bench.json

The prompts are those of the recorded transcripts, of as many of their files as are there, or those of FILE: lines of
text, or JSON lines with `prompt` and, if wanted, `id`, `task`, `model` and `references`. Prompts of sets that belong to
none of Spec-Bench's groups are a group of their own, by the part of their id before the first ":" or "-". The outputs
are the model's own, decoded greedily. The methods run in
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
from benchmarks.transcripts import Transcript, read_transcripts, transcript
from copyspec import literature
from copyspec.retrievers import Datastore
from kit import places
from kit.reporting import INPUTS, command_line, conditions, read_rows, resumed, write_json

GROUPS: dict[str, tuple[str, str]] = {
    "conversation": ("chat", "mtbench"),
    "translation": ("translation", ""),
    "summarization": ("summarization", ""),
    "question answering": ("chat", "qa"),
    "mathematics": ("math", ""),
    "RAG": ("rag", ""),
}
"""Maps each group to its transcripts file and the set names that belong to it. Other sets are groups of their own."""

PLAIN = "plain"
AGAIN = "plain again"  # plain decoding once more, to show how much two identical runs differ
SAMPLED = {"temperature": 0.7, "seed": 0}


def methods(folders: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Return the call options of each method by name.

    `folders` maps methods that need trained weights to their folder. Outputs of methods with a temperature or a
    lossy rule are not compared."""
    early: dict[str, Any] = {"draft_model": "layers:10"}
    settings: dict[str, dict[str, Any]] = {
        PLAIN: {"drafter": "none"},
        AGAIN: {"drafter": "none"},
        "copy": {"drafter": "copy"},
        "pool": {"drafter": literature.Pool()},
        "copy + pool": {"drafter": ["auto", literature.Pool()]},
        "jacobi": {"drafter": copyspec.Jacobi(6)},
        "lookahead": {"drafter": copyspec.Lookahead()},
        "prompt lookup": {"drafter": literature.PromptLookup()},
        "suffix": {"drafter": literature.LongestSuffix()},
        "llma": {"drafter": literature.LLMA()},
        "sad": {"drafter": literature.SAD()},
        "copy + lookahead": {"drafter": ["copy", copyspec.Lookahead()]},
        "layers": {"drafter": "model", **early},
        "copy + layers": early,
    }
    for name, prefix in TRAINED.items():
        if folder := folders.get(name):
            settings[name] = {"drafter": "model", "draft_model": f"{prefix}{folder}"}
            settings[f"copy + {name}"] = {"draft_model": f"{prefix}{folder}"}
    if folder := folders.get("datastore"):
        settings["rest"] = {"drafter": "model", "datastore": Datastore(folder)}
    if folder := folders.get("heads"):
        settings["copy + heads + pool"] = {"draft_model": f"heads:{folder}", "drafter": ["auto", literature.Pool()]}
    settings["plain, sampled"] = {"drafter": "none", **SAMPLED}
    settings["copy, sampled"] = {"drafter": "copy", **SAMPLED}
    settings["copy, k-sequential"] = {"drafter": "copy", "rule": literature.KSequential(), **SAMPLED}
    for name, rule in LOSSY.items():
        settings[name] = {"drafter": "copy", "rule": rule}
    settings["contrast, plain"] = {"drafter": "none", "rule": literature.Contrast("layers:10")}
    settings["contrast"] = {"rule": literature.Contrast("layers:10")}
    return settings


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

LOSSY: dict[str, Any] = {
    "copy, BiLD": literature.BiLD(),
    "copy, lenience": literature.Lenience(),
    "copy, top-k gap": literature.TopKGap(),
    "copy, typical": literature.Typical(),
}
"""Rules that write other text than the model in fewer passes: they have a table of their own."""

LOOSE = {"copy, k-sequential", *LOSSY}  # methods whose outputs may differ from their baseline's


def read_given(file: Path) -> list[Transcript]:
    """Read the prompts of a file. Raises ValueError if there is none, or no prompt in it."""
    if not file.is_file():
        raise ValueError(f"--prompts: there is no file {str(file)!r}")
    if file.name.endswith((".jsonl", ".jsonl.gz")):
        rows = read_rows(file, "prompt")
    else:
        rows = [{"prompt": line} for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not rows:
        raise ValueError(f"--prompts: {str(file)!r} holds no prompt")
    name = file.name.partition(".")[0]
    common = {"task": name, "model": "", "references": [], "output": ""}
    return [transcript({"id": f"{name}:{at}"} | common | row) for at, row in enumerate(rows)]


def read_recorded(folder: Path) -> list[Transcript]:
    """Read the transcripts of Spec-Bench's groups, and say on stderr which files are not there. Raises ValueError if
    none is."""
    files = dict.fromkeys(f"{file}.jsonl.gz" for file, _ in GROUPS.values())
    missing = [file for file in files if not (folder / file).is_file()]
    if len(missing) == len(files):
        raise ValueError(f"there is no {', '.join(missing)} in {str(folder)!r}; {INPUTS}")
    if missing:
        print(f"without the groups of {', '.join(missing)}, which {folder} lacks", file=sys.stderr)
    return read_transcripts([folder / file for file in files if file not in missing])


def group_of(row: Transcript) -> str:
    """The group of a prompt: Spec-Bench's, or its set."""
    return next((group for group, (task, named) in GROUPS.items() if row.task == task and named in row.set), row.set)


def chosen_prompts(
    rows: Sequence[Transcript], engine: copyspec.Engine, per_group: int, most: int
) -> dict[str, list[Case]]:
    """Choose prompts of each group: one per question, of at most `most` tokens."""
    by_group: dict[str, list[Case]] = {group: [] for group in GROUPS}
    seen: set[tuple[str, str]] = set()
    for row in sorted(rows, key=lambda row: row.group):  # groups are hashes: an arbitrary order, but reproducible
        cases, case = by_group.setdefault(group_of(row), []), case_of(row)
        if len(cases) == per_group or (group_of(row), row.group) in seen:
            continue
        if len(engine.codec.encode_chat(case.chat).ids) <= most:
            seen.add((group_of(row), row.group))
            cases.append(case)
    return {group: cases for group, cases in by_group.items() if cases}


def said(groups: Mapping[str, Sequence[Case]], rows: int, per_group: int, most: int) -> str:
    """How many of the `rows` prompts `chosen_prompts` chose, and why not all."""
    used = sum(map(len, groups.values()))
    why = f": --per-group {per_group}, one per question, of at most --max-prompt {most} tokens" if used < rows else ""
    return f"{used} of {rows} prompts{why}"


def read_prompts(folder: Path, engine: copyspec.Engine, per_group: int, most: int) -> dict[str, list[Case]]:
    """Read the prompts of a folder of transcripts, as `chosen_prompts` chooses them."""
    return chosen_prompts(read_recorded(folder), engine, per_group, most)


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
        prompts = [prompt for prompt in report["prompts"] if name in prompt["runs"] and base in prompt["runs"]]
        runs = [prompt["runs"][name] for prompt in prompts]
        if not runs:
            continue
        groups = {group: [prompt for prompt in prompts if prompt["group"] == group] for group in groups_of(report)}
        faster = {group: _ratio(prompts, name, base) for group, prompts in groups.items() if prompts}
        same = sum(prompt["runs"][name]["tokens"] == prompt["runs"][base]["tokens"] for prompt in prompts)
        yield Line(
            name,
            sum(len(one["tokens"]) for one in runs) / sum(one["passes"] for one in runs),
            {**faster, "all": _ratio(prompts, name, base)},
            "" if name in LOOSE or name in BASES.values() else f"{same} of {len(prompts)}",
        )


def groups_of(report: Mapping[str, Any]) -> list[str]:
    """The groups that have prompts: Spec-Bench's in its order, then others."""
    present = dict.fromkeys(prompt["group"] for prompt in report["prompts"])
    return [*(group for group in GROUPS if group in present), *(group for group in present if group not in GROUPS)]


def table(report: Mapping[str, Any]) -> str:
    """Format Markdown tables with a line per method: tokens per pass over all groups, and speed-up by group. Lossy
    rules have a second one."""
    listed = list(lines(report))
    lossless = [line for line in listed if line.method not in LOSSY]
    lossy = [line for line in listed if line.method in LOSSY]
    parts = [_table(lossless, groups_of(report), equal=True)] if lossless else []
    if lossy:
        parts.append("Rules that write other text than the model:")
        parts.append(_table(lossy, groups_of(report), equal=False))
    return "\n\n".join(parts)


def _table(table_lines: Sequence[Line], groups: Sequence[str], *, equal: bool) -> str:
    written = [
        f"| method | tokens per pass | {' | '.join(groups)} | all |{' equal |' if equal else ''}",
        "|---|--:|" + "--:|" * (len(groups) + 1) + ("---|" if equal else ""),
    ]
    for line in table_lines:
        times = " | ".join(f"{line.faster[one]:.2f}x" if one in line.faster else "" for one in (*groups, "all"))
        written.append(f"| {line.method} | {line.tokens_per_pass:.2f} | {times} |{f' {line.equal} |' if equal else ''}")
    return "\n".join(written)


def _ratio(prompts: Sequence[Mapping[str, Any]], name: str, base: str) -> float:
    """Speed-up per token, since outputs of lossy methods differ in length."""
    per_token: list[float] = [
        sum(prompt["runs"][one]["seconds"] for prompt in prompts)
        / sum(len(prompt["runs"][one]["tokens"]) for prompt in prompts)
        for one in (base, name)
    ]
    return per_token[0] / per_token[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts_folder(parser)
    parser.add_argument("--prompts", type=Path, help="file of prompts, in place of the transcripts")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--heads", help="folder written by training.heads")
    parser.add_argument("--parallel", help="folder written by training.heads --kind parallel, or Medusa's")
    parser.add_argument(
        "--features", help="folder of a feature layer written by training.heads --kind feature, or EAGLE's"
    )
    parser.add_argument("--student", help="folder written by training.distill")
    parser.add_argument("--datastore", help="folder of a datastore of the model's tokens, for the method rest")
    parser.add_argument("--methods", nargs="+", help="run only these methods")
    parser.add_argument("--per-group", type=int, default=2, help="prompts of each group (default: %(default)s)")
    parser.add_argument("--max-prompt", type=int, default=512, help="skip prompts of more tokens than this")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--json", type=Path, help="results file, written after every prompt; an existing one is resumed"
    )
    parser.add_argument("--report", type=Path, help="print the table of this results file without running anything")
    args = parser.parse_args()
    if args.report:
        if not args.report.is_file():
            parser.error(f"--report: there is no file {str(args.report)!r}; a run with --json writes it")
        print(table(json.loads(args.report.read_text(encoding="utf-8"))))
        return 0
    folders = {
        "heads": args.heads, "parallel heads": args.parallel, "eagle": args.features, "student": args.student,
        "datastore": args.datastore,
    }  # fmt: skip
    chosen = methods(folders)
    for name in args.methods or ():
        if name not in chosen:
            parser.error(f"--methods: no method {name!r}, or no folder for it; there are {', '.join(chosen)}")
    try:
        rows = read_given(args.prompts) if args.prompts else read_recorded(args.transcripts)
    except ValueError as error:
        parser.error(str(error))
    chosen = {name: options for name, options in chosen.items() if not args.methods or name in args.methods}
    torch.set_num_threads(args.threads)
    names = ("model", "dtype", "max_new_tokens", "max_prompt", "threads")
    head: dict[str, Any] = {**{name: getattr(args, name) for name in names}, **conditions()}
    head["folders"] = {name: folder for name, folder in folders.items() if folder is not None}
    before = resumed(args.json, head)
    report: dict[str, Any] = {"methods": list(dict.fromkeys([*before.get("methods", []), *chosen]))}
    report |= {"prompts": before.get("prompts", []), **head, "folders": before.get("folders", {}) | head["folders"]}
    report["command"] = command_line("benchmarks.spec_bench")
    engine = copyspec.load(args.model, dtype=args.dtype)
    engine.threads = args.threads
    by_id = {prompt["id"]: prompt for prompt in report["prompts"]}
    groups = chosen_prompts(rows, engine, args.per_group, args.max_prompt)
    if not groups:
        parser.error(f"no prompt has at most {args.max_prompt} tokens: raise --max-prompt")
    print(said(groups, len(rows), args.per_group, args.max_prompt), file=sys.stderr)
    for place in range(args.per_group):
        for group, cases in groups.items():
            if place >= len(cases):
                continue
            case = cases[place]
            if case.id not in by_id:
                by_id[case.id] = {"id": case.id, "group": group, "runs": {}}
                report["prompts"].append(by_id[case.id])
            for name, options in chosen.items():
                if name not in by_id[case.id]["runs"]:
                    run(engine, case, options, 4)
                    by_id[case.id]["runs"][name] = run(engine, case, options, args.max_new_tokens)
                    if args.json is not None:
                        write_json(args.json, report)
    print(table(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
