"""Keeps what the passes of one row did, for a `Trace` to be made of it when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from copyspec.tree import DraftTree
from copyspec.views.pass_trace import Trace, TraceNodes, TracePass, TraceTimes, TraceTotals

MAX_PASSES = 20_000
MAX_NODES = 400_000
"""Of all passes together: about 100 MB. What comes later is counted only."""


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """What the loop knows of one pass of one row; it is made only where a row is recorded."""

    tree: DraftTree
    path: Sequence[int]
    tokens: Sequence[int]
    clock: tuple[float, float, float, float, float]  # started, proposed, scored, verified, committed
    rows: int
    is_first: bool
    decision: str


class TraceRecorder:
    """One row's passes. `record` keeps what it is given, and works nothing out."""

    def __init__(self, voice: Callable[[DraftTree, int], str]) -> None:
        """`voice`: who drafted a node, by the names of `Stats.num_draft_tokens_per_source`."""
        self._voice = voice
        self._kept: list[RecordedPass] = []
        self._nodes = 0
        self._start: float | None = None
        self._omitted = TraceTotals()

    def record(self, each: RecordedPass) -> None:
        """Told after each pass of the row."""
        if self._start is None:
            self._start = each.clock[0]
        self._nodes += len(each.tree)
        if len(self._kept) < MAX_PASSES and self._nodes <= MAX_NODES:
            self._kept.append(each)
        else:
            self._omitted.add(self._pass(each))

    def trace(self, decode: Callable[[Sequence[int]], str], *, model: str = "", prompt_tokens: int = 0) -> Trace:
        """What was recorded so far; `decode`: token ids to text."""
        passes = tuple(map(self._pass, self._kept))
        tokens = {token for each in passes for token in (*each.tokens, *each.nodes.tokens)}
        texts = {token: decode([token]) for token in sorted(tokens)}
        return Trace(passes, texts, TraceTotals(**asdict(self._omitted)), model, prompt_tokens)

    def _pass(self, each: RecordedPass) -> TracePass:
        started, proposed, scored, verified, committed = each.clock
        tree = each.tree
        nodes = TraceNodes(
            tuple(tree.tokens),
            tuple(tree.parents),
            tuple(map(float, tree.scores)),
            tuple(self._voice(tree, node) for node in range(len(tree))),
        )
        times = TraceTimes(
            max(0.0, started - (self._start or 0.0)),
            proposed - started,
            scored - proposed,
            verified - scored,
            committed - verified,
        )
        return TracePass(times, tuple(each.tokens), nodes, tuple(each.path), each.rows, each.is_first, each.decision)
