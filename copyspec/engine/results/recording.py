"""Records the forward passes of one row, from which a `Trace` is made on request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from copyspec.decoding.stats import Stats
from copyspec.sources import OUTPUT, Source
from copyspec.tree import DraftTree
from copyspec.views.pass_trace import Trace, TraceNodes, TracePass, TraceTimes, TraceTotals

MAX_PASSES = 20_000
MAX_NODES = 400_000
"""Limit over all passes: about 100 MB. Later passes are only counted."""


_TIMES = ("prefill_seconds", "draft_seconds", "target_seconds", "verify_seconds", "other_seconds")


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One pass as it was recorded."""

    tree: DraftTree
    path: Sequence[int]
    tokens: Sequence[int]
    ended: float  # clock time
    seconds: tuple[float, ...]  # the _TIMES of this pass alone
    rows: int
    decision: str


class TraceRecorder:
    """Records one row's passes. `record` only stores its arguments, so that it stays cheap."""

    def __init__(self, name: Callable[[DraftTree, int], str]) -> None:
        """`name`: names who drafted a node, as in `Stats.num_draft_tokens_per_source`."""
        self._name = name
        self._kept: list[_Recorded] = []
        self._nodes = 0
        self._start: float | None = None
        self._omitted = TraceTotals()
        self._seconds: tuple[float, ...] = (0.0,) * len(_TIMES)
        self._decisions: dict[str, int] = {}

    def record(self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], counters: Stats, rows: int) -> None:
        """Called after each pass of the row with its tree, the accepted nodes, the tokens added to the output, and the
        row's counters including this pass. `rows`: rows in the batch."""
        totals = tuple([getattr(counters, name) for name in _TIMES])
        seconds = tuple([now - before for now, before in zip(totals, self._seconds, strict=True)])
        decisions = dict(counters.decisions)
        decision = next((name for name, count in decisions.items() if count > self._decisions.get(name, 0)), "")
        self._seconds, self._decisions = totals, decisions
        ended = perf_counter()
        if self._start is None:
            self._start = ended - sum(seconds)
        recorded = _Recorded(tree, tuple(path), tuple(tokens), ended, seconds, rows, decision)
        self._nodes += len(tree)
        if len(self._kept) < MAX_PASSES and self._nodes <= MAX_NODES:
            self._kept.append(recorded)
        else:
            self._omitted.add(self._pass(recorded))

    def trace(self, decode: Callable[[Sequence[int]], str], *, prompt_tokens: int = 0) -> Trace:
        """The trace of the passes so far; `decode`: token ids to text."""
        passes = tuple(map(self._pass, self._kept))
        tokens = {token for pass_ in passes for token in (*pass_.tokens, *pass_.nodes.tokens)}
        texts = {token: decode([token]) for token in sorted(tokens)}
        return Trace(passes, texts, TraceTotals(**asdict(self._omitted)), prompt_tokens)

    def _pass(self, recorded: _Recorded) -> TracePass:
        prefill, draft, target, verify, other = recorded.seconds
        tree = recorded.tree
        nodes = TraceNodes(
            tuple(tree.tokens),
            tuple(tree.parents),
            tuple(map(float, tree.scores)),
            tuple(self._name(tree, node) for node in range(len(tree))),
        )
        start = max(0.0, recorded.ended - sum(recorded.seconds) - (self._start or 0.0))
        times = TraceTimes(start, draft, prefill + target, verify, other)
        is_first = prefill > 0
        return TracePass(
            times, tuple(recorded.tokens), nodes, tuple(recorded.path), recorded.rows, is_first, recorded.decision
        )


def drafter_name(tree: DraftTree, node: int, *, sources: Sequence[Source], eos: Collection[int]) -> str:
    """The name of who drafted a node, as in `Stats.num_draft_tokens_per_source`."""
    origin = tree.origins[node]
    if origin is not None:
        kind = "output" if origin.source == OUTPUT else sources[origin.source].kind
        return "prompt" if kind == "block" else kind
    drafter = tree.drafters[node] if tree.drafters is not None else None
    return drafter or ("end" if tree.tokens[node] in eos else "guess")
