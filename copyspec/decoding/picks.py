"""The picks of a batch's rows: the target's own tokens at the root and the nodes of each row's tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from copyspec.decoding.row import Row
from copyspec.targets.hooks.states import RowStates
from copyspec.targets.scores import Scores
from copyspec.tree import DraftTree
from copyspec.verification.at_once import picks_at_once
from copyspec.verification.picking import Picks, best_picks

JOINT_NUMBERS = 1 << 17
"""Maximum number of scores that a CPU processes for all rows at once: more would leave its cache between operators."""

LAZY_NUMBERS = 1 << 15
"""On a CPU, a row with more scores than this is sampled node by node along the walk, since most nodes of a draft are
never reached."""


def rescored(rows: Sequence[Row], trees: Sequence[DraftTree], scores: Scores) -> Scores:
    """The scores, with others for the rows whose rule has a second model."""
    changed = replace(scores, logits=scores.logits.float().clone())
    for index, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        if row.rescorer is not None:
            of_row = changed[index]
            of_row.copy_(row.rescorer.scores(row.request.prompt, row.output, tree, of_row))
    return changed


def pick(
    rows: Sequence[Row], trees: Sequence[DraftTree], scores: Scores, states: Sequence[RowStates] | None = None
) -> Sequence[Picks]:
    """Each row's picks. Tokens that do not depend on the walk are read from the device as one small tensor."""
    for index, row in enumerate(rows):
        if row.can_observe:
            row.show(trees[index], scores[index], None if states is None else states[index])
    if all([row.takes_argmax for row in rows]):
        return best_picks(scores)
    logits = scores.logits
    pays = logits.device.type != "cpu" or (len(rows) > 1 and logits.numel() <= JOINT_NUMBERS)
    joint = [
        index
        for index, row in enumerate(rows)
        if row.picker.is_joint and row.request.rule is None and (pays or row.picker.penalty != 1.0)
    ]
    found: dict[int, Picks] = {}
    if joint:
        pickers = [rows[index].picker for index in joint]
        found |= zip(joint, picks_at_once(pickers, [trees[index] for index in joint], scores, joint), strict=True)
    if len(found) < len(rows):
        found |= _picks_by_row(rows, trees, scores, [index for index in range(len(rows)) if index not in found])
    return [found[index] for index in range(len(rows))]


def _picks_by_row(
    rows: Sequence[Row], trees: Sequence[DraftTree], scores: Scores, which: Sequence[int]
) -> dict[int, Picks]:
    processed: dict[int, torch.Tensor] = {}
    for index in which:
        row, tree, logits = rows[index], trees[index], scores[index]
        is_lazy = logits.is_cpu and not row.picker.sampling.is_greedy and logits.numel() > LAZY_NUMBERS
        if not (is_lazy or row.picker.depends_on_history or row.request.rule is not None):
            processed[index] = row.picker.scores(logits, tree)
    scored = best_picks(Scores.of_rows([*processed.values()])) if processed else ()
    known: dict[int, Picks] = dict(zip(processed, scored, strict=True))
    picks: dict[int, Picks] = {}
    for index in which:
        row, tree, of_tree = rows[index], trees[index], scores[index]
        if index in known:
            picks[index] = known[index]
        elif row.request.rule is not None:
            picks[index] = row.request.rule.picks(row.picker, of_tree, tree)
        else:
            picks[index] = row.picker.walk_picks(of_tree, tree)
    return picks
