"""Requests to decoding and its results, in token ids: the interface between engine and decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from copyspec.options import SamplingOptions
from copyspec.sources import Source
from copyspec.tree import DraftTree, Origin

if TYPE_CHECKING:
    from transformers import LogitsProcessor

    from copyspec.decoding.divergence import Divergence
    from copyspec.decoding.stats import Stats
    from copyspec.drafters.base import Drafter
    from copyspec.targets.rows.prefixes import Layers, Past, PrefixCache
    from copyspec.verification.margins import Margin
    from copyspec.verification.rule import Rescorer, Rule

FinishReason = Literal["stop", "length"]

CANCELLED = "cancelled"
"""`Finish.detail` of a row that was cancelled because its caller no longer waits for it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a row ended. The token that ended it is the last of its output."""

    reason: FinishReason
    detail: int | str | None = None
    """For "stop": the id of the end-of-sequence token, the stop string, or the class name of the stop criterion."""


class StopCondition(Protocol):
    """Watches one row's output token by token, in order, as plain decoding would produce it."""

    def push(self, token: int) -> str | None:
        """Take a new token; return what matched if the row ends with this token, else None."""
        ...


class Owner(Protocol):
    """The caller that waits for a row, and receives errors from the drafter, stops and processors it supplied."""

    is_cancelled: bool
    """Read after each step: True ends the row, with CANCELLED as the detail."""

    def fail(self, error: BaseException) -> None:
        """Receive an error of the row's drafter, stop condition or processor; the row is cancelled from then on."""
        ...


class PassRecorder(Protocol):
    """Records the passes of one row (implemented by `engine.recording.TraceRecorder`)."""

    def record(self, tree: DraftTree, path: Sequence[int], tokens: Sequence[int], counters: Stats, rows: int) -> None:
        """Called after each pass with the row's tree, its accepted nodes, the new output tokens, the row's counters
        including this pass, and the number of rows in the batch."""
        ...


@dataclass(slots=True)
class Request:
    """One row: its prompt, the sources it may copy from, how tokens are picked, and when it stops."""

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: SamplingOptions
    eos_token_ids: frozenset[int] = frozenset()
    sources: Sequence[Source] = ()
    """`Origin.source` in the step outputs indexes this list; the drafter must use the same one."""
    drafter: Callable[[], Drafter] | None = None
    """Creates the row's drafter when the row starts. None: plain decoding, that is, the same loop with empty trees."""
    stops: Sequence[StopCondition] = ()
    processors: Sequence[LogitsProcessor] = ()
    """`transformers` logits processors, called with (ids [1, L], scores [1, V]) of this row alone, along the
    accepted path, before temperature and the other sampling options."""
    rule: Rule | None = None
    """The rule that accepts draft tokens; None: the default, which keeps the target's tokens (`verification.walk`)."""
    rescorer: Callable[[], Rescorer] | None = None
    """Creates the row's view of the rule's second model; None: the target alone."""
    recorder: PassRecorder | None = None
    """Receives every pass of the row; None adds no overhead."""
    start: Sequence[int] | None = None
    """The first tokens of an encoder-decoder model's output, which it has not picked; None: those of the target."""
    prefixes: PrefixCache | None = None
    """Cache from which the row takes keys and values of its prompt, and which stores the row's own; None: no reuse."""
    past: Past | None = None
    """Keys and values with which the row begins, instead of any from `prefixes`."""
    take: Callable[[Layers], None] | None = None
    """Receives keys and values of the row when it ends, as far as its session has them: all but those of its last
    tokens."""
    most_kept: int | None = None
    """Number of first tokens of the row that `prefixes` may store; None: all."""
    owner: Owner | None = None
    """Receives errors of the row. None: an error in its drafter, stop conditions or processors ends the batch."""


@dataclass(slots=True)
class StepOutput:
    """The tokens that one step added to one row."""

    row: int  # index of the request
    tokens: Sequence[int]
    origins: Sequence[Origin | None]  # [len(tokens)], where each token was copied from
    finish: Finish | None = None
    stats: Stats | None = None  # with `finish`
    margins: Sequence[Margin] = ()  # [len(tokens)] if decoding keeps margins, else empty
    divergences: Sequence[Divergence] = ()  # with `finish`: where the output departs from the edit source, if any
