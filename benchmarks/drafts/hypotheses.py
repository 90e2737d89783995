"""A corrector's correction as one more text to copy from, on recorded corrections of larger models.

python -m benchmarks.drafts.hypotheses TRANSCRIPTS... --tokenizer FILE [--corrector smollm2-correct] [--rows 200]

Each source is corrected once by the corrector, sentence by sentence; its text is a reference beside the edited text.
Said are tokens a pass with copies alone and with the hypothesis, and what the corrector took: seconds, and passes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.replay.run import Tally, copyspec_drafter, replay
from benchmarks.transcripts import (
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    ratio,
    read_transcripts,
    tokenise,
)
from copyspec.api import load_corrector
from copyspec.budget import Budget
from copyspec.pipelines import ModelCorrector, ModelOptions
from copyspec.pipelines.editing.sentences import sentences


def correct_sources(sources: Iterable[str], corrector: ModelCorrector) -> tuple[dict[str, str], float, int]:
    """The correction of each source, the seconds of all, and the corrector's passes of one row."""
    texts = list(dict.fromkeys(sources))
    pieces = [[text[start:end] for start, end in sentences(text)] or [text] for text in texts]
    asked = list(dict.fromkeys(piece.strip() for row in pieces for piece in row))
    started, calls, known = time.process_time(), 0, dict[str, str]()
    for index, outcome in corrector.correct(asked):
        known[asked[index]] = outcome.text or asked[index]
        calls += outcome.result.stats.num_calls if outcome.result is not None else 0
    seconds = time.process_time() - started
    return (
        {
            text: "".join(piece.replace(piece.strip(), known[piece.strip()]) for piece in row) if row else text
            for text, row in zip(texts, pieces, strict=True)
        },
        seconds,
        calls,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcripts", nargs="+", help=".jsonl.gz files or folders of them")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of the larger model, gzip allowed")
    parser.add_argument("--corrector", help="default: the best that is here")
    parser.add_argument(
        "--models", default="gpt-4.1,claude,Llama-4", help="of the recorded outputs, by a part of a name"
    )
    parser.add_argument("--rows", type=int, default=200, help="of each file")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = load_tokenizer(options.tokenizer)
    engine = load_corrector(options.corrector)
    engine.threads = options.threads
    corrector = ModelCorrector(engine, ModelOptions(by_sentence=True))
    eos, result = end_token(tokenizer), {}
    for file in options.transcripts:
        kept = [row for row in read_transcripts([file]) if any(name in row.model for name in options.models.split(","))]
        rows = _cut(choose_rows(kept, options.rows, 0), options.rows)
        known, seconds, calls = correct_sources((row.references[0] for row in rows), corrector)
        tallies = {name: Tally() for name in ("copies", "with hypotheses")}
        for row in rows:
            both = replace(row, references=(*row.references, known[row.references[0]]))
            for name, each in (("copies", row), ("with hypotheses", both)):
                tokens = tokenise(each, tokenizer, eos)
                replay(copyspec_drafter(row.task, tokens), tokens.output, Budget(options.nodes), tallies[name])
        speed = {name: ratio(tally.output_tokens, tally.calls) for name, tally in tallies.items()}
        result[Path(file).name] = {
            "rows": len(rows),
            "sources": len(known),
            **{f"tokens a pass, {name}": round(value, 3) for name, value in speed.items()},
            "ratio": round(speed["with hypotheses"] / speed["copies"], 3),
            "corrector, CPU seconds a source": round(seconds / len(known), 3),
            "corrector, passes a source": round(calls / len(known), 2),
            "larger model, passes a source saved": round(
                (tallies["copies"].calls - tallies["with hypotheses"].calls) / len(rows), 2
            ),
        }
        print(json.dumps(result, indent=1), flush=True)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def _cut(rows: Sequence[Transcript], count: int) -> list[Transcript]:
    """So many of all sets together, of each as many."""
    by_model: dict[str, list[Transcript]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    each = count // len(by_model)
    return [row for members in by_model.values() for row in members[:each]]


if __name__ == "__main__":
    sys.exit(main())
