"""Fits the copy drafter's priors and prints a new `copyspec/drafters/copying/priors.json`.

python -m benchmarks.replay.fit [--rows 70] [--rounds 3] > priors.json

The drafter follows recorded outputs. At every tree node that an output reaches, the cursors (positions in the sources)
vote for their next token. The fit maximises the probability of the tokens that came next, with equal weight for every
set of a task. It uses half of the groups; the likelihood on the other half is printed on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from tokenizers import Tokenizer

from benchmarks.replay.forms import form_rows
from benchmarks.replay.priors import priors_json
from benchmarks.replay.prompt_forms import FITTED
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
from copyspec.drafters.copying import situations
from copyspec.drafters.copying.drafter import CopyDrafter
from copyspec.drafters.copying.estimates import FOUND, NAMED, Priors
from copyspec.drafters.copying.growth import SURE_WEIGHT, join
from copyspec.tree import ROOT
from kit import places
from kit.reporting import ratio

TASKS = {"gec": 2, "gec_document": 2, "code_edit": 2, "multiturn_edit": 1.5, "math": 0.3, "translation": 0.1}
"""Weight of each task in the fit, 1 if not listed. Tasks with much copying count more, since the drafter is for
them."""

FORM_EDITS = 9  # edits per form

STEPS, RATE = 150, 0.05  # steps and learning rate of Adam
SMOOTH = 2e-5  # penalty on differences between neighbouring columns
SHRINK = 3e-6  # penalty on the distance of the weights from their initial values

Features = dict[int, int]
"""Number of a node's cursors in each (situation, crowd) cell."""


@dataclass(slots=True)
class Visits:
    """Observations at the nodes that the outputs visited."""

    voted: list[Features] = field(default_factory=list)
    right: list[Features] = field(default_factory=list)  # cursors whose next token was right
    keys: list[tuple[str, str, str]] = field(default_factory=list)  # task, set, model
    calls: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)


class RecordingDrafter(CopyDrafter):
    """A copy drafter that records, for every visited node, how its cursors voted and which were right."""

    def watch(self, key: tuple[str, str, str], visits: Visits) -> None:
        self._key, self._visits = key, visits

    def accept(self, tokens: Sequence[int]) -> None:
        grown = self._grown
        edges = zip(grown.parents, grown.tokens, strict=True)
        children = {edge: node for node, edge in enumerate(edges)}
        node: int | None = ROOT
        for token in tokens:
            if node is None:
                break
            self._see(node, token)
            node = children.get((node, token))
        super().accept(tokens)

    def _see(self, node: int, token: int) -> None:
        text, grown, weights = self._corpus.tokens, self._grown, self._estimates.deeper
        cursors = list(self._cursors if node == ROOT else grown.cursors[node])
        if node != ROOT and sum(weights[situation] for _, situation in cursors) < SURE_WEIGHT:
            join(self._corpus, grown.tokens[node], cursors)
        columns = situations.crowd_columns(cursors)
        none = (situations.MISS_AT_ROOT if node == ROOT else situations.MISS_DEEPER) * situations.CROWD
        voted, right, said = Counter({none: 1}), Counter[int](), set()
        for position, situation in cursors:
            if position < len(text) and text[position] >= 0:
                cell = (
                    situation * situations.CROWD
                    + situations.CROWD_ROW[situation]
                    + columns[situations.LENGTH[situation]]
                )
                said.add(text[position])
                voted[cell] += 1
                right[cell] += text[position] == token
        for rank, common in enumerate(self._corpus.common if node == ROOT else ()):
            if common not in said:
                cell = situations.situation_of(situations.COMMON, rank // 2) * situations.CROWD
                voted[cell] += 1
                right[cell] += common == token
        self._visits.voted.append(dict(voted))
        self._visits.right.append(dict(+right) or {none: 1})
        self._visits.keys.append(self._key)


def visit(rows: Sequence[Transcript], tokenizer: Tokenizer, passes: int | None = None) -> Visits:
    """Run the drafter along the outputs of `rows`. `passes`: stop each output after this many passes."""
    visits, eos, budget = Visits(), end_token(tokenizer), Budget(32)
    for row in rows:
        tokens = tokenise(row, tokenizer, eos)
        drafter = RecordingDrafter(row_sources(row.task, tokens), eos=eos, breaks=tokens.breaks)
        drafter.watch(row.key, visits)
        at = 0
        for _ in range(passes or len(tokens.output)):
            if at >= len(tokens.output):
                break
            length = accepted_path(drafter.propose(budget), tokens.output, at) + 1
            drafter.accept(tokens.output[at : at + length])
            at += length
            visits.calls[row.key] += 1
        visits.tokens[row.key] += at
    return visits


class Likelihood:
    """Mean negative log-probability of the tokens that came next, as a function of the log-weights."""

    def __init__(self, visits: Visits) -> None:
        cells = sorted({cell for features in visits.voted for cell in features})
        index = {cell: number for number, cell in enumerate(cells)}
        self.states = torch.tensor(cells) // situations.CROWD
        self.crowds = torch.tensor(cells) % situations.CROWD
        self._voted, self._right = (
            _sparse([{index[cell]: count for cell, count in features.items()} for features in rows], len(cells))
            for rows in (visits.voted, visits.right)
        )
        sets = Counter(task for task, _, _ in visits.calls)
        shares = torch.tensor([TASKS.get(key[0], 1) / (sets[key[0]] * visits.calls[key]) for key in visits.keys])
        self._shares = shares / shares.sum()

    def __call__(self, weights: torch.Tensor, crowds: torch.Tensor) -> torch.Tensor:
        mass = (weights[self.states] + crowds[self.crowds]).exp().unsqueeze(1)
        voted, right = (torch.sparse.mm(matrix, mass)[:, 0].log() for matrix in (self._voted, self._right))
        loss: torch.Tensor = (self._shares * (voted - right)).sum()
        return loss


def _sparse(rows: Sequence[Features], columns: int) -> torch.Tensor:
    cells = [(row, cell, count) for row, features in enumerate(rows) for cell, count in features.items()]
    where = torch.tensor([[row for row, _, _ in cells], [cell for _, cell, _ in cells]])
    counts = torch.tensor([float(count) for _, _, count in cells])
    return torch.sparse_coo_tensor(where, counts, (len(rows), columns), check_invariants=True).coalesce()


def fit(likelihood: Likelihood, fitted: Priors, families: Sequence[str] = situations.FAMILIES) -> None:
    """Write the maximum-likelihood weights into `fitted`, starting from its values.

    If `families` does not name all families, only their weights change, and the crowd factors are kept."""
    fixed = torch.tensor([name not in families for name in situations.FAMILIES]).repeat_interleave(situations.STRIDE)
    start = torch.tensor(fitted.weights).clamp_min(1e-4).log()
    weights = start.clone().requires_grad_()
    crowds = torch.tensor(fitted.crowds).log().requires_grad_()
    optimizer = torch.optim.Adam([weights, crowds], lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        table = weights.view(-1, situations.STRIDE)[: situations.EDIT_START, 1:]
        crowd = crowds.view(-1, situations.COMPANIES, situations.GAPS)
        rough = table.diff().square().sum() + crowd.diff().square().sum() + crowd.diff(dim=1).square().sum()
        pull = (weights - start).square().sum() + crowds.square().sum()
        loss = likelihood(weights, crowds) + SMOOTH * rough + SHRINK * pull
        loss.backward()  # type: ignore[no-untyped-call]
        if weights.grad is not None and crowds.grad is not None:
            weights.grad[situations.MISS_AT_ROOT] = 0.0  # fixed, as the unit of all weights
            crowds.grad.view_as(crowd)[:, 0, 0] = 0.0  # a single cursor: fixed, as the unit of its crowd
            weights.grad[fixed] = 0.0
            if fixed.any():
                crowds.grad.zero_()
        optimizer.step()
    fitted.weights[:] = weights.detach().exp().tolist()
    fitted.crowds[:] = crowds.detach().exp().tolist()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay.fit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    places.add_transcripts(parser)
    places.add_tokenizer(parser)
    parser.add_argument("--rows", type=int, default=70, help="maximum number of rows per set and half")
    parser.add_argument(
        "--families", default="", help="comma-separated families to fit, such as followed,start (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of times to run the drafter and fit again")
    parser.add_argument(
        "--passes",
        type=int,
        help="maximum passes per row, for fitting the families at the start of an output (default: all)",
    )
    parser.add_argument("--found", action="store_true", help="fit priors_found.json, on rows without references")
    options = parser.parse_args(arguments)
    rows, tokenizer = read_transcripts(options.transcripts), load_tokenizer(options.tokenizer)
    fitted = FOUND if options.found else NAMED
    halves = [
        choose_rows([row for row in rows if int(row.group, 16) % 2 == half], options.rows, seed=1) for half in (0, 1)
    ]
    if options.found:
        halves = [[replace(row, references=()) for row in (*half, *form_edits(half))] for half in halves]
    for number in range(options.rounds):
        ours, other = (visit(half, tokenizer, options.passes) for half in halves)
        report(number, other, fitted)
        fit(Likelihood(ours), fitted, options.families.split(",") if options.families else situations.FAMILIES)
    report(options.rounds, visit(halves[1], tokenizer, options.passes), fitted)
    sys.stdout.write(priors_json(fitted.weights, fitted.crowds))
    return 0


def form_edits(rows: Sequence[Transcript]) -> list[Transcript]:
    """Recast some of the edits of `rows` in the prompt forms used for fitting."""
    edits = [row for row in rows if row.task in EDIT_TASKS and row.references]
    made = [form_rows(form, edits[number :: len(FITTED)][:FORM_EDITS]) for number, form in enumerate(FITTED)]
    return [replace(row, task="forms") for rows in made for row in rows]


def report(number: int, visits: Visits, fitted: Priors) -> None:
    likelihood = Likelihood(visits)
    loss = float(likelihood(torch.tensor(fitted.weights).clamp_min(1e-4).log(), torch.tensor(fitted.crowds).log()))
    per_call = [ratio(visits.tokens[key], visits.calls[key]) for key in visits.calls]
    mean = sum(per_call) / len(per_call)
    print(f"round {number}, other half: loss {loss:.4f}, tokens per call {mean:.3f} (mean of sets)", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
