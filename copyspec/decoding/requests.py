"""What decoding is asked and what it answers, in token ids: the seam between engine and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.tree import DraftTree, Origin

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from copyspec.decoding.contrast import Contrast
    from copyspec.decoding.departures import Departure
    from copyspec.decoding.stats import Stats
    from copyspec.drafters.base import Drafter
    from copyspec.targets.prefixes import PrefixCache
    from copyspec.verification.classic.rules import Rule
    from copyspec.verification.margins import Margin

FinishReason = Literal["stop", "length"]

CANCELLED = "cancelled"
"""The detail with which a row ends that nobody waits for any more."""


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


class Owner(Protocol):
    """Who waits for a row, and takes the errors of what the request brought along."""

    is_cancelled: bool
    """Looked at after each step: True ends the row, with CANCELLED as the detail."""

    def fail(self, error: BaseException) -> None:
        """Told what a drafter, stop condition or processor of the row raised; it is cancelled from then on."""
        ...


class PassRecorder(Protocol):
    """Keeps what the passes of one row did (`views.recording.TraceRecorder`)."""

    def record(self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], counters: Stats, rows: int) -> None:
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
    contrast: Callable[[], Contrast] | None = None
    """Makes the row's view of the weaker model that the target is contrasted with; None: the target alone."""
    recorder: PassRecorder | None = None
    """Told of every pass of the row; None, the default, costs nothing."""
    prefixes: PrefixCache | None = None
    """Where keys and values of earlier rows are kept, and this row's will be; None: they are computed, and dropped."""
    owner: Owner | None = None
    """Who waits for the row. None: the batch ends with what its drafter, stop conditions and processors raise."""


@dataclass(slots=True)
class StepOutput:
    """What one step added to one row."""

    row: int  # index of the request
    tokens: Sequence[int]
    origins: Sequence[Origin | None]  # [len(tokens)], where each token was copied from
    finish: Finish | None = None
    stats: Stats | None = None  # with `finish`
    margins: Sequence[Margin] = ()  # [len(tokens)] where decoding was asked to keep them
    departures: Sequence[Departure] = ()  # with `finish`: from the edit source, where there is one
