"""One row of a batch while it is decoded: its output, its drafter, where it stops and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import torch

from copyspec.budget import Budget, CostModel
from copyspec.decoding.departures import Departures
from copyspec.decoding.pacing import Pacer, Share
from copyspec.decoding.requests import Finish, Request, RowStats, StepOutput
from copyspec.drafters.base import Drafter, ScoredDraft, observes
from copyspec.sources import OUTPUT
from copyspec.targets.base import Target
from copyspec.tree import EMPTY, DraftTree, Origin, check_tree
from copyspec.verification.margins import Margin
from copyspec.verification.picking import Picker, Picks
from copyspec.verification.walk import walk

T = TypeVar("T")


class Row:
    """State of one request. `verify` extends the output token by token and stops exactly where plain decoding does."""

    def __init__(
        self,
        index: int,
        request: Request,
        target: Target,
        costs: CostModel | None = None,
        *,
        adaptive: bool = True,
        keep_margins: bool = False,
    ) -> None:
        """`adaptive`: draft as much as pays at `costs`. Raises ValueError for an empty or too long prompt."""
        self.index = index
        self.request = request
        self.stats = RowStats()
        self.finish: Finish | None = None
        self.chain: list[int] = target.start(request.prompt)
        """What the target has not cached yet: the prompt at first, then the last output token."""
        if not self.chain:
            raise ValueError(f"request {index} has an empty prompt: decoding needs at least one token to start from")
        self._limit = _limit(request.max_new_tokens, len(self.chain), target.max_length)
        self.picker = Picker(request.sampling, request.processors, self.chain, self._limit, target.device)
        self._output: list[int] = []
        self._origins: list[Origin | None] = []
        self._margins: list[Margin] = []
        self._keep_margins = keep_margins
        self._departures = _departures(request)
        self._reported = 0
        self._vocab_size = target.vocab_size
        self._drafter: Drafter | None = None
        self._drafter = self._try(request.drafter) if request.drafter is not None else None
        self._costs = costs or CostModel()
        self._asked = False
        self._proposed, self._seconds = EMPTY, 0.0  # by the drafter for this call, and its time
        self.pacer = Pacer(self._costs.start()) if adaptive and self._drafter is not None else None

    @property
    def limit(self) -> int:
        """Tokens of the output at most."""
        return self._limit

    def propose(self, budget: Budget) -> DraftTree:
        """The row's draft: empty without a drafter, and while drafting does not pay."""
        self._asked = False
        # The last token of the output comes from the target: drafts beyond it are wasted, and may have no position.
        room = self._limit - len(self._output) - 1
        if self._drafter is None or budget.max_nodes == 0 or room <= 0:
            return EMPTY
        if self.pacer is not None and not self.pacer.wants_draft():
            self._decide("paused")
            return EMPTY
        self._asked = True
        started = self._costs.clock()
        tree = self._try(partial(self._draft, self._drafter, budget)) or EMPTY
        self._proposed = tree if len(tree) <= room else tree.up_to_depth(room)
        self._seconds = self._costs.clock() - started
        return self._proposed

    def show(self, tree: DraftTree, logits: torch.Tensor) -> None:
        """Shows the pass's logits, [1 + m, V], to a drafter that observes."""
        drafter = self._drafter
        if drafter is not None and observes(drafter):
            self._try(lambda: drafter.observe(ScoredDraft(tree, logits)))  # type: ignore[attr-defined]

    @torch.inference_mode()
    def verify(self, tree: DraftTree, picks: Picks) -> list[int]:
        """Extends the output along the accepted walk; returns the accepted nodes."""

        def emit(token: int, node: int) -> bool:
            if self._keep_margins:
                self._margins.append(picks.margin(node))
            if self._departures is not None:
                self._departures.push(token, lambda: picks.scores(node))
            self._output.append(token)
            self.picker.append(token)
            self.finish = self._check(token)
            return self.finish is not None

        before = len(self._output)
        path = walk(tree, picks, emit)
        self._origins.extend(tree.origins[node] for node in path)
        if len(self._origins) < len(self._output):
            self._origins.append(self._continued())
        self.chain = self._output[-1:]
        if self._drafter is not None and self.finish is None:
            self._try(partial(self._drafter.accept, self._output[before:]))
        return path

    def report(self, tree: DraftTree, path: Sequence[int], share: Share) -> StepOutput:
        """What the step added, of which `verify` accepted `path`; counts it."""
        self._count(tree, path)
        if self._asked:
            self._learn(tree, path, share)
        if self.finish is not None and self._drafter is not None:
            self._conclude(share)
        since, self._reported = self._reported, len(self._output)
        if self.request.recorder is not None:
            self.request.recorder.record(tree, path, self._output[since:], self.stats, share.rows)
        return StepOutput(
            row=self.index,
            tokens=self._output[since:],
            origins=self._origins[since:],
            finish=self.finish,
            stats=self.stats if self.finish else None,
            margins=self._margins[since:],
            departures=self._departures.found() if self.finish and self._departures is not None else (),
        )

    def _draft(self, drafter: Drafter, budget: Budget) -> DraftTree:
        """Drafters may be anybody's: what is wrong with a tree is said before it is verified."""
        tree = drafter.propose(budget)
        try:
            if len(tree):
                check_tree(tree, self._vocab_size)
        except ValueError as error:
            raise ValueError(f"{type(drafter).__name__} proposed a wrong draft tree: {error}") from error
        return tree

    def _try(self, call: Callable[[], T]) -> T | None:
        """What a call of the drafter returns. Where it raises, and the request takes errors, the row has no drafter
        from then on."""
        if self.request.on_error is None:
            return call()
        try:
            return call()
        except Exception as error:
            self.request.on_error(error)
            self._drafter = None
            return None

    def _learn(self, tree: DraftTree, path: Sequence[int], share: Share) -> None:
        """Books what the controller decided for this call, and what came of it."""
        self._asked = False
        if len(tree):
            self._decide("probed" if self.pacer is not None and self.pacer.is_probe else "drafted")
        else:
            self._decide("unprofitable" if len(self._proposed) else "nothing")
        self.stats.allowed_nodes += share.allowed_nodes
        if self.pacer is not None:
            look = share.rows * self._seconds / share.seconds if share.seconds else 0.0
            self.pacer.observe(self._proposed, tree, path, share.cost, look)

    def _conclude(self, share: Share) -> None:
        stats, pacer = self.stats, self.pacer
        stats.call_seconds = share.seconds
        stats.call_costs = {nodes: seconds / share.seconds for nodes, seconds in share.measured.items()}
        if pacer is not None:
            stats.earned_calls, stats.trust = pacer.earned, pacer.trust
            self._costs.finish(pacer.earned)

    def _decide(self, what: str) -> None:
        self.stats.decisions[what] = self.stats.decisions.get(what, 0) + 1

    def _check(self, token: int) -> Finish | None:
        """Whether the output ends with `token`. End of sequence goes before stops, stops before the length."""
        stopped = [match for stop in self.request.stops if (match := stop.push(token)) is not None]
        if token in self.request.eos_token_ids:
            return Finish("stop", token)
        if stopped:
            return Finish("stop", stopped[0])
        return Finish("length") if len(self._output) >= self._limit else None

    def _continued(self) -> Origin | None:
        """The origin of the target's own token: it counts as copied where it continues the copy before it."""
        last = self._origins[-1] if self._origins else None
        if last is None:
            return None
        tokens: Sequence[int] = self._output if last.source == OUTPUT else self.request.sources[last.source].tokens
        after = Origin(last.source, last.offset + 1)
        return after if after.offset < len(tokens) and tokens[after.offset] == self._output[-1] else None

    def _count(self, tree: DraftTree, path: Sequence[int]) -> None:
        stats, accepted = self.stats, len(path)
        stats.output_tokens = len(self._output)
        if not len(tree):
            return
        stats.drafts += 1
        stats.drafted_tokens += len(tree)
        stats.accepted_tokens += accepted
        stats.accepted_per_position.extend([0] * (accepted - len(stats.accepted_per_position)))
        for position in range(accepted):
            stats.accepted_per_position[position] += 1
        self._book(stats.drafted_by_source, tree, range(len(tree)))
        self._book(stats.accepted_by_source, tree, path)

    def _book(self, counts: dict[str, int], tree: DraftTree, nodes: Iterable[int]) -> None:
        """Counts `nodes` by the kind of source they come from, or by who drafted them."""
        for node in nodes:
            origin = tree.origins[node]
            kind: str
            if origin is not None:
                kind = "output" if origin.source == OUTPUT else self.request.sources[origin.source].kind
                kind = "prompt" if kind == "block" else kind
            elif tree.makers is not None and (maker := tree.makers[node]) is not None:
                kind = maker
            else:
                kind = "end" if tree.tokens[node] in self.request.eos_token_ids else "guess"
            counts[kind] = counts.get(kind, 0) + 1


def _departures(request: Request) -> Departures | None:
    """Greedy outputs only: noise says nothing about what the target prefers."""
    edited = next((source for source in request.sources if source.kind == "edit"), None)
    if edited is None or request.rule is not None or not request.sampling.is_greedy:
        return None
    return Departures(edited.tokens, request.eos_token_ids)


def _limit(max_new_tokens: int, started: int, max_length: int | None) -> int:
    """Output tokens at most. The last one is never an input: it needs no position."""
    if max_length is None:
        return max_new_tokens
    if started > max_length:
        raise ValueError(f"a prompt of {started} tokens does not fit into the model's context of {max_length}")
    return min(max_new_tokens, max_length - started + 1)
