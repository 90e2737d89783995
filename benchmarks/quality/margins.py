"""Measures how clearly a model prefers right and wrong changes: ``python -m benchmarks.quality.margins``.

The margins required of a change (`copyspec.pipelines.guards.judging`) are chosen from these figures. The model corrects
held-out sentences of the training text, unchanged and with mistakes inserted by the rules; every change that it makes
is stored with its kind, its margin and whether it restores the original. No human corrections are used.

    python -m benchmarks.quality.margins --data DATA/text --out FOLDER --rows 300
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.guarded import Remembering
from benchmarks.quality.model import QualityModel
from copyspec.pipelines import GECPipeline, GuardOptions, ModelCorrector, ModelOptions
from copyspec.pipelines.guards.guards import measured_changes  # type: ignore[import-not-found]

STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
Row = dict[str, Any]


def draw(data: Path, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Draw held-out texts as (text, correct text): a third with mistakes, the others without."""
    from training.adapt import PRESETS
    from training.data import load_prose

    _, held = load_prose(data, PRESETS["cpu"].mixture)
    rng = random.Random(seed)
    wrong: list[tuple[str, str]] = []
    clean: list[tuple[str, str]] = []
    while len(wrong) < count or len(clean) < 2 * count:
        example = held.sentence(rng)
        pair = (example.prompt.split(": ", 1)[1], example.answer[1:])
        kind, most = (wrong, count) if pair[0] != pair[1] else (clean, 2 * count)
        if len(kind) < most:
            kind.append(pair)
    return wrong + clean


def changes_of(corrector: Remembering, pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Return every change that the model makes to these texts."""
    rows: list[Row] = []
    texts = [text for text, _ in pairs]
    list(GECPipeline(corrector)(texts))
    for text, right in pairs:
        outcome = corrector.outcome(text)
        if outcome is None or outcome.text is None:
            continue
        wanted = {edit for edit, *_ in _changes(text, right)}
        for edit, kind, margin, reason in _changes(text, outcome.text.removeprefix(" "), outcome.changes):
            rows.append(
                {
                    "kind": kind, "margin": margin, "reason": reason, "right": edit in wanted, "clean": text == right,
                    "was": text[edit.start : edit.end], "becomes": edit.replacement, "text": text,
                }
            )  # fmt: skip
    return rows


def _changes(text: str, output: str, changes: Any = None) -> Iterable[tuple[Any, str, float, str]]:
    yield from measured_changes(text, output, changes, GuardOptions(caution=0.0, allow_swaps=True))


def table(rows: Sequence[Row], texts: int) -> str:
    """Count by kind, for changes at or above each margin: right ones, wrong ones, and those made in correct text."""
    lines = [f"{'kind':10} " + " ".join(f"{f'>= {step:g}':>14}" for step in STEPS) + "   (right/wrong/clean)"]
    for kind in sorted({row["kind"] for row in rows}):
        cells = []
        for step in STEPS:
            found = [row for row in rows if row["kind"] == kind and row["margin"] >= step]
            right, clean = sum(row["right"] for row in found), sum(row["clean"] for row in found)
            cells.append(f"{right:4}/{len(found) - right - clean:3}/{clean:3}".rjust(14))
        lines.append(f"{kind:10} " + " ".join(cells))
    return "\n".join([*lines, f"clean texts: {texts}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-correct", help="alias, hub id or folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of prose")
    parser.add_argument("--out", type=Path, required=True, help="folder for the texts, drawn once, and every change")
    parser.add_argument("--rows", type=int, default=300, help="number of texts with mistakes; twice as many have none")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    drawn = options.out / "texts.json"
    if not drawn.exists():
        drawn.write_text(json.dumps(draw(options.data, options.rows), indent=0), encoding="utf-8")
    pairs = [(text, right) for text, right in json.loads(drawn.read_text(encoding="utf-8"))]
    torch.set_num_threads(1)
    engine = QualityModel(options.model, torch.float32).engine
    rows = changes_of(Remembering(ModelCorrector(engine, ModelOptions(by_sentence=False))), pairs)
    (options.out / "changes.json").write_text(json.dumps(rows, indent=0), encoding="utf-8")
    print(table(rows, sum(text == right for text, right in pairs)))


if __name__ == "__main__":
    main()
