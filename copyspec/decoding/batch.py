"""A batch of rows that share the target's forward passes; each pass is one step of propose, verify and commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch

from copyspec.budget import Budget, CostModel
from copyspec.decoding import reuse
from copyspec.decoding.controller import fit
from copyspec.decoding.meter import PassCost, PassTimes
from copyspec.decoding.requests import StepOutput
from copyspec.decoding.row import Row
from copyspec.options import DraftOptions
from copyspec.targets.base import Session, Target
from copyspec.targets.hooks.states import RowStates
from copyspec.tree import EMPTY, DraftTree
from copyspec.verification.at_once import picks_at_once
from copyspec.verification.classic.sampled import RulePicks
from copyspec.verification.picking import Picks, ScoredPicks, best_picks

JOINT_NUMBERS = 1 << 20
"""Maximum number of scores that a CPU processes for all rows at once: more would leave its cache between operators."""

_AS_IT_IS = nullcontext()


class Batch:
    """Rows and the session that holds their KV caches. Rows may join and leave; `replace` swaps a single one."""

    def __init__(self, target: Target, draft: DraftOptions, cost_model: CostModel) -> None:
        self.rows: list[Row] = []
        self._target, self._draft, self._costs = target, draft, cost_model
        self._session: Session | None = None
        self._times = PassTimes()
        self._blocks = target.device.type == "cpu"  # a pass has ended when `score` returns

    def open(self, rows: list[Row]) -> None:
        """Start the batch with `rows`; the next step reads their prompts."""
        self._session = self._target.open([row.request.prompt for row in rows], max(row.limit for row in rows))
        self.rows = [*rows]
        for row in rows:
            row.meter.times, row.meter.before = self._times, replace(self._times)
        if all(row.request.prefixes is None for row in rows):
            return
        clock = self._costs.clock
        started = clock()
        if reuse.begin(rows, self._session, self._target):
            self._times.passes += 1
            self._times.prefill += clock() - started

    def step(self) -> list[StepOutput]:
        """Propose, verify, commit: one forward pass of the target for all rows."""
        rows, session, draft, clock = self.rows, self._session, self._draft, self._costs.clock
        assert session is not None
        longest = max([len(row.chain) for row in rows])
        is_first = longest > 1 or self._times.passes == rows[0].meter.before.passes
        fills_prefixes = any([row.model_state is not None for row in rows])
        if fills_prefixes:
            reuse.check_state(rows, self._target)
        started = clock()
        drafting = self._target.supports_drafts and any([row.drafts for row in rows])
        budget, trees, allowed = None, [EMPTY] * len(rows), 0
        if drafting:
            budget = self._costs.budget(len(rows), draft.max_nodes, adaptive=draft.adaptive, is_first=is_first)
            trees, allowed = self._propose(budget)
        proposed = clock()
        shows = any([row.reads_scores for row in rows])
        # Entering inference mode takes as long as verifying a row: sessions do it where a pass needs it.
        with torch.inference_mode() if shows else _AS_IT_IS:
            logits, states = self._score(trees) if shows else (session.score([row.chain for row in rows], trees), None)
            launched = clock()
            if drafting:
                # What the next pass need not know is done here, while the device works on this one.
                self._costs.learn()
                for row in rows:
                    row.meter.settle()
            settled = clock()
            # Reading the picks waits for the pass to end, so that its time can be measured.
            picks = pick(rows, trees, logits, states) if shows else best_picks(logits)
            scored = clock()
            paths = [row.verify(tree, picked) for row, tree, picked in zip(rows, trees, picks, strict=True)]
        verified = clock()
        # A row that has ended needs no cache for its last accepted tokens.
        session.keep([path if row.finish is None else () for row, path in zip(rows, paths, strict=True)])
        if is_first and fills_prefixes:
            reuse.keep(rows, session, self._target)
        committed = clock()
        times, sizes, beside = self._times, [len(tree.tokens) for tree in trees], settled - launched
        nodes = max(sizes)
        seconds = scored - proposed - (beside if self._blocks else 0.0)
        times.passes += 1
        times.runner = session.runner
        times.draft += proposed - started
        times.verify += verified - scored
        times.other += committed - verified + (beside if self._blocks else 0.0)
        if is_first:
            times.prefill += seconds
            self._costs.observe_first(len(rows), longest + nodes, seconds)
        else:
            times.target += seconds
            if session.is_settled:
                self._costs.observe(len(rows), nodes, seconds)
        if budget is not None:
            cost = PassCost.of(budget, sizes, allowed)
            for row, tree, path in zip(rows, trees, paths, strict=True):
                row.meter.count(tree, path, cost)
        count = len(rows)
        return [row.report(tree, path, count) for row, tree, path in zip(rows, trees, paths, strict=True)]

    def drop_finished(self) -> None:
        """Remove rows that have ended; close the session after the last one."""
        goes_on = [row.finish is None for row in self.rows]
        for row in self.rows:
            if row.finish is not None:
                row.close()
        if self._session is not None:
            # Rows that go on are cached when they end.
            reuse.keep(self.rows, self._session, self._target, only_finished=True)
        places = going(goes_on)
        self.rows = [self.rows[place] for place in places]
        if not self.rows:
            self.close()
        elif self._session is not None:
            self._session.select(places)

    def join(self, other: Batch) -> None:
        """Append the rows of `other`, a batch of the same target, and take over their caches."""
        if not self.rows:
            self.rows, self._session, self._times = other.rows, other._session, other._times
            return
        if other._session is not None and self._session is not None:
            self._session.join(other._session)
            for row in other.rows:
                row.meter.before = self._times.since(other._times.since(row.meter.before))
                row.meter.times = self._times
            self.rows = [*self.rows, *other.rows]

    @property
    def cached(self) -> int:
        """Number of tokens that the session has cached for the first row."""
        return self._session.lengths[0] if self._session is not None else 0

    def replace(self, row: Row, cached: int) -> None:
        """Put `row` in place of the only row, whose first `cached` tokens it shares."""
        assert self._session is not None and len(self.rows) == 1
        self.rows[0].close()
        self._session.trim([cached])
        row.chain = row.chain[cached:]
        row.meter.times, row.meter.before = self._times, replace(self._times)
        self.rows = [row]

    def close(self) -> None:
        """Free the target's KV caches."""
        if self._session is not None:
            self._session.close()
        for row in self.rows:
            row.close()
        self.rows, self._session = [], None

    def _score(self, trees: Sequence[DraftTree]) -> tuple[torch.Tensor, Sequence[RowStates] | None]:
        """The scores of a pass, [B, 1 + M, V], with what the rows' drafters want of it and a weaker model takes off."""
        rows, session, chains = self.rows, self._session, [row.chain for row in self.rows]
        assert session is not None
        states: Sequence[RowStates] | None = None
        if wanting := [row for row in rows if row.observes and row.wants_states]:
            layers = {layer for row in wanting for layer in row.wanted_layers}
            logits, states = session.score_with_states(chains, trees, sorted(layers))
        else:
            logits = session.score(chains, trees)
        if any([row.contrast is not None for row in rows]):
            logits = contrasted(rows, trees, logits)
        return logits, states

    def _propose(self, budget: Budget) -> tuple[list[DraftTree], int]:
        """Draft a tree per row, cut to the size that pays; also return the largest size allowed."""
        rows = self.rows
        if self._target.supports_trees:
            return fit([row.meter.controller for row in rows], [row.propose(budget) for row in rows], budget)
        budget = replace(budget, chain=True)
        trees, allowed = fit([row.meter.controller for row in rows], [row.propose(budget) for row in rows], budget)
        return [tree.first_chain() for tree in trees], allowed


def going(goes_on: Sequence[bool]) -> list[int]:
    """Return the rows that go on; the last ones fill the places of those that ended, so that few caches move."""
    count, places = sum(goes_on), list(range(len(goes_on)))
    last = [place for place in places[count:] if goes_on[place]]
    return [place if goes_on[place] else last.pop() for place in places[:count]]


def contrasted(rows: Sequence[Row], trees: Sequence[DraftTree], logits: torch.Tensor) -> torch.Tensor:
    """The logits, [B, 1 + M, V], with contrastive decoding applied to the rows that use a weaker model."""
    found = logits.float().clone()
    for index, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        if row.contrast is not None:
            of_row = found[index, : 1 + len(tree)]
            of_row.copy_(row.contrast.scores(row.request.prompt, row.output, tree, of_row))
    return found


def pick(
    rows: Sequence[Row], trees: Sequence[DraftTree], logits: torch.Tensor, states: Sequence[RowStates] | None = None
) -> Sequence[Picks]:
    """Each row's picks. Tokens that do not depend on the walk are read from the device as one small tensor."""
    for index, row in enumerate(rows):
        if row.observes:
            size = 1 + len(trees[index])
            row.show(trees[index], logits[index, :size], None if states is None else states[index])
    if all([row.takes_argmax for row in rows]):
        return best_picks(logits)
    pays = logits.device.type != "cpu" or (len(rows) > 1 and logits.numel() <= JOINT_NUMBERS)
    joint = [
        index
        for index, row in enumerate(rows)
        if row.picker.is_joint and row.request.rule is None and (pays or row.picker.penalty != 1.0)
    ]
    found: dict[int, Picks] = {}
    if joint:
        pickers = [rows[index].picker for index in joint]
        found |= zip(joint, picks_at_once(pickers, [trees[index] for index in joint], logits, joint), strict=True)
    if len(found) < len(rows):
        found |= _picks_by_row(rows, trees, logits, [index for index in range(len(rows)) if index not in found])
    return [found[index] for index in range(len(rows))]


def _picks_by_row(
    rows: Sequence[Row], trees: Sequence[DraftTree], logits: torch.Tensor, which: Sequence[int]
) -> dict[int, Picks]:
    best = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    scores: dict[int, torch.Tensor] = {}
    for index in which:
        row, tree, size = rows[index], trees[index], 1 + len(trees[index])
        if not row.picker.depends_on_history and row.request.rule is None:
            scores[index] = row.picker.scores(logits[index, :size], tree)
            best[index, :size] = scores[index].argmax(-1)
    tokens = best.tolist() if scores else []
    picks: dict[int, Picks] = {}
    for index in which:
        row, tree, of_tree = rows[index], trees[index], logits[index, : 1 + len(trees[index])]
        if index in scores:
            picks[index] = ScoredPicks(tokens[index], scores[index].unsqueeze(0), 0)
        elif row.request.rule is not None:
            picks[index] = RulePicks(row.request.rule, row.picker, of_tree, tree)
        else:
            picks[index] = row.picker.walk_picks(of_tree, tree)
    return picks
