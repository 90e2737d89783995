"""Counters of one output: its forward passes, what they drafted, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of one output; those of drafts are named as in vLLM. The `seconds` are of all passes that the row took
    part in."""

    num_passes: int = 0  # forward passes of the target
    num_drafts: int = 0  # passes that carried a draft of this row
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens whose keys and values came from earlier calls (`prefix_cache`)
    num_accepted_tokens_per_pos: tuple[int, ...] = ()  # [depth - 1]
    num_draft_tokens_per_source: Mapping[str, int] = field(default_factory=dict)
    """By kind of source, or "output", "model", "heads", "pool", "datastore", "end" (end of sequence), the class of a
    drafter of your own, "guess" (no known origin)."""
    num_accepted_tokens_per_source: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Passes by what the controller decided: "drafted"; "probed", a trial draft after a pause; "no_draft", the drafter
    proposed nothing; "unprofitable", no size of its draft was worth its cost; "paused", the drafter was not asked."""
    num_allowed_nodes: int = 0  # maximum tree size, summed over the passes whose drafter was asked
    calibration: float = 1.0  # factor applied to the drafter's probabilities at the end, from how often it was right
    saved_passes: float = 0.0  # time saved by drafting less its cost, in passes without a draft, by measured costs
    pass_seconds: float = 0.0  # of a pass without a draft, for all rows of the batch, as measured at the end
    runner: str = "eager"
    """How the last pass was run: "eager", "static", "graph", "compiled" or "compiled graph" (see docs/gpu.md)."""
    pass_costs: Mapping[int, float] = field(default_factory=dict)
    """Time of a pass by its number of draft nodes, those of all rows together and of padding included, in units of
    `pass_seconds`, where it was measured."""
    prefill_seconds: float = 0.0  # passes that read prompts, of this row or of others; they verify drafts, too
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        """Add the counters of two outputs; fields that are not counts are taken from the later one."""
        latest = other if other.pass_costs or other.decisions else self
        return Stats(
            **{
                counter.name: getattr(latest, counter.name)
                if counter.name in _LATEST
                else _sum(getattr(self, counter.name), getattr(other, counter.name))
                for counter in fields(self)
            }
        )

    @property
    def mean_allowed_nodes(self) -> float:
        """Mean size that a draft was allowed to have, over the passes whose drafter was asked."""
        decided = sum(count for decision, count in self.decisions.items() if decision != "paused")
        return self.num_allowed_nodes / decided if decided else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per target pass: accepted draft tokens and the target's own."""
        return self.num_output_tokens / self.num_passes if self.num_passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...]:
        """Accepted tokens at each depth of the draft, per pass that carried a draft."""
        return tuple(n / self.num_drafts if self.num_drafts else 0.0 for n in self.num_accepted_tokens_per_pos)

    @property
    def seconds(self) -> float:
        """Total time, prefill included."""
        parts = (self.draft_seconds, self.target_seconds, self.verify_seconds, self.other_seconds)
        return self.prefill_seconds + sum(parts)

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """All counters and ratios, ready for JSON."""
        return asdict(self) | {name: getattr(self, name) for name in _RATIOS}


_LATEST = frozenset({"runner", "calibration", "pass_costs", "pass_seconds"})
"""Fields that describe the current state and are not summed."""

_RATIOS = (
    "mean_allowed_nodes",
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_rate_per_pos",
    "seconds",
    "tokens_per_second",
)


def _sum(first: object, second: object) -> Any:
    """Add numbers, tuples by position, or mappings by key."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return tuple(_sum(a, b) for a, b in zip_longest(first, second, fillvalue=0))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {key: _sum(first.get(key, 0), second.get(key, 0)) for key in {**first, **second}}
    assert isinstance(first, (int, float)) and isinstance(second, (int, float))
    return first + second
