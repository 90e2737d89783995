"""Fits where in a prompt an edited text starts: prints the weights of `copyspec.text.blocks`.

python -m benchmarks.replay.fit_blocks TRANSCRIPTS...
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

ALIKE = 0.6  # of an output and the text that it starts with, from which it counts as its edited version
LOOKED_AT = 300  # characters of both

Example = tuple[list[tuple[float, ...]], list[int]]
"""Features of the candidates, and which of them the output starts with."""


def example(row: Transcript) -> Example:
    found = text_blocks.candidates(row.prompt)
    shares = []
    for candidate in found:
        source, output = row.prompt[candidate.start : candidate.stop][:LOOKED_AT], row.output[:LOOKED_AT]
        source = source[: len(output) + 50]
        if not set(source.lower().split()[:4]) & set(output.lower().split()[:4]):
            shares.append(0.0)
            continue
        whole = len(row.output) / max(1, candidate.stop - candidate.start)
        fits = min(whole, 1 / whole) if whole else 0.0
        shares.append(SequenceMatcher(None, source, output, autojunk=False).ratio() + 0.1 * fits)
    best = max(shares, default=0.0)
    return [candidate.features for candidate in found], [
        i for i, share in enumerate(shares) if share >= max(ALIKE, best - 0.02)
    ]


def examples(rows: Sequence[Transcript], half: int, per_form: int) -> Iterator[tuple[str, Example]]:
    chosen = [row for row in rows if int(row.group, 16) % 2 == half]
    for row in choose_rows(chosen, 40, seed=2):
        yield row.task, example(row)
    edits = [row for row in choose_rows(chosen, per_form, seed=3) if row.task in EDIT_TASKS and row.references]
    for form in FITTED if half == 0 else HELD_OUT:
        for row in form_rows(form, edits):
            yield f"form {form.name}", example(row)


def loss_of(weights: torch.Tensor, batch: Sequence[tuple[str, Example]], shares: dict[str, float]) -> torch.Tensor:
    total, marks = torch.zeros(()), 2 * len(text_blocks.KINDS)
    for name, (features, right) in batch:
        rows = torch.tensor(features)
        scores = weights[rows[:, 0].long()] + rows[:, 1:] @ weights[marks:]
        scores = torch.cat([scores, torch.zeros(1)])
        log_probs = torch.log_softmax(scores, 0)
        picked = right or [len(features)]
        total = total - torch.logsumexp(log_probs[torch.tensor(picked)], 0) * shares[name]
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay.fit_blocks", description=__doc__)
    parser.add_argument("transcripts", nargs="+", help=".jsonl.gz files or folders of them")
    options = parser.parse_args(arguments)
    rows = read_transcripts(options.transcripts)
    halves = [[each for each in examples(rows, half, 4) if each[1][0]] for half in (0, 1)]
    weights = torch.tensor(text_blocks.WEIGHTS, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.1)
    shares = []
    for half in halves:
        names = [name for name, _ in half]
        shares.append({name: 1.0 / names.count(name) / len(set(names)) for name in set(names)})
    for step in range(80):
        optimizer.zero_grad()
        loss = loss_of(weights, halves[0], shares[0]) + 0.002 * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % 20 == 19:
            other = loss_of(weights.detach(), halves[1], shares[1])
            print(f"step {step + 1}: {float(loss):.4f}, other half {float(other):.4f}", file=sys.stderr)
    print([round(weight, 2) for weight in weights.tolist()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
