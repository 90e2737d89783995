"""Fits how sure a corrector must be of an edit: ``python -m benchmarks.quality.margins --out FOLDER``.

The model corrects held-out sentences of the training text, one in three with mistakes inserted by the rules. Logistic
regression predicts whether a change restores the original: from the corrector's margin, from how much more likely the
change makes the text to the language model that the corrector was made from, from the words that are lost, and from its
kind. Printed: the constants of `copyspec.pipelines.guards.judging` for several odds, and how many changes are right at
these, of those that were not fitted; then how many of the changes are right that each `--precision` lets pass, in the
sentences after those that the constants were fitted on. No human corrections are used.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.quality.guarded import Remembering
from benchmarks.quality.model import QualityModel
from copyspec.pipelines import GuardOptions, ModelCorrector, ModelOptions
from copyspec.pipelines.edits.diff import apply  # type: ignore[import-not-found]
from copyspec.pipelines.guards.guards import measured_changes  # type: ignore[import-not-found]
from copyspec.pipelines.guards.judging import (  # type: ignore[import-not-found]
    CALIBRATED,
    GAIN,
    LOST_WORD,
    MOST_MARGIN,
    raised,
)

ODDS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # logarithms
PRECISIONS = (0.8, 0.85, 0.9, 0.95, 0.97)
FITTED = 1200  # sentences, the first ones, on which the constants in use were fitted
PENALTY = 0.5  # of squared weights; kinds with few changes stay near the others


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sentence of a paragraph, with or without mistakes."""

    before: str  # the rest of the paragraph before it
    text: str
    right: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change that the corrector makes."""

    row: int  # of its sentence
    kind: str
    margin: float
    gain: float  # in log-probability of the text, to the language model
    lost: int  # words
    is_right: bool
    is_clean: bool  # whether the sentence had no mistake
    was: str
    becomes: str
    text: str


def draw(data: Path, count: int, seed: int = 0) -> list[Drawn]:
    """Draw held-out sentences: one in three gets one or two mistakes."""
    from training.adapt import PRESETS
    from training.data import load_prose
    from training.noise import ALL_NOISES, corrupt
    from training.text import join_words, split_words, straight_quotes, well_formed

    _, prose = load_prose(data, PRESETS["cpu"].mixture)
    rng = random.Random(seed)
    places = [
        (paragraph, at)
        for paragraph in prose.paragraphs
        for at, text in enumerate(paragraph)
        if 12 <= len(text) <= 400 and well_formed(text)
    ]
    rng.shuffle(places)
    drawn: list[Drawn] = []
    for number, (sentences, at) in enumerate(places):
        *before, right = map(straight_quotes, sentences[: at + 1])
        words, kinds = split_words(right), [""]
        if number % 3 == 0:
            words, kinds = corrupt(words, prose.lexicon, rng, rng.choice((1, 1, 1, 2)), ALL_NOISES)
        if kinds and len(drawn) < count:
            drawn.append(Drawn(" ".join(before), join_words(words), right))
    return drawn


def changes_of(corrector: Remembering, drawn: Sequence[Drawn]) -> Iterable[Change]:
    """Yield the changes that the guards leave to the margins."""
    fluency, options = corrector.fluency, GuardOptions(precision=0.0)
    if fluency is None:
        raise SystemExit(f"{corrector.identity['model']} has no adapter that is merged into a language model")
    list(corrector.correct([sample.text for sample in drawn]))
    for row, sample in enumerate(drawn):
        outcome = corrector.outcome(sample.text)
        if outcome is None or outcome.text is None:
            continue
        wanted = {edit for edit, *_ in measured_changes(sample.text, sample.right, None, options)}
        output = outcome.text.removeprefix(" ")
        for edit, kind, margin, reason in measured_changes(sample.text, output, outcome.changes, options):
            if reason:
                continue
            made = apply(sample.text, [edit])
            source, after = fluency(f"{sample.before} "[-400:], (sample.text, made))
            was = sample.text[edit.start : edit.end]
            lost = max(0, len(sample.text.split()) - len(made.split()))
            is_right = edit in wanted
            is_clean = sample.text == sample.right
            yield Change(
                row, kind, margin, after - source, lost, is_right, is_clean, was, edit.replacement, sample.text
            )


def fitted(changes: Sequence[Change], kinds: Sequence[str]) -> tuple[float, float, float, dict[str, float]]:
    """Return the weights of the margin, of the gain and of a lost word in log-odds, and the intercept by kind."""
    numbers = [(min(change.margin, MOST_MARGIN), change.gain, change.lost, 1.0) for change in changes]
    columns = np.array(
        [[*row, *(change.kind == kind for kind in kinds)] for row, change in zip(numbers, changes, strict=True)]
    )
    right = np.array([float(change.is_right) for change in changes])
    weights, penalty = np.zeros(columns.shape[1]), np.array([0.0, 0, 0, 0, *[PENALTY] * len(kinds)]) + 1e-6
    for _ in range(50):  # Newton's method
        chance = 1 / (1 + np.exp(-columns @ weights))
        slope = columns.T @ (chance - right) + penalty * weights
        weights -= np.linalg.solve((columns.T * (chance * (1 - chance))) @ columns + np.diag(penalty), slope)
    margin, gain, word, intercept, *others = map(float, weights)
    return margin, gain, word, {kind: intercept + other for kind, other in zip(kinds, others, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-correct", help="alias, hub id or folder")
    parser.add_argument("--data", type=Path, required=True, help="folder of prose")
    parser.add_argument("--out", type=Path, required=True, help="folder for the corrections and every change")
    parser.add_argument("--rows", type=int, default=4000, help="number of sentences")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    corrector = ModelCorrector(QualityModel(options.model, torch.float32).engine, ModelOptions(by_sentence=False))
    remembering = Remembering(corrector, options.out / "corrections.jsonl")
    changes = list(changes_of(remembering, draw(options.data, options.rows)))
    (options.out / "changes.json").write_text(json.dumps([asdict(change) for change in changes], indent=0), "utf-8")
    report(changes)
    margins = CALIBRATED[corrector.calibration or options.model]
    for precision in PRECISIONS:
        print(f"--precision {precision}:", json.dumps(passed(changes, margins, precision)))


def passed(changes: Sequence[Change], margins: Mapping[str, float], precision: float) -> dict[str, object]:
    """Count the changes of sentences after the fitted ones that have the margins of a precision."""
    later = [change for change in changes if change.row >= FITTED]
    made = [
        change
        for change in later
        if min(change.margin, MOST_MARGIN) + GAIN * (change.gain - LOST_WORD * change.lost)
        >= margins[change.kind] + raised(precision)
    ]
    counts = {"in sentences with mistakes": [change for change in made if not change.is_clean], "in all": made}
    right = sum(change.is_right for change in made)
    shares = {name: [len(some), round(right / max(1, len(some)), 3)] for name, some in counts.items()}
    return {**shares, "of the right changes": round(right / max(1, sum(change.is_right for change in later)), 3)}


def report(changes: Sequence[Change]) -> None:
    kinds = sorted({change.kind for change in changes})
    halves = changes[::2], changes[1::2]
    for name, fit, tried in (("half", *halves), ("other half", *halves[::-1]), ("all", changes, changes)):
        margin, gain, word, by_kind = fitted(fit, kinds)
        print(f"{name}: GAIN {gain / margin:.2f}, LOST_WORD {-word / gain:.1f}, nats per log-odds {1 / margin:.2f}")
        odds = [
            margin * min(change.margin, MOST_MARGIN) + gain * change.gain + word * change.lost + by_kind[change.kind]
            for change in tried
        ]
        for least in ODDS:
            made = [change for change, odd in zip(tried, odds, strict=True) if odd >= least]
            share = sum(change.is_right for change in made) / max(1, len(made))
            margins = {kind: round((least - by_kind[kind]) / margin, 1) for kind in kinds}
            print(f"  {least:g}: {len(made)} of {len(tried)} changes made, {share:.3f} right", json.dumps(margins))
    for kind in kinds:
        of_kind = [change for change in changes if change.kind == kind]
        print(f"  {kind}: {sum(change.is_right for change in of_kind)} of {len(of_kind)} right")


if __name__ == "__main__":
    main()
