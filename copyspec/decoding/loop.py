"""The decoding loop: continuous batching, in which requests join as rows finish. It knows token ids, no tokenizer.

The rows of a batch share the target's forward passes; each pass is one step of propose, verify and commit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import NamedTuple

from copyspec.budget import OUTLIER, Budget, CostModel
from copyspec.decoding import reuse
from copyspec.decoding.controller import DraftController
from copyspec.decoding.meter import PassTimes, costs_on
from copyspec.decoding.picks import pick, rescored
from copyspec.decoding.requests import CANCELLED, Finish, Request, StepOutput
from copyspec.decoding.row import Row
from copyspec.options import CHEAP_NODES, MOST_NODES, START_NODES, DraftOptions
from copyspec.targets.base import RowStates, Scores, Session, Target
from copyspec.targets.hooks.inference import inference_mode
from copyspec.tree import COMPILED, EMPTY, ROOT, DraftTree
from copyspec.verification.picking import best_picks

PROBE_NODES = 2  # size of a trial draft from a drafter whose probabilities proved too high

SCORES_BYTES = 1 << 28
"""Memory for the scores of a row's draft beyond CHEAP_NODES, in float32: 524 nodes of Llama 3's 128,256 tokens."""

SHARED_NODES = 512  # draft nodes of all rows in a pass, unless one row alone may have more

SYNCHRONOUS = {"cpu"}
"""Devices whose passes have ended when they were launched."""

_AS_IT_IS = nullcontext()


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """How rows are run. Under the default rule no setting changes the output."""

    draft: DraftOptions = field(default_factory=DraftOptions)
    batch_size: int = 8  # maximum number of rows per pass
    keep_margins: bool = False  # whether to report the two best scores at each output token


def decode(
    target: Target,
    requests: Iterable[Request | None],
    settings: DecodeSettings | None = None,
    cost_model: CostModel | None = None,
) -> Generator[list[StepOutput], None, None]:
    """Decode all requests; yield what each step added, row by row, until all have finished.

    `requests` are read as rows become free, so an endless iterable needs no more memory than a batch. A None among
    them means that there is nothing to add right now; an empty step is then yielded if no row runs, so that the
    caller can wait.
    `cost_model` holds the measured costs of the target's passes; pass the same one to every run on a target.
    Closing the generator ends decoding within one step and frees the target's caches.
    Where several rows run on a device, a step in which none ends is yielded once the next pass is launched, so that the
    device works while its tokens are told.
    """
    settings, costs = settings or DecodeSettings(), cost_model or costs_on(target.device.type)
    draft, waiting = settings.draft, iter(requests)
    batch = Batch(target, draft, costs)
    count, is_exhausted, untold = 0, False, list[StepOutput]()
    is_ahead = target.device.type not in SYNCHRONOUS
    try:
        while True:
            room = settings.batch_size - len(batch.rows)
            if not is_exhausted and room:
                fresh, lost, began = list[Row](), list[StepOutput](), count
                for request in islice(waiting, room):
                    if request is None:  # no more at present
                        break
                    margins = settings.keep_margins
                    try:
                        fresh.append(Row(count, request, target, costs, adaptive=draft.adaptive, keep_margins=margins))
                    except Exception as error:
                        if request.owner is None:
                            raise
                        request.owner.fail(error)
                        lost.append(StepOutput(count, (), (), Finish("stop", CANCELLED)))
                    count += 1
                else:
                    is_exhausted = count - began < room
                if fresh:
                    if batch.rows:  # a pass that reads what the prompts share is not of the last step
                        untold += batch.report()
                    batch.add(fresh)
                if lost:
                    yield lost
                    continue
            if not batch.rows:
                if is_exhausted:
                    return
                yield []
                continue
            untold += batch.launch()
            if untold:
                told, untold = untold, []
                yield told
            has_ended = batch.finish()
            if is_ahead and len(batch.rows) > 1 and not (has_ended or batch.is_outlasted):
                if any([row.request.recorder is not None for row in batch.rows]):
                    untold = batch.report()  # recorded before the next draft
                continue  # a single one's tokens wait for nothing
            untold = batch.report()
            if has_ended:
                batch.drop_finished()
            told, untold = untold, []
            yield told
    except Exception:  # an interrupt cannot wait for the caller
        untold += batch.report()
        if untold:
            yield untold
        raise
    finally:
        batch.close()


class _Launched(NamedTuple):
    """A pass that was launched and not read yet."""

    rows: list[Row]
    reading: tuple[Row, list[int]] | None  # a row that is read in part, with these tokens
    tokens: int  # without draft nodes
    reads: bool  # prompts
    read: list[bool]  # by row, if any
    is_first: bool
    budget: Budget | None
    fitted: PassTrees
    shows: bool
    scores: Scores
    states: Sequence[RowStates] | None
    times: tuple[float, float, float, float]  # when it was started, drafted and launched, and bookkeeping ended


@dataclass(eq=False, slots=True)
class Batch:
    """Rows and the session that holds their KV caches. Rows may join and leave; `swap_row` swaps a single one."""

    _target: Target
    _draft: DraftOptions
    _costs: CostModel
    rows: list[Row] = field(default_factory=list)
    _session: Session | None = None
    _times: PassTimes = field(default_factory=PassTimes)
    _nodes: int = 0  # draft nodes of the last pass
    _reach: int = START_NODES  # draft nodes that a row may ask for
    _pauses: bool = False  # whether the next pass is made without drafts, to learn what it costs
    _launched: _Launched | None = None
    _verified: list[tuple[Row, DraftTree, Sequence[int], int]] = field(default_factory=list)
    """The last pass, until it is reported: rows, trees, accepted paths, and number of rows that got tokens."""
    is_outlasted: bool = False
    """Whether the last pass may have ended while the caller was told of the one before, so that its time is not known:
    that of the next one is, if it waits for the caller."""

    def add(self, rows: list[Row]) -> None:
        """Let these rows join; the next passes read their prompts."""
        prompts, limit = [row.request.prompt for row in rows], max(row.limit for row in rows)
        self.rows = [*self.rows, *rows]  # which are closed with the others if they cannot join
        if self._session is not None:
            self._session.add(prompts, limit)
        elif any([row.can_observe and row.wanted_states() is not None for row in rows]):
            self._session = self._target.open(prompts, limit, keeps_states=True)
        else:
            self._session = self._target.open(prompts, limit)
        for row in rows:
            row.meter.times, row.meter.before = self._times, replace(self._times)
        if all(row.request.prefixes is None and row.request.past is None for row in rows):
            return
        clock = self._costs.clock
        started = clock()
        if reuse.load(rows, self._session, self._target):
            self._times.passes += 1
            self._times.prefill += clock() - started

    def step(self) -> list[StepOutput]:
        """Propose, verify, commit: one forward pass of the target for all rows."""
        self.launch()
        self.finish()
        return self.report()

    def launch(self) -> list[StepOutput]:
        """Let all rows propose, and launch the pass that verifies this. Returns what the pass before added to each row,
        unless it was reported."""
        session, target, clock = self._session, self._target, self._costs.clock
        assert session is not None
        rows, reading = self.rows, None
        count = sum([len(row.uncached) for row in rows])
        reads = count > len(rows) or self._times.passes == rows[0].meter.before.passes
        fills_prefixes = any([row.model_state is not None for row in rows])
        if count + self._nodes > session.most_tokens or (fills_prefixes and any([row.stops for row in rows])):
            rows, reading, count = self._in_pieces(session.most_tokens - min(self._nodes, session.most_tokens // 4))
        read = [len(row.uncached) > 1 for row in rows] if reads else []
        is_first = reads and (all(read) or count == len(rows))
        if fills_prefixes:
            reuse.check_state(self.rows, target)
        started = clock()
        budget, fitted = None, PassTrees([EMPTY] * len(rows), 1.0)
        pauses, self._pauses = self._pauses, False
        if target.supports_drafts and not pauses and any(row.drafts for row in rows):
            draft = self._draft
            limit = self._reach if draft.max_nodes is None else draft.max_nodes
            most, computes = min(limit, session.most_nodes), session.computes
            budget = self._costs.budget(
                len(rows),
                most,
                computes,
                adaptive=draft.adaptive,
                is_first=is_first,
                uncached=count,
                most_tokens=min(session.most_tokens, count + max(most, SHARED_NODES)),
            )
            if not target.supports_trees:
                budget = replace(budget, chain=True)
            if len(rows) > 1:
                for row in rows:
                    if row.can_observe:  # others have no step of a network to share
                        row.begin(budget)
            drafts = [row.propose(budget) for row in rows]
            fitted = fit([row.meter.controller for row in rows], drafts, budget)
        if not target.supports_trees:
            fitted = PassTrees([tree.first_chain() for tree in fitted.trees], fitted.cost)
        trees, drafted = fitted.trees, clock()
        shows = any([row.reads_scores for row in rows])
        # Entering inference mode takes as long as verifying a row: sessions do it where a pass needs it.
        with inference_mode(True) if shows else _AS_IT_IS:
            uncached, drafts = [row.uncached for row in rows], trees
            if reading is not None:
                uncached, drafts = [*uncached, reading[1]], [*trees, EMPTY]
            scores, states = self._score(rows, uncached, drafts) if shows else (session.score(uncached, drafts), None)
        launched = clock()
        # Bookkeeping that the next draft does not need overlaps with the work of the device.
        if budget is not None:
            self._costs.learn()
            for row in rows:
                row.meter.settle()
        outputs = self.report() if self._verified else []
        times = started, drafted, launched, clock()
        self._launched = _Launched(
            rows, reading, count, reads, read, is_first, budget, fitted, shows, scores, states, times
        )
        return outputs

    def finish(self) -> bool:
        """Verify what the launched pass scored, and commit it. Returns whether a row has ended."""
        session, target, clock, launched = self._session, self._target, self._costs.clock, self._launched
        assert session is not None and launched is not None
        self._launched, resumed = None, clock()
        rows, reading, (trees, cost), scores = launched.rows, launched.reading, launched.fitted, launched.scores
        started, drafted, launched_at, bookkept = launched.times
        with inference_mode(True) if launched.shows else _AS_IT_IS:
            # Reading the picks waits for the pass to end, so that its time can be measured.
            if reading is not None:
                scores = Scores(scores.logits, scores.starts[:-1], scores.sizes[:-1])
            picks = pick(rows, trees, scores, launched.states) if launched.shows else best_picks(scores)
            sampled = clock()
            paths = [row.verify(tree, picked) for row, tree, picked in zip(rows, trees, picks, strict=True)]
        verified = clock()
        self._verified = [*zip(rows, trees, paths, repeat(len(rows)), strict=False)]
        kept_paths = [*paths]
        if has_ended := any([row.finish is not None for row in rows]):  # it needs no cache for its last accepted tokens
            kept_paths = [path if row.finish is None else () for row, path in zip(rows, paths, strict=True)]
        if reading is not None:
            reading[0].uncached = reading[0].uncached[len(reading[1]) :]
            kept_paths.append(())
        session.keep(kept_paths)
        if launched.reads and any([row.model_state is not None for row in self.rows]):
            chosen = [*launched.read, reading is not None and bool(reading[0].stops)]
            reuse.store(self.rows[: len(kept_paths)], session, target, chosen)
        self._nodes = nodes = sum([len(tree.tokens) for tree in trees])
        # A pass on a CPU has ended when `score` returns.
        overlapped = bookkept - launched_at if scores.logits.is_cpu else 0.0
        seconds, times = sampled - drafted - overlapped, self._times
        telling = resumed - bookkept
        self.is_outlasted = telling > sampled - resumed
        if self.is_outlasted:
            seconds -= telling
        times.passes += 1
        times.runner = session.runner
        times.draft += drafted - started
        times.verify += verified - sampled
        times.other += clock() - verified + overlapped
        if launched.reads:
            times.prefill += seconds
        else:
            times.target += seconds
        tokens, is_first, is_known = launched.tokens + nodes, launched.is_first, True
        if session.computes is not None:
            tokens, is_first = session.computes(tokens), False  # prompts are tokens like any others
        is_measured = session.is_settled and not self.is_outlasted
        if is_measured and is_first:
            self._costs.observe_first(tokens, seconds)
        elif is_measured:
            is_known = self._costs.observe(tokens, seconds)
        budget = launched.budget
        if budget is not None:
            if not is_known and budget.seconds:  # what it was thought to cost was a guess
                cost = min(max(cost, seconds / (budget.seconds * len(rows))), OUTLIER * cost)
            extra = len(rows) * (cost - 1.0) / nodes if nodes else 0.0
            # As long as drafts are right, it does not matter what a pass without them would cost.
            self._pauses = budget.is_guessed and nodes > 0 and not any(paths)
            most = min(MOST_NODES, SCORES_BYTES // (4 * scores.logits.shape[-1]))
            taken = max(scores.sizes) - 1
            self._reach = max(START_NODES, min(2 * taken, CHEAP_NODES), min(2 * max(map(len, paths)), most))
            for row, tree, path, size in zip(rows, trees, paths, scores.sizes, strict=True):
                row.meter.count(tree, path, budget, len(rows), extra * (size - 1))
        for row in self.rows[len(rows) :]:  # which got no token
            if reading is not None and row is reading[0]:
                row.meter.before.passes += 1
            else:
                row.meter.before = replace(self._times)
            if (owner := row.request.owner) is not None and owner.is_cancelled:
                row.finish, has_ended = Finish("stop", CANCELLED), True
                self._verified.append((row, EMPTY, (), len(rows)))
        return has_ended

    def report(self) -> list[StepOutput]:
        """Return what the last pass added to each row, once."""
        verified, self._verified = self._verified, []
        return [row.report(tree, path, count) for row, tree, path, count in verified]

    def _in_pieces(self, piece: int) -> tuple[list[Row], tuple[Row, list[int]] | None, int]:
        """The rows of a pass that reads about `piece` tokens of prompts: the first ones, whose scores are wanted; a row
        that is read in part, with these tokens; and the number of all these tokens."""
        assert self._session is not None
        rows, count = list[Row](), 0
        for row, cached in zip(self.rows, self._session.lengths, strict=True):
            size, room = len(row.uncached), piece - count
            if row.stops:
                room = min(room, row.stops[0] - cached)
            if size > max(1, room):
                return rows, (row, row.uncached[:room]) if room > 0 else None, count + max(0, room)
            rows.append(row)
            count += size
        return rows, None, count

    def drop_finished(self) -> None:
        """Remove rows that have ended; close the session after the last one."""
        is_running = [row.finish is None for row in self.rows]
        for row in self.rows:
            if row.finish is not None:
                row.close()
        if self._session is not None:
            # Rows that go on are cached when they end.
            reuse.store(self.rows, self._session, self._target, [not runs for runs in is_running])
            reuse.hand_over(self.rows, self._session)
        places = [place for place, runs in enumerate(is_running) if runs]
        self.rows = [self.rows[place] for place in places]
        if not self.rows:
            self.close()
        elif self._session is not None:
            self._session.select(places)

    @property
    def cached(self) -> int:
        """Number of tokens that the session has cached for the first row."""
        return self._session.lengths[0] if self._session is not None else 0

    def swap_row(self, row: Row, cached: int) -> None:
        """Put `row` in place of the only row, whose first `cached` tokens it shares."""
        assert self._session is not None and len(self.rows) == 1
        self.rows[0].close()
        self._session.trim([cached])
        row.uncached = row.uncached[self._session.lengths[0] :]
        row.meter.times, row.meter.before = self._times, replace(self._times)
        self.rows = [row]

    def close(self) -> None:
        """Free the target's KV caches."""
        if self._session is not None:
            self._session.close()
        for row in self.rows:
            row.close()
        self.rows, self._session, self._launched, self._verified = [], None, None, []

    def _score(
        self, rows: Sequence[Row], uncached: Sequence[Sequence[int]], trees: Sequence[DraftTree]
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        """The scores of a pass, with others where a rule has them, and the hidden states that drafters want."""
        session = self._session
        assert session is not None
        states: Sequence[RowStates] | None = None
        wanted = [layers for row in rows if row.can_observe and (layers := row.wanted_states()) is not None]
        if wanted:
            scores, states = session.score_with_states(uncached, trees, sorted({*chain.from_iterable(wanted)}))
        else:
            scores = session.score(uncached, trees)
        if any([row.rescorer is not None for row in rows]):
            scores = rescored(rows, trees[: len(rows)], scores)
        return scores, states


class PassTrees(NamedTuple):
    """The trees of a pass."""

    trees: list[DraftTree]
    cost: float  # of the pass, in plain passes


def fit(controllers: Sequence[DraftController | None], trees: Sequence[DraftTree], budget: Budget) -> PassTrees:
    """Cut the trees of one pass to the nodes that are worth their cost.

    These maximise the expected tokens of all rows per unit of time, within the drafting rows' allowance even if all
    drafts are wrong. A pass costs what its tokens do, whichever rows they are of: the likeliest nodes of all rows are
    verified.
    """
    sizes = [len(tree.tokens) for tree in trees]
    if not budget.costs or not any(sizes):
        return PassTrees(list(trees), 1.0)
    drafts: list[_Draft | None] = []
    allowed = 0.0
    for controller, tree, size in zip(controllers, trees, sizes, strict=True):
        if controller is None or not size:
            drafts.append(None)
            continue
        most, scale, scores = size, controller.calibration, tree.scores
        if controller.is_probe:  # which uses the drafter's raw scores
            most, scale = min(PROBE_NODES, size) if scale < 1.0 else size, 1.0
        if controller.trust != 1.0:
            scores = [controller.trust * score for score in scores]
        drafts.append((tree.parents, scores, scale, most))
        allowed += max(0.0, controller.allowance)
    chosen = COMPILED.fit_shared if COMPILED is not None else _fit_shared
    costs = budget.shared or budget.costs
    count, orders = chosen(drafts, costs, allowed)
    fitted = [
        tree if len(order) == size else tree.in_order(order) if order else EMPTY
        for tree, size, order in zip(trees, sizes, orders, strict=True)
    ]
    return PassTrees(fitted, costs[count])


_Draft = tuple[Sequence[int], Sequence[float], float, int]
"""Parents and scores of a tree, the factor for its scores, and how many of its nodes may be used."""


def _fit_shared(drafts: Sequence[_Draft | None], costs: Sequence[float], allowed: float) -> tuple[int, list[list[int]]]:
    """How many nodes of all rows together pay, and which of each draft, in stored order.

    `costs`: of passes with 0, 1, ... nodes of all rows; `allowed`: plain passes that all rows together may lose.
    """
    rows = len(drafts)
    ranked: list[tuple[float, int, int]] = []
    for row, draft in enumerate(drafts):
        if draft is not None:
            parents, scores, scale, most = draft
            worth = calibrated_scores(parents, scores, scale)
            ranked += sorted([(-value, row, node) for node, value in enumerate(worth)])[:most]
    ranked.sort()  # the likeliest first, ties in stored order
    expected, best, count = float(rows), rows / costs[0], 0
    for n, (worth_less, _, _) in enumerate(ranked[: len(costs) - 1], 1):
        expected -= worth_less
        if expected / costs[n] > best and rows * (costs[n] - 1.0) <= allowed:
            best, count = expected / costs[n], n
    orders: list[list[int]] = [[] for _ in drafts]
    for row, node in sorted([(row, node) for _, row, node in ranked[:count]]):
        orders[row].append(node)
    return count, orders


def calibrated_scores(parents: Sequence[int], scores: Sequence[float], scale: float) -> list[float]:
    """The path probability of each node, multiplied by `scale` at every step of the path. [m]"""
    worth: list[float] = []
    for parent, score in zip(parents, scores, strict=True):
        parent_worth, parent_score = (1.0, 1.0) if parent == ROOT else (worth[parent], scores[parent])
        likely = parent_score > 0.0 and score > 0.0  # drafters of users may report anything, NaN too
        worth.append(parent_worth * scale * (score / parent_score if score < parent_score else 1.0) if likely else 0.0)
    return worth
