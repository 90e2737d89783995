"""Masks of a static pass, computed on the device from the fields of its tokens and the table of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from copyspec.targets.static.layout import FIELDS, PLACE, POSITION, ROW, TOKEN, TREE, WORD
from copyspec.targets.static.settings import PAGE

if TYPE_CHECKING:
    from copyspec.targets.model.facts import ModelFacts


class PassInputs(NamedTuple):
    """A static pass on the device (`layout`)."""

    fields: torch.Tensor  # [FIELDS + words, T]
    units: torch.Tensor  # [1 + U * UNIT]
    block_table: torch.Tensor  # [R, P], the pages of each row; unused entries name the scratch page
    tile: int  # tokens that a unit has at most
    ordered: bool = False  # see `layout.Shape`

    @property
    def tokens(self) -> torch.Tensor:
        """Token ids, [1, T]."""
        return self.fields[TOKEN : TOKEN + 1]

    @property
    def positions(self) -> torch.Tensor:
        """[1, T]."""
        return self.fields[POSITION : POSITION + 1]


def own_slots(work: PassInputs, places: int) -> torch.Tensor:
    """The slot of each token's row that each place of the pool is, [T, S]; negative: none."""
    rows, pages = work.block_table.shape
    numbers = torch.arange(pages, device=work.block_table.device).expand(rows, -1)
    none = torch.full((rows, places // PAGE), -1, dtype=torch.long, device=work.block_table.device)
    of_pages = none.scatter(1, work.block_table, numbers)[work.fields[ROW]]
    return (of_pages.unsqueeze(2) * PAGE + torch.arange(PAGE, device=work.block_table.device)).flatten(1)


def seen(work: PassInputs, slots: torch.Tensor) -> torch.Tensor:
    """Whether each token sees these slots of its row, [T, S]."""
    tree = work.fields[TREE].unsqueeze(1)
    visible = (slots <= work.fields[POSITION].unsqueeze(1)) & (slots < tree)
    return (visible | on_path(work, slots - tree)) & (slots >= 0)


def on_path(work: PassInputs, node: torch.Tensor) -> torch.Tensor:
    """Whether each token sees these nodes of its row's tree, [T, n]; negative: none."""
    words = work.fields[FIELDS:]
    bit = node.clamp(-1, len(words) * WORD)
    if len(words) == 1:
        word = words.t()
    else:
        index = (bit // WORD).clamp(0, len(words) - 1)
        word, bit = words.t().gather(1, index.expand(words.shape[1], -1)), bit - index * WORD
    # A shift beyond the word's bits yields its sign, which is 0.
    return ((word >> bit.clamp(min=0)) & (bit >= 0)) != 0


def key_positions(work: PassInputs, slots: torch.Tensor) -> torch.Tensor:
    """The position of the token at each place, [1, S]: its slot, except for the tokens of this pass. Places of rows
    that take no part in it have any."""
    return slots.amax(0).clamp(min=0).index_copy(0, work.fields[PLACE], work.fields[POSITION]).unsqueeze(0)


def additive_masks(work: PassInputs, slots: torch.Tensor, visible: torch.Tensor, facts: ModelFacts) -> Any:
    """Additive masks [1, 1, T, S] over all places of the pool (`ModelFacts.additive`), None for recurrent layers: one,
    or a dict by kind of attention. `slots` and `visible` [T, S]: `own_slots`, and those that are seen."""
    if facts.kinds == ("full_attention",):
        return facts.additive(visible[None, None])
    positions, keys = work.fields[POSITION].unsqueeze(1), key_positions(work, slots)

    def of_kind(kind: str) -> torch.Tensor:
        near = facts.near(kind, positions, keys)
        return facts.additive((visible if near is None else visible & near)[None, None])

    return facts.by_kind(of_kind)


def places_in_order(work: PassInputs) -> torch.Tensor:
    """The places of the tokens on each token's path, in the order of their positions, [T, n]; those behind itself are
    of no use. `work` must be in order of positions."""
    fields = work.fields
    tree, slots = fields[TREE].unsqueeze(1), torch.arange(work.block_table.shape[1] * PAGE, device=fields.device)
    step = (slots - tree).clamp(0, fields.shape[1] - 1)
    slots = torch.where(slots < tree, slots, tree + fields[FIELDS:].T.gather(1, step))
    pages = work.block_table[fields[ROW]].gather(1, slots // PAGE)
    return pages * PAGE + slots % PAGE
