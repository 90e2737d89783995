"""Masks of a static pass, computed on the device from the fields of its tokens and the table of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from copyspec.targets.static.layout import FIELDS, PLACE, POSITION, ROW, TREE, WORD
from copyspec.targets.static.settings import PAGE

if TYPE_CHECKING:
    from copyspec.targets.facts import ModelFacts


class PassInputs(NamedTuple):
    """A static pass on the device (`layout`)."""

    fields: torch.Tensor  # [FIELDS + words, T]
    units: torch.Tensor  # [1 + U * UNIT]
    table: torch.Tensor  # [R, P], the pages of each row; unused entries name the scratch page
    tile: int  # tokens that a unit has at most
    ordered: bool = False  # see `layout.Shape`


def additive_masks(
    work: PassInputs, visible: torch.Tensor, facts: ModelFacts
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive masks [1, 1, T, S] over all places of the pool (`ModelFacts.additive`): one, or a dict by kind of
    attention. `visible` [T, S]: what each token sees."""
    if facts.kinds == ("full_attention",):
        return facts.additive(visible[None, None])
    positions, keys, masks = work.fields[POSITION].unsqueeze(1), key_positions(work, visible.shape[1]), {}
    for kind in facts.kinds:
        of_kind = visible
        if kind == "sliding_attention" and facts.window is not None:
            of_kind = visible & (positions - keys < facts.window)
        elif kind == "chunked_attention" and facts.chunk is not None:
            of_kind = visible & (positions // facts.chunk == keys // facts.chunk)
        masks[kind] = facts.additive(of_kind[None, None])
    return masks if len(masks) > 1 else masks[facts.kinds[0]]


def seen(work: PassInputs, slots: int) -> torch.Tensor:
    """The places of the pool that each token sees, [T, S]."""
    fields = work.fields
    own = _slots_of_places(work, slots)[fields[ROW]]  # the slot of its row that each place is, negative: none
    tree = fields[TREE].unsqueeze(1)
    visible = (own <= fields[POSITION].unsqueeze(1)) & (own < tree)
    node = own - tree
    for index, word in enumerate(fields[FIELDS:]):
        bit = node - index * WORD if index else node
        # A shift beyond the word's bits yields its sign, which is 0.
        on_path = (word.unsqueeze(1) >> bit.clamp(0, WORD)) & 1
        visible = visible | ((on_path != 0) & (bit >= 0))
    return visible & (own >= 0)


def key_positions(work: PassInputs, slots: int) -> torch.Tensor:
    """The position of the token at each place, [1, S]: its slot, except for the tokens of this pass."""
    positions = _slots_of_places(work, slots).amax(0).clamp(min=0)
    return positions.index_copy(0, work.fields[PLACE], work.fields[POSITION]).unsqueeze(0)


def places_in_order(work: PassInputs) -> torch.Tensor:
    """The places of the tokens on each token's path, in the order of their positions, [T, n]; those behind itself are
    of no use. `work` must be in order of positions."""
    fields = work.fields
    tree, slots = fields[TREE].unsqueeze(1), torch.arange(work.table.shape[1] * PAGE, device=fields.device)
    step = (slots - tree).clamp(0, fields.shape[1] - 1)
    slots = torch.where(slots < tree, slots, tree + fields[FIELDS:].T.gather(1, step))
    pages = work.table[fields[ROW]].gather(1, slots // PAGE)
    return pages * PAGE + slots % PAGE


def _slots_of_places(work: PassInputs, slots: int) -> torch.Tensor:
    """The slot of each row that each place is, [R, S]; negative: none."""
    rows, pages = work.table.shape
    numbers = torch.arange(pages, device=work.table.device).expand(rows, -1)
    none = torch.full((rows, slots // PAGE), -1, dtype=torch.long, device=work.table.device)
    of_pages = none.scatter(1, work.table, numbers)
    return (of_pages.unsqueeze(2) * PAGE + torch.arange(PAGE, device=work.table.device)).flatten(1)
