"""Measures a corrector's outputs as additional references, on recorded corrections of larger models.

python -m benchmarks.drafts.hypotheses [--corrector smollm2-correct] [--rows 200]
                                       [--keep FILE]

The corrector corrects each source once, sentence by sentence. Its output, and the same with its second choices, become
references in addition to the edited text. Reported: tokens per pass with copies alone, with its first choices, and with
all choices; and the corrector's time in seconds.
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

from benchmarks.quality.guarded import OUTPUTS_OF
from benchmarks.replay.run import Tally, copyspec_drafter, replay
from benchmarks.transcripts import Transcript, choose_rows, end_token, load_tokenizer, read_transcripts, tokenise
from copyspec.api import load_corrector
from copyspec.budget import Budget
from copyspec.pipelines import ModelCorrector, ModelOptions
from kit import places
from kit.reporting import kept_rows, ratio, write_json

TOGETHER = 16  # number of sources corrected at once and then saved
Kept = dict[str, tuple[tuple[str, ...], float]]
"""Maps each source to the corrector's outputs for it, most likely first, and the CPU seconds that they took."""


def write_versions(sources: Iterable[str], corrector: ModelCorrector, keep: Path | None = None) -> Kept:
    """Return the corrector's outputs for each source.

    `keep`: a file that stores outputs between runs. Raises SystemExit if it holds those of another corrector."""
    rows = kept_rows(keep, {name: corrector.identity.get(name) for name in OUTPUTS_OF})
    known: Kept = {text: (tuple(versions), seconds) for text, versions, seconds in rows}
    texts = [text for text in dict.fromkeys(sources) if text not in known]
    for at in range(0, len(texts), TOGETHER):
        asked = texts[at : at + TOGETHER]
        started = time.process_time()
        written = corrector.versions(asked)
        seconds = (time.process_time() - started) / len(asked)
        for text, versions in zip(asked, written, strict=True):
            known[text] = versions, seconds
        if keep is not None:
            with keep.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps([text, known[text][0], seconds]) + "\n" for text in asked)
    return known


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--corrector", help="corrector (default: the best one installed)")
    parser.add_argument(
        "--models", default="gpt-4.1,claude,Llama-4", help="use outputs of models whose name contains this"
    )
    parser.add_argument("--rows", type=int, default=200, help="rows per file")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument(
        "--keep", type=Path, help="file that stores the corrector's outputs, so that an interrupted run can be resumed"
    )
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
        candidates = [
            row for row in read_transcripts([file]) if any(name in row.model for name in options.models.split(","))
        ]
        rows = cut(choose_rows(candidates, options.rows, 0), options.rows)
        sources = {row.references[0] for row in rows}
        known = write_versions((row.references[0] for row in rows), corrector, options.keep)
        seconds = sum(known[source][1] for source in sources)
        tallies = {name: Tally() for name in ("copies", "with its first choices", "with hypotheses")}
        for row in rows:
            texts = known[row.references[0]][0]
            for name, further in zip(tallies, ((), texts[:1], texts), strict=True):
                tokens = tokenise(replace(row, references=(*row.references, *further)), tokenizer, eos)
                replay(copyspec_drafter(row.task, tokens), tokens.output, Budget(options.nodes), tallies[name])
        speed = {name: ratio(tally.output_tokens, tally.calls) for name, tally in tallies.items()}
        result[Path(file).name] = {
            "rows": len(rows),
            "sources": len(sources),
            **{f"tokens a pass, {name}": round(value, 3) for name, value in speed.items()},
            "ratio, with its first choices": round(speed["with its first choices"] / speed["copies"], 3),
            "ratio": round(speed["with hypotheses"] / speed["copies"], 3),
            "corrector, CPU seconds a source": round(seconds / len(sources), 3),
            "larger model, passes a source saved": round(
                (tallies["copies"].calls - tallies["with hypotheses"].calls) / len(rows), 2
            ),
        }
        print(json.dumps(result, indent=1), flush=True)
        if options.json:
            write_json(options.json, result)
    return 0


def cut(rows: Sequence[Transcript], count: int) -> list[Transcript]:
    """Choose `count` rows, evenly from all sets."""
    by_model: dict[str, list[Transcript]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    per_model = count // len(by_model)
    return [row for members in by_model.values() for row in members[:per_model]]


if __name__ == "__main__":
    sys.exit(main())
