"""Sources: the token sequences that drafts may be copied from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SourceKind = Literal["edit", "reference", "prompt", "block"]

OUTPUT = -1
"""Source index of the row's own output, which grows during decoding."""

FORK = -2
"""Marks a place in a block's tokens where the output may continue with the block, or end with one of `Source.ends`."""


@dataclass(frozen=True, slots=True)
class Source:
    """One token sequence of a row that may be copied from. The row's own output is always an additional source."""

    tokens: Sequence[int]  # [n]
    kind: SourceKind
    """`edit`: the text being edited, which the output follows in order; `reference`: text given for drafting only, not
    shown to the model; `prompt`: the model's input (for encoder-decoder models the encoder's); `block`: a text within
    the prompt that the output may edit."""

    starts: Sequence[tuple[int, int]] = ()
    """For blocks: (token, odds bucket) at which an edited text may start (see `find_blocks`)."""
    place: tuple[int, int] | None = None
    """For blocks: the range in the prompt, in any unit. Blocks with overlapping ranges hold the same text."""
    ends: Sequence[Sequence[int]] = ()
    """For blocks: for each FORK, the tokens of a text that ends with the paragraph there."""
