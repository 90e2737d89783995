"""Compares a real model's outputs with plain decoding, token by token, over prompts of real tasks.

python -m benchmarks.real.exactness --dtype float32 --json exactness-float32.json
python -m benchmarks.real.exactness --report exactness-float32.json

Prompts run in blocks of eight, with tasks in turn. Plain decoding in batches of eight, copying alone and copying in
batches of eight are compared with `generate` (one prompt at a time); sampled outputs with copying in batches of eight
are compared with plain sampling at the same seed. At a difference, the scores of both tokens are computed in one pass
over the common prefix. Results are written after every block, and a run resumes from its file. Exit status 1 if float32
outputs differ.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import copyspec
from benchmarks.real.cases import TASKS, Case, read_cases
from benchmarks.real.run import Bench, Setting, decoded
from kit import places
from kit.reporting import command_line, conditions, resumed, write_json

if TYPE_CHECKING:
    from copyspec import Engine

BLOCK = 8
TEMPERATURE = 0.8
SEED = 7

Outputs = list[list[int]]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token at which an output differs from the expected one."""

    method: str
    id: str
    position: int
    expected: int | None  # the token there; None if the expected output had ended
    found: int | None
    gap: float | None  # difference of the two tokens' logits


def ours(engine: Engine, cases: Sequence[Case], limit: int, *, drafts: bool, sampled: bool = False) -> Outputs:
    """Decode these cases as one batch with copyspec, and return the outputs."""
    temperature, seed = (TEMPERATURE, SEED) if sampled else (None, None)
    results = decoded(engine, cases, limit, drafts=drafts, temperature=temperature, seed=seed)
    return [list(result.token_ids) for result in results]


def parted(engine: Engine, method: str, case: Case, expected: Sequence[int], actual: Sequence[int]) -> Parting | None:
    """Find the first difference between `actual` and `expected`; None if they are equal."""
    if list(expected) == list(actual):
        return None
    at = 0
    while at < min(len(expected), len(actual)) and expected[at] == actual[at]:
        at += 1
    left = expected[at] if at < len(expected) else None
    right = actual[at] if at < len(actual) else None
    gap = None
    if left is not None and right is not None:
        ids = [*engine.codec.encode_chat(case.chat).ids, *expected[:at]]
        with torch.inference_mode():
            scores = engine.model(torch.tensor([ids], device=engine.model.device)).logits[0, -1].float()
        gap = float(scores[left] - scores[right])
    return Parting(method, case.id, at, left, right, gap)


def measure(engine: Engine, cases: Sequence[Case], limit: int) -> dict[str, Any]:
    """Run all methods on one block, and return its entry in the report."""
    bench = Bench(engine, Setting(limit, torch.get_num_threads(), 1))
    greedy = [bench.run("generate", [case]).tokens[0] for case in cases]
    sampled = ours(engine, cases, limit, drafts=False, sampled=True)
    compared: dict[str, tuple[Outputs, Outputs]] = {
        "plain, batch": (greedy, ours(engine, cases, limit, drafts=False)),
        "copied": (greedy, [ours(engine, [case], limit, drafts=True)[0] for case in cases]),
        "copied, batch": (greedy, ours(engine, cases, limit, drafts=True)),
        "sampled, copied, batch": (sampled, ours(engine, cases, limit, drafts=True, sampled=True)),
    }
    partings = [
        parted(engine, method, *row)
        for method, (expected, actual) in compared.items()
        for row in zip(cases, expected, actual, strict=True)
    ]
    return {
        "ids": [case.id for case in cases],
        "tokens": {method: sum(map(len, expected)) for method, (expected, _) in compared.items()},
        "parted": [asdict(parting) for parting in partings if parting is not None],
    }


def table(report: Mapping[str, Any]) -> str:
    """Format a Markdown table of the outputs and tokens compared per method, and of the outputs that differ."""
    blocks = report["blocks"]
    lines = [f"{report['model']}, {report['dtype']}: {sum(len(block['ids']) for block in blocks)} prompts"]
    for method in blocks[0]["tokens"] if blocks else ():
        partings = [parting for block in blocks for parting in block["parted"] if parting["method"] == method]
        tokens = sum(block["tokens"][method] for block in blocks)
        gaps = ", ".join(f"{abs(parting['gap']):.4f}" for parting in partings if parting["gap"] is not None)
        lines.append(
            f"  {method:<24}{tokens:>7} tokens, {len(partings)} outputs part" + (f": gaps {gaps}" if gaps else "")
        )
    return "\n".join(lines)


def blocks_of(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    for start in range(0, len(cases), BLOCK):
        yield cases[start : start + BLOCK]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts_folder(parser)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-prompt", type=int, default=1024, help="skip prompts of more tokens than this")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="results file, written after every block; an existing one is resumed")
    parser.add_argument(
        "--report", type=Path, nargs="+", help="print the tables of these results files without running anything"
    )
    options = parser.parse_args()
    if options.report:
        for path in options.report:
            print(table(json.loads(path.read_text(encoding="utf-8"))))
        return 0
    torch.set_num_threads(options.threads)
    names = ("model", "dtype", "max_new_tokens", "threads", "prompts", "max_prompt")
    head = {**{name: getattr(options, name) for name in names}, **conditions()}
    report: dict[str, Any] = {"command": command_line("benchmarks.real.exactness"), **head}
    report["blocks"] = resumed(options.json, head).get("blocks", [])
    engine = copyspec.load(options.model, dtype=options.dtype)
    engine.threads = options.threads
    per_task = -(-options.prompts // len(TASKS))
    cases = read_cases(options.transcripts, engine, tasks=TASKS, per_task=per_task, max_prompt=options.max_prompt)
    done = {tuple(block["ids"]) for block in report["blocks"]}
    for block in blocks_of(cases[: options.prompts]):
        if tuple(case.id for case in block) in done:
            continue
        report["blocks"].append(measure(engine, block, options.max_new_tokens))
        if options.json is not None:
            write_json(options.json, report)
    print(table(report))
    return int(options.dtype == "float32" and any(block["parted"] for block in report["blocks"]))


if __name__ == "__main__":
    raise SystemExit(main())
