"""What a corrector would write as further texts to copy from, on recorded corrections of larger models.

python -m benchmarks.drafts.hypotheses TRANSCRIPTS... --tokenizer FILE [--corrector smollm2-correct] [--rows 200]

Each source is corrected once by the corrector, sentence by sentence; its text, and that with its second choices, are
references beside the edited text. Said are tokens a pass with copies alone, with its first choices alone and with all,
and the seconds that the corrector took.
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


def write_versions(sources: Iterable[str], corrector: ModelCorrector) -> tuple[dict[str, tuple[str, ...]], float]:
    """The corrector's texts for each source, the likeliest first, and the processor seconds of all."""
    texts = list(dict.fromkeys(sources))
    started = time.process_time()
    found = corrector.versions(texts)
    return dict(zip(texts, found, strict=True)), time.process_time() - started


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
        known, seconds = write_versions((row.references[0] for row in rows), corrector)
        tallies = {name: Tally() for name in ("copies", "with its first choices", "with hypotheses")}
        for row in rows:
            texts = known[row.references[0]]
            for name, further in zip(tallies, ((), texts[:1], texts), strict=True):
                tokens = tokenise(replace(row, references=(*row.references, *further)), tokenizer, eos)
                replay(copyspec_drafter(row.task, tokens), tokens.output, Budget(options.nodes), tallies[name])
        speed = {name: ratio(tally.output_tokens, tally.calls) for name, tally in tallies.items()}
        result[Path(file).name] = {
            "rows": len(rows),
            "sources": len(known),
            **{f"tokens a pass, {name}": round(value, 3) for name, value in speed.items()},
            "ratio, with its first choices": round(speed["with its first choices"] / speed["copies"], 3),
            "ratio": round(speed["with hypotheses"] / speed["copies"], 3),
            "corrector, CPU seconds a source": round(seconds / len(known), 3),
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
