"""Sources: the token sequences that drafts may be copied from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SourceKind = Literal["edit", "reference", "prompt", "block"]

OUTPUT = -1
"""Source index of the row's own output, which grows while it is decoded."""

FORK = -2
"""In the tokens of a block: the output may go on as the block does, or end with one of `Source.ends`."""


@dataclass(frozen=True, slots=True)
class Source:
    """One token sequence of a row that may be copied from; the row's own output is always one more."""

    tokens: Sequence[int]  # [n]
    kind: SourceKind
    """`edit`: the text being edited, which the output follows in order; `reference`: text given for drafting
    only, not shown to the model; `prompt`: what the model reads (for encoder-decoder models the encoder input);
    `block`: a text in that prompt which the output may edit."""

    starts: Sequence[tuple[int, int]] = ()
    """Of a block: tokens at which a text may start that the output edits, and how likely each (`find_blocks`)."""
    place: tuple[int, int] | None = None
    """Of a block: where it stands in the prompt, in any unit. Blocks whose places overlap hold the same text."""
    ends: Sequence[Sequence[int]] = ()
    """Of a block: for each FORK, the tokens that a text has there which ends with the paragraph."""
