"""The picks of a batch's rows: the target's own tokens at the root and the nodes of each row's tree.

Scores are processed for all rows at once, so that the number of kernel launches does not grow with the batch: the nodes
of all rows are concatenated, sorted by sampling settings: one gather of the logits for all, then one temperature and
truncation per group of equal settings. A repetition penalty depends on the tokens before a node; it is computed for all
nodes from the row's tokens and the node's path. The scores equal those of each row alone bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from copyspec.decoding.row import Row
from copyspec.drafters.base import Riders, ScoredDraft
from copyspec.targets.base import RowStates, Scores
from copyspec.tree import ROOT, DraftTree
from copyspec.verification.noise import noise_of, position_keys
from copyspec.verification.picking import Picker, Picks, ScoredPicks, best_picks

if TYPE_CHECKING:
    import numpy.typing as npt


class _Layout(NamedTuple):
    """How the nodes of all rows are concatenated: n nodes, k noise keys, p penalised tokens."""

    order: list[int]  # rows, sorted by sampling settings
    sizes: list[int]  # nodes of each row in `order`, including its root
    groups: list[tuple[int, int, Picker]]  # first node and end of each group of equal sampling settings
    nodes: torch.Tensor  # [3, n]: index in the scores, index of its noise key, index of its row in `order`
    keys: torch.Tensor  # [2, k]
    joined: torch.Tensor  # [2, p]: index of a row in `order`, token that joined its output since the last pass
    on_path: torch.Tensor  # [2, p]: node, a draft token on its path
    penalties: torch.Tensor  # [B], by index in `order`


def picks_at_once(
    pickers: Sequence[Picker],
    trees: Sequence[DraftTree],
    all_scores: Scores,
    rows: Sequence[int],
    riders: Riders | None = None,
) -> list[ScoredPicks]:
    """Pick the tokens of these rows of the batch with a single read from the device.

    None of the rows may have a logit bias or `depends_on_history`.
    `all_scores` are those of all rows of the batch; `pickers` and `trees` belong to `rows`: all, if there are `riders`.
    """
    logits = all_scores.logits
    layout = _lay_out(pickers, trees, np.array([all_scores.starts[row] for row in rows]), logits.device)
    indices, places, _ = layout.nodes
    scores = logits[indices].to(torch.float32)
    if any(picker.penalty != 1.0 for picker in pickers):
        scores = _penalised(scores, [pickers[row] for row in layout.order], layout)
    noise = noise_of(layout.keys, logits.shape[-1]) if layout.keys.shape[1] else None
    parts = []
    for first, last, picker in layout.groups:
        part = scores[first:last]
        if not picker.sampling.is_greedy:
            assert noise is not None
            part = picker.perturb(part, noise[places[first:last]])
        parts.append(part)
    scores = parts[0] if len(parts) == 1 else torch.cat(parts)
    best = scores.argmax(-1)
    tokens = _read(best, best.new_zeros(len(logits)).scatter(0, indices, best), riders) if riders else best.tolist()
    picks: list[ScoredPicks | None] = [None] * len(pickers)
    first = 0
    for row, size in zip(layout.order, layout.sizes, strict=True):
        picks[row] = ScoredPicks(tokens[first : first + size], scores, first)
        first += size
    return [picked for picked in picks if picked is not None]


def _lay_out(
    pickers: Sequence[Picker], trees: Sequence[DraftTree], roots: npt.NDArray[np.int64], device: torch.device
) -> _Layout:
    """Pack everything that depends on the rows into one transfer to the device."""
    order = sorted(range(len(pickers)), key=lambda row: pickers[row].kind)
    sizes = [1 + len(trees[row]) for row in order]
    places = np.zeros(sum(sizes), np.int64)
    keys: list[npt.NDArray[np.int64]] = [np.zeros((2, 0), np.int64)]
    pending: list[tuple[int, int]] = []
    on_path: list[tuple[int, int]] = []
    groups: list[tuple[int, int, Picker]] = []
    first = noises = 0
    for index, (row, size) in enumerate(zip(order, sizes, strict=True)):
        picker, tree = pickers[row], trees[row]
        if not groups or groups[-1][2].kind != picker.kind:
            groups.append((first, first, picker))
        groups[-1] = (groups[-1][0], first + size, groups[-1][2])
        if not picker.sampling.is_greedy:
            depths = [0, *tree.depths()]
            places[first : first + size] = np.add(depths, noises)
            keys.append(position_keys(picker.sampling.seed, picker.sampling.sample, picker.positions(max(depths))))
            noises += 1 + max(depths)
        if picker.penalty != 1.0:
            pending += [(index, token) for token in picker.take_pending()]
            on_path += _paths(tree, first)
        first += size
    columns, indices = np.concatenate([np.arange(size) for size in sizes]), np.repeat(np.arange(len(order)), sizes)
    parts = [
        np.stack([roots[order][indices] + columns, places, indices]),
        np.concatenate(keys, axis=1),
        np.array(pending, np.int64).reshape(-1, 2).T,
        np.array(on_path, np.int64).reshape(-1, 2).T,
        np.array([pickers[row].penalty for row in order]).view(np.int64),
    ]
    host = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    packed = host.to(device, non_blocking=device.type == "cuda")  # as in `ModelFacts`
    nodes, of_noise, joined, before, penalties = (
        piece.view(part.shape)
        for piece, part in zip(torch.split(packed, [part.size for part in parts]), parts, strict=True)
    )
    penalties = penalties.view(torch.float64).to(torch.float32)
    return _Layout(order, sizes, groups, nodes, of_noise, joined, before, penalties)


def _paths(tree: DraftTree, first: int) -> list[tuple[int, int]]:
    """Pair each node with every token on its path, its own included; `first` is the index of the tree's root."""
    paths: list[list[int]] = []
    for parent, token in zip(tree.parents, tree.tokens, strict=True):
        paths.append([token] if parent == ROOT else [*paths[parent], token])
    return [(first + 1 + node, token) for node, tokens in enumerate(paths) for token in tokens]


def _penalised(scores: torch.Tensor, pickers: Sequence[Picker], layout: _Layout) -> torch.Tensor:
    """Apply each row's repetition penalty to the tokens before each node: positive scores are divided by it, negative
    ones multiplied (Keskar et al. 2019, arXiv 1909.05858, as in transformers)."""
    nothing, yes = scores.new_zeros(scores.shape[1], dtype=torch.bool), scores.new_ones((), dtype=torch.bool)
    seen = torch.stack([nothing if picker.seen is None else picker.seen for picker in pickers])
    seen.index_put_((layout.joined[0], layout.joined[1]), yes)
    for picker, of_row in zip(pickers, seen, strict=True):
        picker.seen = of_row if picker.penalty != 1.0 else None
    before = seen[layout.nodes[2]]
    before.index_put_((layout.on_path[0], layout.on_path[1]), yes)
    penalty = layout.penalties[layout.nodes[2]].unsqueeze(1)
    return torch.where(before, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def ridden_picks(scores: Scores, riders: Riders) -> list[ScoredPicks]:
    """As `best_picks`, with what the riders have computed in the same read."""
    best = scores.logits.argmax(-1)
    tokens = _read(best, best, riders)
    parts = zip(scores.starts, scores.sizes, strict=True)
    return [ScoredPicks(tokens[start : start + size], scores.logits, start) for start, size in parts]


def _read(tokens: torch.Tensor, by_place: torch.Tensor, riders: Riders) -> list[int]:
    """Read picked tokens with what the riders compute behind them; `by_place` [N]: in the order of the scores."""
    rides = [ride for rider, rows in riders.items() if (ride := rider.ride(rows, by_place)) is not None]
    numbers = torch.cat([tokens.float(), *[part for part, _ in rides]]).tolist()  # float32 holds all ids below 2**24
    at = len(tokens)
    for part, take in rides:
        take(numbers[at : at + len(part)])
        at += len(part)
    return list(map(int, numbers[: len(tokens)]))


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
    is_plain, logits = all([row.takes_argmax for row in rows]), scores.logits
    riders: Riders | None = None
    if states is not None and (is_plain or all([_is_joint(row) for row in rows])):  # no other read of the picks
        riders = {}
    for index, row in enumerate(rows):
        if row.can_observe:
            of_row = None if states is None else states[index]
            row.show(ScoredDraft(trees[index], scores[index], of_row, riders, scores.starts[index]))
    if is_plain:
        return ridden_picks(scores, riders) if riders else best_picks(scores)
    pays = logits.device.type != "cpu" or (len(rows) > 1 and logits.numel() <= JOINT_NUMBERS)
    joint = [
        index for index, row in enumerate(rows) if _is_joint(row) and (pays or riders or row.picker.penalty != 1.0)
    ]
    picks: dict[int, Picks] = {}
    if joint:
        pickers = [rows[index].picker for index in joint]
        drafted = [trees[index] for index in joint]
        picks |= zip(joint, picks_at_once(pickers, drafted, scores, joint, riders), strict=True)
    if len(picks) < len(rows):
        picks |= _picks_by_row(rows, trees, scores, [index for index in range(len(rows)) if index not in picks])
    return [picks[index] for index in range(len(rows))]


def _is_joint(row: Row) -> bool:
    return row.picker.is_joint and row.request.rule is None


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
