"""What decoding is asked and what it answers, in token ids: the seam between engine and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Protocol

from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.tree import DraftTree, Origin

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from copyspec.decoding.departures import Departure
    from copyspec.drafters.base import Drafter
    from copyspec.verification.classic.rules import Rule
    from copyspec.verification.margins import Margin

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a row ended. The token that ended it is the last one of its output."""

    reason: FinishReason
    detail: int | str | None = None
    """With `stop`: the end-of-sequence token's id, the stop string, or the stop criterion's class name."""


class StopCondition(Protocol):
    """Watches one row's output token by token, in order, exactly as plain decoding would show it."""

    def push(self, token: int) -> str | None:
        """Told each new token; returns what matched where the row ends with this token, else None."""
        ...


class PassRecorder(Protocol):
    """Keeps what the passes of one row did (`views.recording.TraceRecorder`)."""

    def record(
        self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], counters: RowStats, rows: int
    ) -> None:
        """Told after each pass: the row's tree, its accepted nodes, what joined the output, the row's counters with
        this pass among them, and the rows of the batch."""
        ...


@dataclass(slots=True)
class Request:
    """One row: a prompt, what may be copied, how to pick tokens, when to stop."""

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: SamplingOptions
    eos_token_ids: frozenset[int] = frozenset()
    sources: Sequence[Source] = ()
    """`Origin.source` in the step outputs is an index into these; the drafter was made with the same list."""
    drafter: Callable[[], Drafter] | None = None
    """Makes the row's drafter when the row starts. None: plain decoding, the same loop with empty trees."""
    stops: Sequence[StopCondition] = ()
    processors: Sequence[LogitsProcessor] = ()
    """`transformers` logits processors, called with (ids [1, L], scores [1, V]) of this row alone, along the
    accepted walk, before temperature and the other sampling options."""
    rule: Rule | None = None
    """How drafts are accepted; None: the default, the target's own tokens (`verification.walk`)."""
    recorder: PassRecorder | None = None
    """Told of every pass of the row; None, the default, costs nothing."""
    on_error: Callable[[Exception], None] | None = None
    """Takes what the drafter raises: the row goes on without it. None: the batch ends with that error."""


@dataclass(slots=True)
class RowStats:
    """Counters of one row. A call is one pass of the target; the row shares it with its batch."""

    calls: int = 0
    drafts: int = 0  # calls that carried at least one draft node of this row
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    output_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)  # [depth - 1]
    # By kind of source, or "output", "model", "pool", "datastore", "end" (of sequence) or "guess" (from nowhere).
    drafted_by_source: dict[str, int] = field(default_factory=dict)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    # Of calls by what the controller did: "drafted", "probed" (drafted after a pause), "nothing" (the drafter had
    # nothing to say), "unprofitable" (no size of its draft paid), "paused".
    decisions: dict[str, int] = field(default_factory=dict)
    allowed_nodes: int = 0  # summed over the calls with a draft to decide on: what losses still allowed
    earned_calls: float = 0.0  # calls' worth of time that drafts saved, less what they cost, as measured
    trust: float = 1.0  # of late, in what the drafter says of its own drafts
    call_costs: dict[int, float] = field(default_factory=dict)  # by nodes, those measured, as last used: empty call = 1
    call_seconds: float = 0.0  # of an empty call, as last used
    runner: str = "eager"  # how the last call was made
    # Seconds of the batch's steps while this row was in it.
    prefill_seconds: float = 0.0  # the first call, which also verifies the first tree
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    def __add__(self, other: RowStats) -> RowStats:
        """The counters of two rows together."""
        latest = other if other.call_costs or other.decisions else self
        return RowStats(
            **{
                each.name: getattr(latest, each.name)
                if each.name in _LATEST
                else _sum(getattr(self, each.name), getattr(other, each.name))
                for each in fields(self)
            }
        )


_LATEST = frozenset({"runner", "trust", "call_costs", "call_seconds"})
"""What says how things stand, and is no count."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step added to one row."""

    row: int  # index of the request
    tokens: Sequence[int]
    origins: Sequence[Origin | None]  # [len(tokens)], where each token was copied from
    finish: Finish | None = None
    stats: RowStats | None = None  # with `finish`
    margins: Sequence[Margin] = ()  # [len(tokens)] where decoding was asked to keep them
    departures: Sequence[Departure] = ()  # with `finish`: from the edit source, where there is one


def _sum(first: object, second: object) -> Any:
    """Of numbers, of lists by position, of dictionaries by key."""
    if isinstance(first, list) and isinstance(second, list):
        return [_sum(a, b) for a, b in zip_longest(first, second, fillvalue=0)]
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: _sum(first.get(key, 0), second.get(key, 0)) for key in {**first, **second}}
    assert isinstance(first, (int, float)) and isinstance(second, (int, float))
    return first + second
