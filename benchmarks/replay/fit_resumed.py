"""Fits where copying of an edited text resumes after a difference, and prints the weights of `copying.resumptions`.

python -m benchmarks.replay.fit_resumed [--rows 40]

The drafter runs along recorded edits, with and without being told which text is edited. The fit uses half of the
groups; the likelihood of the tokens that came next is printed on stderr for both halves.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from tokenizers import Tokenizer

from benchmarks.replay.fit import TASKS
from benchmarks.replay.run import accepted_path, row_sources
from benchmarks.transcripts import (
    EDIT_TASKS,
    Transcript,
    choose_rows,
    end_token,
    load_tokenizer,
    read_transcripts,
    tokenise,
)
from copyspec.budget import Budget
from copyspec.drafters.copying import resumptions
from copyspec.drafters.copying.drafter import CopyDrafter
from copyspec.drafters.copying.situations import (
    CROWD_ROW,
    EDIT_RESUMED,
    FOLLOWED_RESUMED,
    LENGTH,
    RESUMED_ONE,
    STRIDE,
    crowd_columns,
)
from kit import places

STEPS, RATE, SHRINK = 150, 0.07, 1e-4  # steps and learning rate of Adam; penalty on the size of the weights
_BY_ODDS = (EDIT_RESUMED, FOLLOWED_RESUMED)
HALF_POWER = math.log(2) / 2  # a weight is given in half powers of two


@dataclass(slots=True)
class Visit:
    """A tree root just after a difference."""

    share: float
    none: float
    weights: list[float]  # vote of each cursor; that of a resumed one as if its odds were 1
    right: list[bool]
    features: list[list[int]]  # features of a resumed cursor, [] for others


class RecordingDrafter(CopyDrafter):
    """A copy drafter that reports the cursors at roots just after a difference."""

    def see(self, token: int, share: float) -> Visit | None:
        corpus, estimates, copied = self._corpus, self._estimates, self._tracker._copied
        shifts = [at - copied.anchor for at, situation in self._cursors if situation // STRIDE in _BY_ODDS]
        if not shifts or self._ngrams is None:
            return None
        indices = resumptions.features(corpus.tokens, copied.anchor, copied.since, shifts, self._ngrams)
        columns = crowd_columns(self._cursors)
        visit = Visit(share, estimates.miss_at_root, [], [], [])
        for at, situation in self._cursors:
            is_resumed = situation // STRIDE in _BY_ODDS
            own = situation - situation % STRIDE + RESUMED_ONE if is_resumed else situation
            visit.weights.append(
                estimates.at_root[own] * estimates.crowds[CROWD_ROW[situation] + columns[LENGTH[situation]]]
            )
            visit.right.append(at < len(corpus.tokens) and corpus.tokens[at] == token)
            visit.features.append(next(indices) if is_resumed else [])
        return visit


def visits(rows: Sequence[Transcript], tokenizer: Tokenizer) -> Iterator[Visit]:
    """Yield the roots just after a difference along the outputs of `rows`, with equal weight for each set of a task."""
    eos, budget = end_token(tokenizer), Budget(32)
    sets: dict[tuple[str, str, str], list[Visit]] = {}
    for row in rows:
        for version in (row, replace(row, references=())):
            tokens = tokenise(version, tokenizer, eos)
            drafter = RecordingDrafter(
                row_sources(row.task, tokens), eos=eos, ngrams=tokens.ngrams, breaks=tokens.breaks
            )
            at = 0
            while at < len(tokens.output):
                length = accepted_path(drafter.propose(budget), tokens.output, at) + 1
                visit = drafter.see(tokens.output[at], TASKS[row.task])
                if visit is not None:
                    sets.setdefault(row.key, []).append(visit)
                drafter.accept(tokens.output[at : at + length])
                at += length
    for key, seen in sets.items():
        number = sum(task == key[0] for task, _, _ in sets)
        for visit in seen:
            yield replace(visit, share=visit.share / number / len(seen))


class Likelihood:
    """Mean log-probability of the tokens that came next, as a function of the weights."""

    def __init__(self, seen: Sequence[Visit]) -> None:
        cursors = [(number, *cursor) for number, visit in enumerate(seen) for cursor in _cursors(visit)]
        self._visit = torch.tensor([number for number, *_ in cursors])
        self._start = torch.tensor([weight for _, weight, _, _ in cursors]).clamp_min(1e-9).log()
        self._right = torch.tensor([right for _, _, right, _ in cursors])
        longest = max(len(features) for *_, features in cursors)
        none = resumptions.FEATURES
        self._features = torch.tensor([(features + [none] * longest)[:longest] for *_, features in cursors])
        self._none = torch.tensor([visit.none for visit in seen])
        shares = torch.tensor([visit.share for visit in seen])
        self._shares = shares / shares.sum()

    def __call__(self, weights: torch.Tensor) -> torch.Tensor:
        odds = torch.cat([weights, torch.zeros(1)])[self._features].sum(dim=1) * HALF_POWER
        votes = (self._start + odds).exp()
        total = self._none.index_add(0, self._visit, votes)
        right = torch.zeros(len(total)).index_add(0, self._visit, votes * self._right)
        mean: torch.Tensor = (torch.where(right > 0, right, self._none) / total).log().mul(self._shares).sum()
        return mean


def _cursors(visit: Visit) -> Iterator[tuple[float, bool, list[int]]]:
    return zip(visit.weights, visit.right, visit.features, strict=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.fit_resumed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--rows", type=int, default=40, help="maximum number of rows per set and half")
    options = parser.parse_args(arguments)
    rows = [row for row in read_transcripts(options.transcripts) if row.task in EDIT_TASKS and row.references]
    tokenizer = load_tokenizer(options.tokenizer)
    halves = [choose_rows([row for row in rows if int(row.group, 16) % 2 == half], options.rows, 1) for half in (0, 1)]
    ours, other = (Likelihood(list(visits(half, tokenizer))) for half in halves)
    weights = torch.tensor(resumptions.WEIGHTS, requires_grad=True)
    before = float(ours(weights.detach())), float(other(weights.detach()))
    optimizer = torch.optim.Adam([weights], lr=RATE / HALF_POWER)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = SHRINK * (weights * HALF_POWER).square().sum() - ours(weights)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"{before[0]:.4f}, other half {before[1]:.4f}", file=sys.stderr)
    print(f"{float(ours(weights.detach())):.4f}, other half {float(other(weights.detach())):.4f}", file=sys.stderr)
    print([round(weight, 1) for weight in weights.tolist()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
