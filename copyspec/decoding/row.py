"""One row of a batch during decoding: its output and its provenance, its drafter, and its stop conditions."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from copyspec.budget import Budget, CostModel
from copyspec.decoding.controller import LOSS_PER_TOKEN, DraftController
from copyspec.decoding.divergence import DivergenceTracker
from copyspec.decoding.meter import Meter
from copyspec.decoding.requests import CANCELLED, Finish, Request, StepOutput
from copyspec.drafters.base import Drafter, ScoredDraft, observes, wanted_layers, wants_states
from copyspec.sources import OUTPUT
from copyspec.targets.base import Target
from copyspec.targets.hooks.model_state import ModelState
from copyspec.tree import EMPTY, ROOT, DraftTree, Origin, fault
from copyspec.verification.margins import Margin, best_two, check_picked
from copyspec.verification.picking import Picker, Picks, ScoredPicks
from copyspec.verification.walk import accepted, walk


class Row:
    """The state of one request. `verify` extends the output and stops at the token where plain decoding would."""

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
        """`adaptive`: draft only as much as pays at `costs`. Raises ValueError for an empty or too long prompt."""
        self.index = index
        self.request = request
        self.finish: Finish | None = None
        self.output: list[int] = []
        self.uncached: list[int] = target.start(request.prompt) if request.start is None else list(request.start)
        """Tokens that the target has not cached yet: the prompt at first, then the last output token."""
        if not self.uncached:
            raise ValueError(f"request {index} has an empty prompt: decoding needs at least one token to start from")
        self.model_state: ModelState | None = None
        """State of the model that all passes of the row used; None: the row is not stored in a prefix cache."""
        self.stops: list[int] = []
        """Numbers of cached tokens at which a pass must end, so that the row's states can be stored."""
        self.rescorer = request.rescorer() if request.rescorer is not None else None
        longest = target.max_length
        if self.rescorer is not None:
            self.rescorer.check(request.prompt)
            if (limit := self.rescorer.max_length) is not None:
                longest = limit if longest is None else min(longest, limit)
        self.limit = request.max_new_tokens
        """Maximum number of output tokens. The last one is never an input, so that it needs no position."""
        if longest is not None:
            started = len(self.uncached) + (request.past.before if request.past is not None else 0)
            if started > longest:
                raise ValueError(f"a prompt of {started} tokens does not fit into the model's context of {longest}")
            self.limit = min(self.limit, longest - started + 1)
        sampling = request.sampling
        self.takes_argmax = (
            sampling.is_greedy
            and sampling.repetition_penalty == 1.0
            and not (sampling.logit_bias or request.processors)
            and request.rule is None
        )
        """Whether its tokens are the argmax of the raw logits, which a batch computes for all rows at once."""
        self._device = target.device
        self._picker: Picker | None = None
        if not self.takes_argmax:
            self._picker = Picker(sampling, request.processors, self.uncached, self.limit, target.device)
        self._origin: Origin | None = None  # of the last reported token
        self._margins: list[Margin] = []
        self._keep_margins = keep_margins
        self._divergences: DivergenceTracker | None = None
        edited = next((source for source in request.sources if source.kind == "edit"), None)
        # With noise, scores do not show the target's preference.
        if edited is not None and request.rule is None and request.sampling.is_greedy:
            self._divergences = DivergenceTracker(list(edited.tokens), request.eos_token_ids)
        self._reported = 0
        self._vocab_size = target.vocab_size
        self._drafter: Drafter | None = None
        if request.drafter is not None:
            try:
                self._drafter = request.drafter()
            except BaseException as error:
                self._lose_drafter(error)
        self.can_observe = callable(getattr(self._drafter, "observe", None))
        self.reads_scores = self.can_observe or self.rescorer is not None or not self.takes_argmax
        """Whether the row needs the target's logits, not only their argmax."""
        self.drafts = self._drafter is not None
        """Whether the drafter is asked; False without one, or while it is known to propose nothing."""
        self._clock = (costs := costs or CostModel()).clock
        self._begun = 0.0  # seconds that `begin` took
        controller: DraftController | None = None
        if adaptive and self._drafter is not None:
            controller = DraftController(costs.start + LOSS_PER_TOKEN, trust=costs.trust)
        self.meter = Meter(costs, request.sources, request.eos_token_ids, controller)

    @property
    def picker(self) -> Picker:
        """Picks the row's tokens; made when first used, as a greedy row needs it only in a batch with others."""
        if self._picker is None:
            self._picker = Picker(self.request.sampling, (), (), 0, self._device)
        return self._picker

    def begin(self, budget: Budget) -> None:
        """Let the drafter begin the draft that `propose` will return, if it does that for all rows at once."""
        begin, controller = getattr(self._drafter, "begin", None), self.meter.controller
        room = self.limit - len(self.output) - 1
        if begin is None or not self.drafts or budget.max_nodes == 0 or room <= 0:
            return
        if controller is not None and not controller.wants_draft:
            return
        started = self._clock()
        try:
            begin(budget)
        except BaseException as error:
            self._lose_drafter(error)
        self._begun = self._clock() - started

    def propose(self, budget: Budget) -> DraftTree:
        """Return the row's draft: empty without a drafter, and while drafting does not pay."""
        drafter, meter, clock = self._drafter, self.meter, self._clock
        # The target itself adds the last token: drafts beyond that are wasted, and may exceed its positions.
        room = self.limit - len(self.output) - 1
        if drafter is None or not self.drafts or budget.max_nodes == 0 or room <= 0:
            return EMPTY
        if (controller := meter.controller) is not None and not controller.wants_draft:
            meter.pause()
            return EMPTY
        begun, self._begun = self._begun, 0.0
        started = clock()
        try:
            tree = drafter.propose(budget)
            begun -= float(getattr(drafter, "unmeasured", 0.0))
            if (size := len(tree.tokens)) and (wrong := fault(tree, self._vocab_size)) is not None:  # of a user, maybe
                raise ValueError(f"{type(drafter).__name__} proposed an invalid draft tree: {wrong}")
            if size > room:
                tree = tree.up_to_depth(room)
        except BaseException as error:
            self._lose_drafter(error)
            tree = EMPTY
        meter.proposed = tree, max(0.0, clock() - started + begun)
        return tree

    def wanted_states(self) -> Sequence[int] | None:
        """Layers whose input hidden states the drafter reads in addition to the target's last ones; None if it reads
        no states."""
        try:
            return wanted_layers(self._drafter) if wants_states(self._drafter) else None
        except BaseException as error:
            self._lose_drafter(error)
            return None

    def show(self, scored: ScoredDraft) -> None:
        """Pass what the target scored to a drafter that observes it."""
        drafter = self._drafter
        try:
            if drafter is not None and observes(drafter):
                drafter.observe(scored)  # type: ignore[attr-defined]
        except BaseException as error:
            self._lose_drafter(error)

    def verify(self, tree: DraftTree, picks: Picks) -> Sequence[int]:
        """Extend the output along the accepted path, and return its nodes."""
        output, request, before = self.output, self.request, len(self.output)
        tokens: Sequence[int]
        if isinstance(picks, ScoredPicks):
            path, tokens = accepted(tree.tokens, tree.parents, picks.tokens)
            if request.stops or before + len(tokens) >= self.limit or not request.eos_token_ids.isdisjoint(tokens):
                for token in tokens:
                    output.append(token)
                    self.finish = self._check(token)
                    if self.finish is not None:
                        break
                tokens = output[before:]
                path = path[: len(tokens)]
            else:
                output += tokens  # most steps contain no stop
            if self._picker is not None:
                self._picker.extend(tokens)
            if self._keep_margins:
                self._margins += [best_two(picks.scores(node)) for node in (ROOT, *path)[: len(tokens)]]
            if self._divergences is not None:
                self._divergences.follow(tokens, lambda index: picks.scores(path[index - 1] if index else ROOT))
        else:
            path = self._accept_walking(tree, picks)
            tokens = output[before:]
        # 0 is the argmax of scores that are all NaN. After an error of the owner's own code the path is not known.
        if tokens and tokens[-1] == 0 and len(tokens) <= len(path) + 1:
            self._check_picked(picks, (ROOT, *path)[len(tokens) - 1])
        if (owner := request.owner) is not None and self.finish is None and owner.is_cancelled:
            self.finish = Finish("stop", CANCELLED)
        self.uncached = output[-1:]
        if self.rescorer is not None:
            self.rescorer.keep(path)
        if self._drafter is not None and self.finish is None:
            try:
                self._drafter.accept(tokens)
            except BaseException as error:
                self._lose_drafter(error)
        return path

    def close(self) -> None:
        """Free what the row holds outside of the batch's session."""
        if self.rescorer is not None:
            self.rescorer.close()

    def report(self, tree: DraftTree, path: Sequence[int], rows: int) -> StepOutput:
        """Return what a step of `rows` rows added to this one; `path` is what `verify` accepted."""
        since, self._reported = self._reported, len(self.output)
        tokens, origins = self.output[since:], [tree.origins[node] for node in path]
        if len(origins) < len(tokens):
            # The target's own token behind a copied one counts as copied if it stands next there too.
            copied, own = origins[-1] if origins else self._origin, None
            if copied is not None:
                source, offset = copied.source, copied.offset + 1
                text = self.output if source == OUTPUT else self.request.sources[source].tokens
                own = Origin(source, offset) if offset < len(text) and text[offset] == tokens[-1] else None
            origins.append(own)
        self._origin = origins[-1] if origins else self._origin
        step = StepOutput(self.index, tokens, origins, self.finish)
        if self.request.recorder is not None:
            counters = self.meter.stats(len(self.output), ended=False)
            self.request.recorder.record(tree, path, step.tokens, counters, rows)
        if self._keep_margins:
            step.margins = self._margins[since:]
        if self.finish is not None:
            self.meter.conclude(without_own=0 < len(path) == len(step.tokens))
            step.stats = self.meter.stats(len(self.output))
            step.divergences = self._divergences.found() if self._divergences is not None else ()
        return step

    def replay(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the output as if they had been picked. Ends the row at a stop condition or its limit."""
        if self._picker is not None and not self.output:
            self._picker.key_noise_from(0)
        if not tokens and self.output:
            return
        for token in tokens:
            self.output.append(token)
            if self._picker is not None:
                self._picker.append(token)
            self.finish = self._check(token)
        self._origin, self._reported = None, len(self.output)
        self.uncached = [*self.uncached, *tokens]
        if self._drafter is not None and tokens:
            self._drafter.accept(tokens)

    def _accept_walking(self, tree: DraftTree, picks: Picks) -> list[int]:
        """`verify` where the target's token depends on the path that leads to a node."""

        def emit(token: int, node: int) -> bool:
            if self._keep_margins:
                self._margins.append(best_two(picks.scores(node)))
            if self._divergences is not None:
                self._divergences.follow([token], lambda _: picks.scores(node))
            self.output.append(token)
            self.picker.append(token)
            self.finish = self._check(token)
            return self.finish is not None

        try:
            return walk(tree, picks, emit)
        except BaseException as error:  # raised by a logits processor
            self._fail(error)
            self.finish = Finish("stop", CANCELLED)
            return []

    def _check_picked(self, picks: Picks, node: int) -> None:
        try:
            check_picked(picks.scores(node), self.output[-1], len(self.output) - 1)
        except ValueError as error:
            self._fail(error)

    def _lose_drafter(self, error: BaseException) -> None:
        """Handle an error of the drafter: raise it, or pass it to the owner and go on without a drafter."""
        self._fail(error)
        self._drafter, self.drafts = None, False

    def _fail(self, error: BaseException) -> None:
        """Pass an error of the owner's own code to the owner alone, whatever its type; without one, raise it."""
        owner = self.request.owner
        # KeyboardInterrupt is raised in whatever the main thread runs; if this row's caller has left, it would be lost.
        is_lost = owner is not None and owner.is_cancelled and isinstance(error, KeyboardInterrupt)
        if owner is None or (is_lost and threading.current_thread() is threading.main_thread()):
            raise error
        owner.fail(error)

    def _check(self, token: int) -> Finish | None:
        """Check whether the output ends with `token`: end of sequence precedes stops, which precede the length."""
        stopped = None
        try:
            for stop in self.request.stops:  # every stop condition must see every token
                match = stop.push(token)
                stopped = match if stopped is None else stopped
        except BaseException as error:
            self._fail(error)
            stopped = CANCELLED
        if token in self.request.eos_token_ids:
            return Finish("stop", token)
        if stopped is not None:
            return Finish("stop", stopped)
        return Finish("length") if len(self.output) >= self.limit else None
