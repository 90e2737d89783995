"""How optional dependencies are installed: copyspec is on no package index, so from a checkout."""

from __future__ import annotations


def install(*extras: str) -> str:
    """Return the words that tell how to install one of these extras."""
    commands = " or ".join(f"`pip install '.[{extra}]'`" for extra in extras)
    return f"{commands} in a checkout of copyspec"
