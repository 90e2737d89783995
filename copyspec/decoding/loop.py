"""Decoding: rows of a batch through propose -> verify -> commit. Token ids only, no tokenizer."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from copyspec.budget import CostModel
from copyspec.decoding.pacing import fit, shares
from copyspec.decoding.requests import Request, StepOutput
from copyspec.decoding.row import Row
from copyspec.options import DraftOptions
from copyspec.targets.base import Session, Target
from copyspec.tree import EMPTY, DraftTree
from copyspec.verification.classic.sampled import RulePicks
from copyspec.verification.picking import Picks, ScoredPicks

REFILL_SHARE = 0.25
"""Rows join a running batch when this share of it is free: joining copies the caches of all rows."""


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How the rows are run; none of it changes the output."""

    draft: DraftOptions = field(default_factory=DraftOptions)
    batch_size: int = 8  # rows in the target at once
    keep_margins: bool = False  # report the two best scores at each output token


def decode(
    target: Target,
    requests: Iterable[Request | None],
    settings: DecodeSettings | None = None,
    cost_model: CostModel | None = None,
) -> Generator[list[StepOutput], None, None]:
    """Decodes every request; yields what each step added, row by row, until all have finished.

    `requests` are taken as rows become free, so that an endless iterable needs no more memory than a batch. A None
    among them says that there is nothing to add at this moment; while no row runs either, an empty step is yielded,
    so that the caller may wait.
    `cost_model`: what the target's calls cost, learned further here; give the same one to every run on a target.
    Closing the iterator ends decoding within one step and frees the target's caches.
    """
    settings, costs = settings or DecodeSettings(), cost_model or CostModel()
    intake = _Intake(requests)
    batch = _Batch(target, settings.draft, costs)
    refill = max(1, int(REFILL_SHARE * settings.batch_size))
    try:
        while True:
            room = settings.batch_size - len(batch)
            if not intake.is_empty and (room >= refill or not batch):
                fresh = [
                    Row(
                        index,
                        request,
                        target,
                        costs,
                        adaptive=settings.draft.adaptive,
                        keep_margins=settings.keep_margins,
                    )
                    for index, request in intake.take(room)
                ]
                if fresh:
                    yield batch.admit(fresh)
                    continue
            if not batch and intake.is_empty:
                return
            yield batch.step() if batch else []
    finally:
        batch.close()


class _Intake:
    """Requests in their order, numbered."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self._requests = iter(requests)
        self._count = 0
        self.is_empty = False

    def take(self, most: int) -> list[tuple[int, Request]]:
        """Up to `most` requests, those that are there now."""
        taken: list[tuple[int, Request]] = []
        while len(taken) < most:
            try:
                request = next(self._requests)
            except StopIteration:
                self.is_empty = True
                break
            if request is None:
                break
            taken.append((self._count, request))
            self._count += 1
        return taken


@dataclass(frozen=True, slots=True)
class _Call:
    """One target call: what it verified, what was right, and when its parts began and ended."""

    trees: Sequence[DraftTree]
    paths: Sequence[Sequence[int]]  # [B], the accepted nodes
    allowed: int  # nodes that each tree might have had
    longest: int  # tokens of the longest chain
    times: Sequence[float]  # started, proposed, scored, verified, committed
    runner: str  # how it was made
    is_settled: bool  # False: its time says nothing of later ones


class _Batch:
    """Rows that share the target's calls. Finished rows leave, and others take their place."""

    def __init__(self, target: Target, draft: DraftOptions, cost_model: CostModel) -> None:
        self._target = target
        self._draft = draft
        self._cost_model = cost_model
        self._rows: list[Row] = []
        self._session: Session | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        """Frees the target's caches."""
        if self._session is not None:
            self._session.close()
        self._rows, self._session = [], None

    def admit(self, rows: list[Row]) -> list[StepOutput]:
        """New rows make their first step by themselves, prompt and first tree in one call, and then join."""
        newcomers = _Batch(self._target, self._draft, self._cost_model)
        newcomers._rows, newcomers._session = rows, self._open(rows)
        try:
            outputs = newcomers.step()
        except BaseException:
            newcomers.close()
            raise
        if self._session is None:
            self._rows, self._session = newcomers._rows, newcomers._session
        elif newcomers._session is not None:
            self._session.join(newcomers._session)
            self._rows += newcomers._rows
        return outputs

    def _open(self, rows: Sequence[Row]) -> Session:
        return self._target.open([row.request.prompt for row in rows], max(row.limit for row in rows))

    def step(self) -> list[StepOutput]:
        """Propose, verify, commit: one target call."""
        assert self._session is not None
        clock, times = self._cost_model.clock, []
        longest = max(len(row.chain) for row in self._rows)
        times.append(clock())
        trees, allowed = self._propose()
        times.append(clock())
        picks = score(self._session, self._rows, trees)
        times.append(clock())
        runner, is_settled = self._session.runner, self._session.is_settled
        paths = [row.verify(tree, pick) for row, tree, pick in zip(self._rows, trees, picks, strict=True)]
        times.append(clock())
        self._commit(self._session, paths)
        times.append(clock())
        return self._account(_Call(trees, paths, allowed, longest, times, runner, is_settled))

    def _propose(self) -> tuple[list[DraftTree], int]:
        """A tree per row, as large as the cost of a call makes worth while, and how large they might have been."""
        if not self._target.supports_drafts:
            return [EMPTY] * len(self._rows), 0
        trees, allowed = propose(
            self._rows, self._draft, self._cost_model, is_first=self._is_first, chain=not self._target.supports_trees
        )
        return trees if self._target.supports_trees else [tree.first_chain() for tree in trees], allowed

    @property
    def _is_first(self) -> bool:
        """Whether the next call reads the prompts."""
        return self._rows[0].stats.calls == 0

    def _commit(self, session: Session, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the accepted paths of the rows that go on; the others leave the batch."""
        going = _going([row.finish is None for row in self._rows])
        if not going:
            session.close()
            self._session = None
            return
        session.keep(paths)
        if len(going) < len(self._rows):
            session.select(going)

    def _account(self, call: _Call) -> list[StepOutput]:
        """Books the call's times, and takes what each row has to report."""
        started, proposed, scored, verified, finished = call.times
        trees, rows, nodes = call.trees, len(self._rows), max(map(len, call.trees))
        is_first = self._is_first
        if is_first:
            self._cost_model.observe_first(rows, call.longest + nodes, scored - proposed)
        elif call.is_settled:
            self._cost_model.observe(rows, nodes, scored - proposed)
        outputs = []
        parts = shares(self._cost_model, trees, call.allowed, is_first=is_first)
        for row, tree, path, part in zip(self._rows, trees, call.paths, parts, strict=True):
            stats = row.stats
            stats.calls += 1
            stats.runner = call.runner
            stats.draft_seconds += proposed - started
            if is_first:
                stats.prefill_seconds += scored - proposed
            else:
                stats.target_seconds += scored - proposed
            stats.verify_seconds += verified - scored
            stats.other_seconds += finished - verified
            outputs.append(row.report(tree, path, part))
        self._rows = [self._rows[index] for index in _going([row.finish is None for row in self._rows])]
        return outputs


def _going(goes_on: Sequence[bool]) -> list[int]:
    """The rows that go on, the last of them in the places of those that do not: few caches move then."""
    count, going = sum(goes_on), list(range(len(goes_on)))
    last = [index for index in going[count:] if goes_on[index]]
    return [index if goes_on[index] else last.pop() for index in going[:count]]


def propose(
    rows: Sequence[Row], draft: DraftOptions, costs: CostModel, *, is_first: bool, chain: bool = False
) -> tuple[list[DraftTree], int]:
    """Each row's tree for one call, and how many nodes each might have had. `chain`: trees are chains."""
    budget = costs.budget(len(rows), draft.max_nodes, adaptive=draft.adaptive, is_first=is_first)
    if chain:
        budget = replace(budget, chain=True)
    trees = [row.propose(budget) for row in rows]
    pacers = [row.pacer for row in rows]
    return fit(pacers, trees, budget)


@torch.inference_mode()
def score(session: Session, rows: Sequence[Row], trees: Sequence[DraftTree]) -> list[Picks]:
    """One target call, and each row's picks. What does not depend on the walk is read back as one small tensor."""
    logits = session.score([row.chain for row in rows], trees)
    for row, tree, scored in zip(rows, trees, logits, strict=True):
        row.show(tree, scored[: 1 + len(tree)])
    if all(row.picker.is_argmax and row.request.rule is None for row in rows):
        # In bfloat16 torch's argmax on a CPU takes five times as long as that of the same numbers in float32.
        comparable = logits.float() if logits.device.type == "cpu" else logits
        tokens: list[list[int]] = comparable.argmax(-1).tolist()
        return [ScoredPicks(logits[index], tokens[index]) for index in range(len(rows))]
    best = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    scores: list[torch.Tensor | None] = []
    for index, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        size = 1 + len(tree)
        along = row.picker.depends_on_history or row.request.rule is not None
        scores.append(None if along else row.picker.scores(logits[index, :size], tree))
        if (of_row := scores[-1]) is not None:
            best[index, :size] = of_row.argmax(-1)
    tokens = best.tolist()  # also waits for the call, whose time is measured
    picks: list[Picks] = []
    for index, (row, tree, of_row) in enumerate(zip(rows, trees, scores, strict=True)):
        of_tree = logits[index, : 1 + len(tree)]
        if of_row is not None:
            picks.append(ScoredPicks(of_row, tokens[index]))
        elif row.request.rule is not None:
            picks.append(RulePicks(row.request.rule, row.picker, of_tree, tree))
        else:
            picks.append(row.picker.walk_picks(of_tree, tree))
    return picks
