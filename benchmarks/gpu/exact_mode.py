"""Checks exact mode in half precision: counts tokens in which drafts change the output of plain decoding of equal
shape.

    python -m benchmarks.gpu.exact_mode --tokens 20000 --json exact.json       # resumes an interrupted run
    python -m benchmarks.gpu.exact_mode --device cuda --model NAME --tokens 1000000

Prompts are the sentences and paragraphs of benchmarks/data in turn, each with its text to copy from. For comparison,
`--usual` prompts are also decoded without exact mode.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.data import DATA, lines

if TYPE_CHECKING:
    from copyspec import Engine

NEW_TOKENS = 200  # per output


def texts() -> list[str]:
    """Return the texts to copy from."""
    return lines() + lines(DATA / "paragraphs.txt")


def cases(number: int) -> tuple[str, str]:
    """Return prompt and text of case `number`. After all single texts, texts are combined in pairs."""
    every = texts()
    text, turn = every[number % len(every)], number // len(every)
    if turn:
        text = f"{every[(number + 7 * turn) % len(every)]} {text}"
    return f"Correct the grammar: {text}", text


def compared(engine: Engine, numbers: Sequence[int], new_tokens: int = NEW_TOKENS) -> list[dict[str, Any]]:
    """Decode prompts as one batch with and without drafts; return, for each, the tokens compared, the first
    difference, and its share of the seconds."""
    prompts, sources = zip(*map(cases, numbers), strict=True)
    seconds, outputs = [], []
    calls: list[int] = []
    for drafter in ("auto", "none"):
        started = perf_counter()
        results = engine.generate(
            list(prompts),
            edit_source=list(sources),
            drafter=drafter,
            max_new_tokens=new_tokens,
            ignore_eos=True,
            max_draft_nodes=32,
            batch_size=len(prompts),
        )
        seconds.append((perf_counter() - started) / len(prompts))
        outputs.append([list(result.token_ids) for result in results])
        calls = calls or [result.stats.num_passes for result in results]
    measured = []
    for number, num_passes, drafted, plain in zip(numbers, calls, *outputs, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(drafted, plain, strict=True)) if a != b), len(plain))
        measured.append(
            {
                "case": number,
                "tokens": len(plain),
                "calls": num_passes,
                "differ": int(same < len(plain)),
                "first": same if same < len(plain) else None,
                "seconds": [round(second, 4) for second in seconds],
            }
        )
    return measured


def run(
    engine: Engine, tokens: int, done: list[dict[str, Any]], new_tokens: int, batch: int
) -> Iterator[list[dict[str, Any]]]:
    """Compare until `tokens` tokens have been compared, starting after the cases in `done`; yield all cases after
    each batch."""
    while sum(call["tokens"] for call in done) < tokens:
        done += compared(engine, range(len(done), len(done) + batch), new_tokens)
        yield done


def summary(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sum up all cases: tokens up to the first difference of each output, and the number of outputs that differ."""
    return {
        "outputs": len(done),
        "tokens": sum(call["tokens"] for call in done),
        "tokens_in_calls": sum(call["calls"] for call in done),
        "outputs_that_differ": sum(call["differ"] for call in done),
        "tokens_compared": sum(call["tokens"] if call["first"] is None else call["first"] + 1 for call in done),
        "seconds_drafts": round(sum(call["seconds"][0] for call in done), 1),
        "seconds_plain": round(sum(call["seconds"][1] for call in done), 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.exact_mode", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--batch", type=int, default=1, help="prompts decoded together")
    parser.add_argument(
        "--usual", type=int, default=0, help="number of prompts that are also compared without exact mode"
    )
    parser.add_argument("--attention", choices=("auto", "masks", "tree"), default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    import copyspec
    from kit.reporting import command_line, resumed, surroundings

    around: dict[str, Any] = surroundings(options.device)
    head = {name: getattr(options, name) for name in ("model", "dtype", "device", "new_tokens", "batch", "attention")}
    fixed = {name: around[name] for name in ("machine", "threads", "versions")}
    done = resumed(options.json, {**head, "machine": fixed}).get("cases", [])
    static = copyspec.StaticOptions(use="always", exact=True, attention=options.attention)
    engine = copyspec.load(options.model, dtype=options.dtype, device=options.device, static=static)
    report: dict[str, Any] = {
        "command": command_line("benchmarks.gpu.exact_mode", arguments),
        **head,
        "machine": around,
        **summary(done),
    }
    for so_far in run(engine, options.tokens, done, options.new_tokens, options.batch):
        report |= summary(so_far)
        if options.json:
            options.json.write_text(json.dumps({**report, "cases": so_far}) + "\n")
    if options.usual:
        usual = copyspec.load(options.model, dtype=options.dtype, device=options.device)
        report["without_exact_mode"] = summary(
            [call for number in range(options.usual) for call in compared(usual, [number], options.new_tokens)]
        )
    if options.json:
        options.json.write_text(json.dumps({**report, "cases": done}) + "\n")
    print(json.dumps({name: value for name, value in report.items() if name != "machine"}, indent=1))
    return int(report["outputs_that_differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
