"""Under which name a forward takes the cache, and an output has it."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = ("cache", "past_key_values", "cache_params")
"""transformers' names: since 5.24, and before, where recurrent models had one of their own. The old ones are still
accepted there, with a warning for each module."""


def cache_argument(arguments: Sequence[str]) -> str:
    """The argument that takes the cache, of those of a forward; the first, if it has several."""
    return next((name for name in arguments if name in NAMES), NAMES[1])
