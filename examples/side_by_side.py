"""Two outputs beside each other in 80 columns, with what each of them took."""

from __future__ import annotations

import textwrap
from itertools import zip_longest

from copyspec import Comparison, Result

COLUMN = 38  # two of them and a gap of four


def show(comparison: Comparison) -> str:
    """Both texts, then tokens, calls and seconds of both, then the verdict."""
    plain, copied = comparison.plain, comparison.copied
    verdict = "EQUAL" if comparison.equal else f"DIFFERENT at token {comparison.difference.position}"  # type: ignore[union-attr]
    return "\n".join(
        [
            _columns("plain decoding", "copied"),
            _columns("-" * COLUMN, "-" * COLUMN),
            _columns(plain.text.strip(), copied.text.strip()),
            _columns("-" * COLUMN, "-" * COLUMN),
            _columns(_counts(plain, comparison.plain_seconds), _counts(copied, comparison.copied_seconds)),
            f"{verdict}, {comparison.speedup:.1f} times as fast",
        ]
    )


def _counts(result: Result, seconds: float) -> str:
    return f"{len(result.token_ids)} tokens, {result.stats.num_calls} calls, {seconds:.2f} s"


def _columns(left: str, right: str) -> str:
    pairs = zip_longest(textwrap.wrap(left, COLUMN), textwrap.wrap(right, COLUMN), fillvalue="")
    return "\n".join(f"{a:<{COLUMN}}    {b}".rstrip() for a, b in pairs)
