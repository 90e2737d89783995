"""Tells copyspec's own models from others: by the folder that a model was loaded from."""

from __future__ import annotations

import os

from copyspec.models.aliases import ALIASES, Alias
from copyspec.models.loading import BUNDLED, DEFAULT
from copyspec.models.resolve import place


def is_bundled(folder: str) -> bool:
    """Whether it is the bundled model, which knows only the instructions it was trained on."""
    return bool(folder) and os.path.realpath(folder) == os.path.realpath(BUNDLED)


def own_alias(name: str, folder: str) -> Alias | None:
    """The short name of a model; None for others, and if an adapter of the user's is merged into it, which makes
    another model under the same name."""
    alias = ALIASES.get(name)
    # The name of its folder begins with that of `place`; with an adapter of the user's, with the adapter's name.
    return alias if alias is not None and os.path.basename(folder).startswith(place(alias).name) else None


def own_name(name: str, folder: str) -> str | None:
    """The name of one of copyspec's own models; None for others."""
    alias = own_alias(name, folder)
    return DEFAULT if is_bundled(folder) else alias.name if alias is not None else None
