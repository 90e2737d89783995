"""Comparison of sequences."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Length of the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))
