"""Measures the gain of drafts if weights are read from disk for every pass (LLMCad, Xu et al. 2023, arXiv 2309.04255).

python -m benchmarks.drafts.offloaded --heads FOLDER --json FILE

The model is offloaded with accelerate, and its files are dropped from the system's cache before each pass, as if they
did not fit into memory. Times are wall times; methods take turns on each prompt, and outputs are compared. Drafting
time is reported separately, since drafting while the weights are read could save at most that.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import copyspec
from benchmarks.spec_bench import PLAIN, methods, read_prompts
from kit import places
from kit.reporting import conditions, resumed, write_json


def drop_from_cache(folder: Path) -> None:
    """Drop these files from the page cache, so that the next read comes from the disk."""
    for path in folder.glob("*.dat"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def table(report: dict[str, Any]) -> str:
    """Format a Markdown table with a line per method, over the prompts that all methods have run on."""
    names = report["methods"]
    prompts = [prompt["runs"] for prompt in report["prompts"] if all(name in prompt["runs"] for name in names)]

    def total(name: str, what: str) -> float:
        return float(sum(runs[name][what] for runs in prompts))

    lines = [
        "| method | tokens per pass | seconds per token | over plain | drafting | equal |",
        "|---|--:|--:|--:|--:|---|",
    ]
    tokens = sum(len(runs[PLAIN]["tokens"]) for runs in prompts)
    for name in names:
        same = sum(runs[name]["tokens"] == runs[PLAIN]["tokens"] for runs in prompts)
        seconds, drafting = total(name, "seconds"), total(name, "drafting")
        lines.append(
            f"| {name} | {tokens / total(name, 'passes'):.2f} | {seconds / tokens:.2f} | "
            f"{total(PLAIN, 'seconds') / seconds:.2f}x | {drafting / seconds:.1%} | {same} of {len(prompts)} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts_folder(parser)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", help="folder written by training.heads")
    parser.add_argument("--per-group", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=20)
    parser.add_argument("--json", type=Path, help="results file, written after every run; an existing one is resumed")
    args = parser.parse_args()
    import accelerate  # type: ignore[import-untyped]

    torch.set_num_threads(1)
    names = [PLAIN, "copy", *(["copy + heads"] if args.heads else [])]
    head = {"model": args.model, "max_new_tokens": args.max_new_tokens, **conditions()}
    if args.heads:
        head["heads"] = args.heads
    report: dict[str, Any] = {"prompts": [], **resumed(args.json, head), **head, "methods": names}
    resident = copyspec.load(args.model, dtype="float32")
    groups = read_prompts(args.transcripts, resident, args.per_group, 256)
    by_id = {prompt["id"]: prompt for prompt in report["prompts"]}
    with tempfile.TemporaryDirectory() as place:
        disk = Path(place)
        model = accelerate.disk_offload(resident.model, place)
        model.register_forward_pre_hook(lambda *_: drop_from_cache(disk))
        engine = copyspec.Engine(model, resident.tokenizer)
        engine.threads = 1
        for group, cases in groups.items():
            for case in cases:
                if case.id not in by_id:
                    by_id[case.id] = {"id": case.id, "group": group, "runs": {}}
                    report["prompts"].append(by_id[case.id])
                for name in names:
                    if name in by_id[case.id]["runs"]:
                        continue
                    options = methods({"heads": args.heads})[name]
                    references = case.references if name != PLAIN else None
                    started = perf_counter()
                    result = engine.generate(case.chat, references, max_new_tokens=args.max_new_tokens, **options)
                    by_id[case.id]["runs"][name] = {
                        "seconds": perf_counter() - started,
                        "tokens": list(result.token_ids),
                        "passes": result.stats.num_passes,
                        "drafting": result.stats.draft_seconds,
                        "nodes": result.stats.num_draft_tokens,
                    }
                    if args.json is not None:
                        write_json(args.json, report)
                print(
                    case.id,
                    {name: round(run["seconds"], 1) for name, run in by_id[case.id]["runs"].items()},
                    flush=True,
                )
    print(table(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
