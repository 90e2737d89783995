"""Fits the weights of `copyspec.text.blocks`, which finds where in a prompt an edited text starts, and prints them.

python -m benchmarks.replay.fit_blocks [--recorded 0.2] [--weights fence,within a fence]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import torch

from benchmarks.replay.forms import form_rows
from benchmarks.replay.prompt_forms import FITTED, HELD_OUT
from benchmarks.transcripts import EDIT_TASKS, Transcript, choose_rows, read_transcripts
from copyspec.text import blocks as text_blocks
from kit import places

ALIKE = 0.6  # minimum similarity of a text and the output for the output to count as its edited version
LOOKED_AT = 300  # characters of each that are compared
FIRST = 8  # leading characters that tell a text from the same text with a mark before it
STEPS, SHRINK = 300, 0.002  # steps of Adam; penalty on the size of the weights

RECORDED = 0.2  # weight of the prompts as recorded; the rest goes to prompts in other forms
NAMES = [kind for kind in text_blocks.KINDS for _ in range(2)] + list(text_blocks.FEATURES)
FORM = "form "  # prefix of the names of the latter

Example = tuple[list[tuple[float, ...]], list[int]]
"""Features of the candidates, and the indices of those that the output starts with."""


def example(row: Transcript) -> Example:
    candidates = text_blocks.candidates(row.prompt)
    shares = []
    for candidate in candidates:
        source, output = row.prompt[candidate.start : candidate.stop][:LOOKED_AT], row.output[:LOOKED_AT]
        source = source[: len(output) + 50]
        if not set(source.lower().split()[:4]) & set(output.lower().split()[:4]):
            shares.append(0.0)
            continue
        whole = len(row.output) / max(1, candidate.stop - candidate.start)
        fits = min(whole, 1 / whole) if whole else 0.0
        shares.append(SequenceMatcher(None, source, output, autojunk=False).ratio() + 0.1 * fits)
    best = max(shares, default=0.0)
    right = [i for i, share in enumerate(shares) if share >= max(ALIKE, best - 0.02)]
    # A mark in front of a long text hardly changes its similarity to the output, so the first characters decide.
    agree = [_agreeing(row.prompt[candidates[i].start : candidates[i].start + FIRST], row.output) for i in right]
    return [candidate.features for candidate in candidates], [
        i for i, length in zip(right, agree, strict=True) if length == max(agree)
    ]


def _agreeing(source: str, output: str) -> int:
    """Length of the common prefix of both in characters, at most FIRST."""
    pairs = zip(source.lower(), output[:FIRST].lower(), strict=False)
    return next((length for length, (ours, theirs) in enumerate(pairs) if ours != theirs), min(FIRST, len(source)))


def examples(rows: Sequence[Transcript], half: int, per_form: int) -> Iterator[tuple[str, Example]]:
    chosen = [row for row in rows if int(row.group, 16) % 2 == half]
    for row in choose_rows(chosen, 40, seed=2):
        yield row.task, example(row)
    edits = [row for row in choose_rows(chosen, per_form, seed=3) if row.task in EDIT_TASKS and row.references]
    for form in FITTED if half == 0 else HELD_OUT:
        for row in form_rows(form, edits):
            yield FORM + form.name, example(row)


class Loss:
    """Mean negative log-probability of the right starts, as a function of the weights. Names are weighted equally."""

    def __init__(self, named: Sequence[tuple[str, Example]], recorded: float) -> None:
        names = [name for name, _ in named]
        forms = {name for name in names if name.startswith(FORM)}
        tasks = set(names) - forms
        share = {name: (1.0 - recorded) / len(forms) / names.count(name) for name in forms}
        share |= {name: recorded / len(tasks) / names.count(name) for name in tasks}
        self._shares = torch.tensor([share[name] for name in names])
        rows = [(number, features) for number, (_, (candidates, _)) in enumerate(named) for features in candidates]
        self._example = torch.tensor([number for number, _ in rows])
        self._marks = torch.tensor([int(features[0]) for _, features in rows])
        self._features = torch.tensor([features[1:] for _, features in rows])
        right = [place in places for _, (candidates, places) in named for place in range(len(candidates))]
        self._right = torch.tensor(right)
        self._is_none = torch.tensor([not places for _, (_, places) in named])

    def __call__(self, weights: torch.Tensor) -> torch.Tensor:
        odds = (weights[self._marks] + self._features @ weights[2 * len(text_blocks.KINDS) :]).exp()
        zeros = torch.zeros(len(self._shares))
        total = zeros.index_add(0, self._example, odds) + 1.0
        right = zeros.index_add(0, self._example, odds * self._right) + self._is_none.float()
        loss: torch.Tensor = (self._shares * (total.log() - right.log())).sum()
        return loss


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.fit_blocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    parser.add_argument(
        "--recorded", type=float, default=RECORDED, help="weight of the prompts as recorded (default: 0.2)"
    )
    parser.add_argument("--weights", default="", help="comma-separated marks and features to fit (default: all)")
    options = parser.parse_args(arguments)
    chosen = set(options.weights.split(",")) if options.weights else set(NAMES)
    if unknown := chosen.difference(NAMES):
        parser.error(
            f"--weights: no mark or feature {sorted(unknown)[0]!r}; there are {', '.join(dict.fromkeys(NAMES))}"
        )
    free = torch.tensor([float(name in chosen) for name in NAMES])
    rows = read_transcripts(options.transcripts)
    fitted, other = (Loss([one for one in examples(rows, half, 4) if one[1][0]], options.recorded) for half in (0, 1))
    weights = torch.tensor(text_blocks.WEIGHTS, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = fitted(weights) + SHRINK * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        if weights.grad is not None:
            weights.grad *= free
        optimizer.step()
        if step % 50 == 0 or step == STEPS - 1:
            print(
                f"step {step + 1}: {float(loss.detach()):.4f}, other half {float(other(weights.detach())):.4f}",
                file=sys.stderr,
            )
    print([round(weight, 2) for weight in weights.tolist()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
