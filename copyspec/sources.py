"""Sources: the token sequences that drafts are copied from.

A text to copy from has four forms on its way through a call:
- `Reference` (engine/results/spans.py): as the caller gave it, text or token ids; of kind `reference` or `earlier`;
- `NamedSource` (in the same file): encoded, with the name that spans show; `edit`, `prompt` or the reference's kind;
- `Source` (below): for drafters, which know no names; one of SourceKind;
- `SourceText` (views/provenance.py): text again, for the views; the named source's kind, or `output`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SourceKind = Literal["edit", "reference", "prompt", "block"]

OUTPUT = -1
"""Source index of the row's own output, which grows during decoding."""

FORK = -2
"""Marker in a block's tokens: here the output may continue as the block does, or end with one of `Source.ends` (no
relation to common/common/forks.py)."""

EVEN_ODDS = 12
"""The bucket of odds 1; the odds double from one bucket to the next (`Source.starts`)."""


@dataclass(frozen=True, slots=True)
class Source:
    """A token sequence that a row may copy from, in addition to its own output."""

    tokens: Sequence[int]  # [n]
    kind: SourceKind
    """`edit`: the text being edited, which the output follows in order; `reference`: text given for drafting
    only, not shown to the model; `prompt`: the model's input (for encoder-decoder models the encoder's input);
    `block`: a part of that prompt which the output may edit."""

    starts: Sequence[tuple[int, int]] = ()
    """For a block: tokens at which an edited text may start, each with the bucket of its odds (`find_blocks`)."""
    place: tuple[int, int] | None = None
    """For a block: its range in the prompt, in any unit. Blocks whose ranges overlap contain the same text."""
    ends: Sequence[Sequence[int]] = ()
    """For a block: for each FORK, the tokens of a text that ends there with the paragraph."""
    asks: bool = False
    """For a block: whether it ends with a question mark."""
