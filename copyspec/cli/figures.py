"""Formats counters and comparisons for the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from copyspec.cli.printing import echo

if TYPE_CHECKING:
    from copyspec.engine.results import Comparison, Result, Stats


def comparison_text(comparison: Comparison, shown: Callable[[str], str]) -> str:
    """Both texts, or one if they are equal, and the comparison. `shown` formats a text."""
    plain, copied = (shown(result.text) for result in (comparison.plain, comparison.copied))
    texts = [plain] if comparison.equal else [f"plain:  {plain}", f"copied: {copied}"]
    length = comparison.copied.stats.mean_acceptance_length
    return "\n".join([*texts, str(comparison), f"{length:.2f} tokens per pass of the model"])


def comparison_dict(comparison: Comparison) -> dict[str, object]:
    """The comparison for JSON."""
    from dataclasses import asdict

    return {
        "equal": comparison.equal,
        "speedup": comparison.speedup,
        "plain_seconds": comparison.plain_seconds,
        "copied_seconds": comparison.copied_seconds,
        "difference": asdict(comparison.difference) if comparison.difference is not None else None,
        "plain": comparison.plain.to_dict(),
        "copied": comparison.copied.to_dict(),
    }


def print_notes(result: Result, *, with_stats: bool) -> None:
    """Print what there is to say about a result besides its text, on stderr."""
    if with_stats:
        _print_stats(result.stats)
    if result.lossy:
        echo(f"copyspec: rule {result.rule!r} is lossy: the output may differ from the model's own", err=True)


def _print_stats(stats: Stats) -> None:
    lines = [
        f"tokens               {stats.num_output_tokens}, {stats.tokens_per_second:.0f} a second",
        f"passes of the model  {stats.num_passes}, {stats.mean_acceptance_length:.2f} tokens each",
        f"draft tokens         {stats.num_draft_tokens}, {stats.acceptance_rate:.0%} accepted",
    ]
    for source, count in stats.num_draft_tokens_per_source.items():
        accepted = stats.num_accepted_tokens_per_source.get(source, 0)
        lines.append(f"  from {source:<14} {count}, {accepted} accepted")
    if stats.decisions:
        decisions = ", ".join(f"{what} {count}" for what, count in stats.decisions.items())
        lines.append(f"passes by decision   {decisions}")
        lines.append(f"saved by drafting    the time of {stats.saved_passes:.1f} passes")
    if len(stats.pass_costs) > 1:
        costs = ", ".join(f"{nodes}: {cost:.2f}" for nodes, cost in stats.pass_costs.items())
        lines.append(f"cost by draft nodes  {costs}")
    echo("\n".join(lines), err=True)
