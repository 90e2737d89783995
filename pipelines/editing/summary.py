"""Counts what a run did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter

from copyspec.engine.results import Result

from ..documents import Refusal


@dataclass(slots=True)
class Summary:
    """Counters of a run over files or texts."""

    files: int = 0
    files_changed: int = 0
    files_failed: int = 0
    segments: int = 0  # stretches of text to correct
    changed: int = 0  # segments with at least one edit
    edits: int = 0
    resumed: int = 0  # segments known from a journal or an earlier equal text, for which the model was not asked
    skipped: Counter[str] = field(default_factory=Counter)  # whole segments that stayed as they were, by reason
    dropped: Counter[str] = field(default_factory=Counter)  # single edits that guards left out, by reason
    tokens: int = 0  # output tokens
    row_calls: int = 0  # forward passes, counted once per text that took part
    model_seconds: float = 0.0  # sum over texts of the time of the steps that each took part in
    saved_seconds: float = 0.0  # time saved by drafting, by measured costs
    drafted: int = 0
    accepted: int = 0
    started: float = field(default_factory=perf_counter)
    seconds: float = 0.0  # set by `stop`

    def add_result(self, result: Result) -> None:
        stats = result.stats
        self.tokens += stats.num_output_tokens
        self.row_calls += stats.num_passes
        self.model_seconds += stats.seconds
        self.saved_seconds += stats.saved_passes * stats.pass_seconds
        self.drafted += stats.num_draft_tokens
        self.accepted += stats.num_accepted_tokens

    def add_refusals(self, refusals: Iterable[Refusal]) -> None:
        self.skipped.update(refusal.reason for refusal in refusals)

    def add(self, other: Summary) -> None:
        """Add the counts of another summary, but not its time."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def stop(self) -> Summary:
        self.seconds = perf_counter() - self.started
        return self

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Output tokens of a text per forward pass that it took part in."""
        return self.tokens / self.row_calls if self.row_calls else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def calls_saved(self) -> int:
        """Forward passes that plain decoding would have taken in addition, one per token, counted per text."""
        return self.tokens - self.row_calls

    @property
    def estimated_speedup(self) -> float:
        """Speed-up of the model's time over plain decoding in the same batches, by the pass costs of this run."""
        plain = self.model_seconds + self.saved_seconds
        return max(0.0, plain / self.model_seconds) if self.model_seconds else 1.0

    def to_dict(self) -> dict[str, object]:
        """All counts and figures, as JSON values."""
        names = ("files", "files_changed", "files_failed", "segments", "changed", "edits", "resumed")
        return {
            **{name: getattr(self, name) for name in names},
            "skipped": dict(sorted(self.skipped.items())),
            "dropped_edits": dict(sorted(self.dropped.items())),
            "output_tokens": self.tokens,
            "calls": self.row_calls,
            "calls_saved": self.calls_saved,
            "mean_acceptance_length": round(self.mean_acceptance_length, 3),
            "acceptance_rate": round(self.acceptance_rate, 4),
            "estimated_speedup": round(self.estimated_speedup, 2),
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second, 1),
        }

    def lines(self) -> list[str]:
        """The summary as lines for people."""
        rows = [
            f"files                {self.files}, {self.files_changed} changed"
            + (f", {self.files_failed} failed" if self.files_failed else ""),
            f"segments             {self.segments}, {self.changed} changed, {self.edits} edit{'s' * (self.edits != 1)}",
        ]
        if self.resumed:
            rows.append(f"known before         {self.resumed} segments")
        if self.skipped:
            rows.append(f"segments left alone  {_counts(self.skipped)}")
        if self.dropped:
            rows.append(f"edits left out       {_counts(self.dropped)}")
        rows.append(f"tokens               {self.tokens}, {self.tokens_per_second:.0f} a second")
        if self.tokens and not self.row_calls:  # a server does not count its passes
            return rows
        rows.append(
            f"passes of the model  {self.row_calls}, {self.mean_acceptance_length:.2f} tokens each, "
            f"{self.calls_saved} saved"
        )
        rows.append(f"estimated speed-up   {self.estimated_speedup:.1f} over plain decoding, of the model's time")
        return rows

    def line(self) -> str:
        """The summary in one line."""
        files = f"{self.files} file{'s' * (self.files != 1)}"
        edits = f"{self.edits} edit{'s' * (self.edits != 1)}"
        rows = [f"{files}: {self.files_changed} changed, {edits} in {self.changed} of {self.segments} segments"]
        if self.files_failed:
            rows.append(f"{self.files_failed} failed")
        if self.skipped:
            rows.append(f"segments left as they were: {_counts(self.skipped)}")
        if self.dropped:
            rows.append(f"edits left out: {_counts(self.dropped)}")
        return "; ".join(rows)


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items()))


_COUNTS = tuple(name for name in Summary.__slots__ if name not in ("started", "seconds"))
