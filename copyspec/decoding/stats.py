"""Counters of one output: what its passes were, what they drafted, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of one output, under vLLM's names; `seconds` are those of the passes that the row took part in."""

    num_calls: int = 0  # passes of the target
    num_drafts: int = 0  # passes that carried a draft of this row
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0  # of the prompt, whose keys and values were kept from earlier calls (`prefix_cache`)
    num_accepted_tokens_per_pos: tuple[int, ...] = ()  # [depth - 1]
    num_draft_tokens_per_source: Mapping[str, int] = field(default_factory=dict)
    """By kind of source, or "output", "model", "heads", "pool", "datastore", "end" (of sequence), "guess"
    (from nowhere)."""
    num_accepted_tokens_per_source: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Passes by what the controller did: "drafted"; "probed", a draft after a pause; "nothing", the drafter had nothing
    to say; "unprofitable", no size of its draft was worth its cost; "paused", the drafter was not asked."""
    num_allowed_nodes: int = 0  # summed over the passes whose drafter was asked: what drafting might still lose
    trust: float = 1.0  # what the drafter's probabilities were multiplied with at the end, by its record
    saved_passes: float = 0.0  # passes' worth of time that drafting saved less what it cost, by measured costs
    pass_seconds: float = 0.0  # of a pass without a draft, all rows of the batch, as measured at the end
    runner: str = "eager"
    """How the last pass of the model was made: "eager", "static", "graph", "compiled" or "compiled graph"; docs/gpu.md
    says when."""
    pass_costs: Mapping[int, float] = field(default_factory=dict)
    """What a pass with so many draft nodes took, in units of `pass_seconds`, for the numbers that were measured."""
    prefill_seconds: float = 0.0  # the first pass, which also verifies the first draft
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        """The counters of two outputs together; what is no count as it was measured last."""
        latest = other if other.pass_costs or other.decisions else self
        return Stats(
            **{
                each.name: getattr(latest, each.name)
                if each.name in _LATEST
                else _sum(getattr(self, each.name), getattr(other, each.name))
                for each in fields(self)
            }
        )

    @property
    def mean_allowed_nodes(self) -> float:
        """Of a draft, per pass whose drafter was asked: what drafting might still lose."""
        asked = sum(count for decision, count in self.decisions.items() if decision != "paused")
        return self.num_allowed_nodes / asked if asked else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens per target pass: accepted ones and the target's own."""
        return self.num_output_tokens / self.num_calls if self.num_calls else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted tokens."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...]:
        """Accepted tokens at each depth of the draft per pass that carried a draft."""
        return tuple(n / self.num_drafts if self.num_drafts else 0.0 for n in self.num_accepted_tokens_per_pos)

    @property
    def seconds(self) -> float:
        """All of it."""
        parts = (self.draft_seconds, self.target_seconds, self.verify_seconds, self.other_seconds)
        return self.prefill_seconds + sum(parts)

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, object]:
        """All counters and ratios, ready for JSON."""
        return asdict(self) | {name: getattr(self, name) for name in _RATIOS}


_LATEST = frozenset({"runner", "trust", "pass_costs", "pass_seconds"})
"""What says how things stand, and is no count."""

_RATIOS = (
    "mean_allowed_nodes",
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_rate_per_pos",
    "seconds",
    "tokens_per_second",
)


def _sum(first: object, second: object) -> Any:
    """Of numbers, of tuples by position, of mappings by key."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return tuple(_sum(a, b) for a, b in zip_longest(first, second, fillvalue=0))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {key: _sum(first.get(key, 0), second.get(key, 0)) for key in {**first, **second}}
    assert isinstance(first, (int, float)) and isinstance(second, (int, float))
    return first + second
