"""Measures edits requested in chats: passes and time if the edited text is given, if it must be found, and plain.

python -m benchmarks.speed.prompt_only --model FOLDER [--rows 20] [--max-new-tokens 160] [--json FILE]

The prompts are those of the recordings, one message each. The outputs are the model's own, and equal in all three
modes except at near-ties.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

import copyspec
from benchmarks.transcripts import EDIT_TASKS, Transcript, choose_rows, read_transcripts
from copyspec import Result
from copyspec.engine.engine import Engine
from kit import places
from kit.reporting import machine, ratio, write_json

MODES = ("plain", "given", "prompt_only")


def measure(engine: Engine, rows: Sequence[Transcript], max_new_tokens: int) -> dict[str, object]:
    """Measure tokens per pass and seconds of each mode, over all of `rows`, after a warm-up. Modes take turns."""
    tokens, passes, seconds = ({mode: 0.0 for mode in MODES} for _ in range(3))
    equal = 0
    for mode in MODES:
        _generate(engine, rows[0], mode, max_new_tokens)
    for number, row in enumerate(rows):
        outputs = set()
        first = number % len(MODES)
        for mode in MODES[first:] + MODES[:first]:
            started = time.perf_counter()
            result = _generate(engine, row, mode, max_new_tokens)
            seconds[mode] += time.perf_counter() - started
            tokens[mode] += len(result.token_ids)
            passes[mode] += result.stats.num_passes
            outputs.add(tuple(result.token_ids))
        equal += len(outputs) == 1
    per_pass = {mode: round(ratio(tokens[mode], passes[mode]), 3) for mode in MODES}
    return {
        "task": rows[0].task,
        "rows": len(rows),
        "equal_outputs": equal,
        "output_tokens": int(tokens["plain"]),
        "tokens_per_pass": per_pass,
        "seconds": {mode: round(seconds[mode], 2) for mode in MODES},
        "share": round(ratio(per_pass["prompt_only"], per_pass["given"]), 3),
    }


def _generate(engine: Engine, row: Transcript, mode: str, max_new_tokens: int) -> Result:
    keywords: dict[str, object] = {"max_new_tokens": max_new_tokens}
    if mode == "plain":
        keywords["drafter"] = "none"
    if mode == "given":
        keywords["edit_source"] = row.references[0]
    messages = [{"role": "user", "content": row.prompt}]
    return engine.generate(messages, **keywords)  # type: ignore[call-overload,no-any-return]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.prompt_only",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    parser.add_argument("--model", required=True, help="folder or name of a model with a chat template")
    parser.add_argument("--rows", type=int, default=20, help="prompts per task (default: 20)")
    parser.add_argument(
        "--dtype",
        default="float32",
        help="data type; in bfloat16, near-ties may resolve differently in passes of other shapes",
    )
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--json", default=None, help="write the figures to this file")
    options = parser.parse_args(arguments)
    rows = [row for row in read_transcripts(options.transcripts) if row.task in EDIT_TASKS and row.references]
    engine = copyspec.load(options.model, dtype=options.dtype)
    figures: list[Mapping[str, object]] = []
    for task in sorted({row.task for row in rows}):
        by_prompt = {
            row.prompt: row for row in choose_rows([row for row in rows if row.task == task], options.rows, seed=4)
        }
        figures.append(measure(engine, list(by_prompt.values())[: options.rows], options.max_new_tokens))
        print(figures[-1], flush=True)
    if options.json:
        write_json(options.json, {"machine": machine(), "dtype": options.dtype, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
