"""Drafts of heads for all rows of a pass at once: level by level on the device, and read by the host as one table.

The number of kernels depends on the levels, not on the rows. From each level the likeliest tokens are followed, and the
nodes of a tree that copies have drafted, whose alternatives are wanted too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from copyspec.drafters.predictors.base import Path, TokenProbs
from copyspec.drafters.predictors.block_layers import BlockLayers
from copyspec.drafters.predictors.head_pairs import PairMemory, PairMemoryRow, Pairs, sent
from copyspec.drafters.predictors.head_weights import Heads, ParallelHeads
from copyspec.options import SamplingOptions
from copyspec.tree import EMPTY, ROOT, DraftTree
from copyspec.verification.noise import noise_of, position_keys

if TYPE_CHECKING:
    import numpy.typing as npt

TOP_K = 8
"""Most likely tokens kept per node."""

BEAM = 4
"""Nodes of a level that are followed in addition to those drafted already. More rows take longer, and the fifth most
likely path of a level is seldom accepted."""

MANY = 1 << 16
"""Nodes of a row and level: without a limit."""

MIN_BEAM_PROB = 0.03
"""Minimum probability of a path for a head to read on from it."""


@dataclass(slots=True)
class PairPiece:
    """Pairs of one row and one pass."""

    states: Sequence[torch.Tensor]  # of each layer that is read, [n, D] each
    places: Sequence[int]  # the pairs' states among these
    tokens: Sequence[int]  # that followed them


@dataclass(slots=True)
class Asked:
    """What is asked for one row."""

    pieces: Sequence[PairPiece]
    before: int  # pairs of the row that precede these
    memory: PairMemoryRow | None  # None: heads that attend to no earlier pairs
    sampling: SamplingOptions
    position: int
    """Of the next output token, by which noise is keyed. Of a ride: of the first one that the pass picks."""
    tree: DraftTree
    """What is drafted already; its nodes are read, too. Of a ride: what the pass has read."""
    start: int = 0
    """Of a ride: place of the tree's root among the picks."""


@dataclass(slots=True)
class HeadWeights:
    """Heads, and the model's weights that they share."""

    heads: Heads
    shared: torch.Tensor  # [V', D], the rows of the output weights that are drafted from
    product: Callable[[torch.Tensor], torch.Tensor]  # multiplication by `shared`
    embeddings: torch.Tensor  # [V, D]
    vocabulary: torch.Tensor | None  # [V']
    vocab_size: int
    memory: PairMemory

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings of tokens [...], in the dtype of the heads. [..., D]"""
        return self.embeddings[tokens].to(self.shared)


Predictions = dict[Path, TokenProbs]


def walk(weights: HeadWeights, rows: Sequence[Asked], levels: int) -> list[Predictions]:
    """The predictions for each row after the paths that were read, of fewer than `levels` tokens. Heads that predict
    several tokens at once give those after all paths of one length, under the path of as many zeros."""
    table, widths = _walked(weights, _Batch(weights, rows, levels), levels)
    return _read(table.tolist(), widths)


def ride(
    weights: HeadWeights, rows: Sequence[Asked], picks: torch.Tensor, levels: int
) -> tuple[torch.Tensor, Callable[[list[float]], list[Predictions]]]:
    """As `walk`, behind the paths that `picks` [N] accept of trees that a pass has just read, before the host knows
    which. Each row has one piece, of the tree's root and nodes. Returns the table, flat, and what makes predictions of
    its numbers."""
    table, widths = _walked(weights, _Batch(weights, rows, levels, picks), levels)
    size = table.shape[1]
    return table.flatten(), lambda numbers: _read(
        [numbers[at : at + size] for at in range(0, len(numbers), size)], widths
    )


def _walked(weights: HeadWeights, batch: _Batch, levels: int) -> tuple[torch.Tensor, list[int]]:
    """The table of a walk, [B, n], and the nodes of each of its levels."""
    heads = weights.heads
    parts: list[torch.Tensor] = []
    widths: list[int] = []
    if isinstance(heads, (ParallelHeads, BlockLayers)):
        if isinstance(heads, ParallelHeads):
            logits = heads.logits(batch.pairs.states, weights.product)
        else:
            mask = weights.embedded(torch.full((1,), heads.mask, device=weights.embeddings.device))
            logits = weights.product(heads.head_inputs(heads.features(batch.pairs, mask)))
        for level in range(heads.depth):
            best, probs = batch.likeliest(logits[:, level : level + 1], level)
            zero = torch.zeros_like(best[..., 0])
            parts.append(_row(zero, zero, best, probs))
            widths.append(1)
    else:
        marks = parents = tokens = torch.zeros_like(batch.pairs.counts)[:, None]
        chances: torch.Tensor = torch.ones_like(parents, dtype=torch.float32)
        nodes: Any = heads.begin(batch.pairs)
        for level in range(levels):
            if level:
                nodes = heads.follow(nodes, parents, weights.embedded(tokens))
            best, probs = batch.likeliest(weights.product(heads.head_inputs(nodes.features)), level)
            parts.append(_row(marks, tokens, best, probs))
            widths.append(marks.shape[1])
            if level + 1 < levels:
                marks, tokens, chances = _next(chances, best, probs, batch.drafted[level])
                if not marks.shape[1]:
                    break
                parents = marks.clamp(min=0)
    return torch.cat(parts, 1), widths


def waits_for_nobody(values: torch.Tensor) -> bool:
    """Whether sizes may depend on these values: the host has computed them itself."""
    return values.is_cpu


def _row(marks: torch.Tensor, tokens: torch.Tensor, best: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """One level of the table: of each node its parent, -1 for padding, its token, and what follows. [B, W (2 + 2 K)]

    In float32, which holds all integers up to 2**24."""
    return torch.cat([marks[..., None], tokens[..., None], best, probs], -1).flatten(1)


def _next(
    chances: torch.Tensor, best: torch.Tensor, probs: torch.Tensor, drafted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The nodes of the next level: those drafted already, and the likeliest others. For each its parent, or -1 for
    padding, its token, and the chance of its path, 0 where that is not to be followed. [B, W] each

    `chances`: of the nodes of this level, [B, W]; `best`, `probs`: what may follow them, [B, W, K]; `drafted`: parents
    and tokens, [2, B, F]."""
    joint = (chances[..., None] * probs).flatten(1)
    values, places = joint.topk(min(BEAM, joint.shape[1]))
    values = torch.threshold(values, MIN_BEAM_PROB, 0.0)
    marks, tokens = places // best.shape[2], best.flatten(1).gather(1, places)
    has_drafted = drafted.shape[2] > 0
    if has_drafted:
        same = ((marks[:, :, None] == drafted[0, :, None]) & (tokens[:, :, None] == drafted[1, :, None])).float()
        known = (values[:, :, None] * same).sum(1)
        values = values * (1.0 - same.sum(2))
    is_cheap = waits_for_nobody(values)
    if is_cheap:
        if has_drafted:
            values, places = values.sort(1, descending=True)
            marks, tokens = marks.gather(1, places), tokens.gather(1, places)
        width = int(torch.count_nonzero(values if len(values) == 1 else values.amax(0)))
        if width < values.shape[1]:
            values, marks, tokens = values[:, :width], marks[:, :width], tokens[:, :width]
    if len(values) > 1 or not is_cheap:
        marks = marks.masked_fill(values == 0, -1)
    if not has_drafted:
        return marks, tokens, values
    return torch.cat([drafted[0], marks], 1), torch.cat([drafted[1], tokens], 1), torch.cat([known, values], 1)


def _read(table: Sequence[Sequence[float]], widths: Sequence[int]) -> list[Predictions]:
    size = len(table[0]) // sum(widths)
    middle, of_rows = size // 2 + 1, list[Predictions]()
    for row in table:
        nodes = iter([row[at : at + size] for at in range(0, len(row), size)])
        predictions, level = Predictions(), list[Path | None]([()])
        for depth, width in enumerate(widths):
            above, level = level, []
            for mark, token, *rest in islice(nodes, width):
                parent = above[int(mark)] if mark >= 0 else None
                path = None if parent is None else (*parent, int(token)) if depth else ()
                level.append(path)
                if path is not None:
                    pairs = zip(rest[: middle - 2], rest[middle - 2 :], strict=True)
                    predictions[path] = [(int(next_), chance) for next_, chance in pairs if chance > 0]
        of_rows.append(predictions)
    return of_rows


def _keys(row: Asked, count: int) -> npt.NDArray[np.int64]:
    """The noise keys of a row's next tokens. [2, count]"""
    sampling = row.sampling
    if sampling.is_greedy:
        return np.zeros((2, count), np.int64)
    return position_keys(sampling.seed, sampling.sample, range(row.position, row.position + count))


def _drafted(trees: Sequence[DraftTree], levels: int, most: int) -> list[list[list[list[int]]]]:
    """The nodes of trees, at most so many of a row and level: place of the parent in the level above, and token, or -1
    for padding. [2][B][F] for each level after the first."""
    by_level: list[list[list[list[int]]]] = [[[[] for _ in trees] for _ in range(2)] for _ in range(levels)]
    for row, tree in enumerate(trees):
        places = {ROOT: (0, 0)}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            depth, above = places.get(parent, (levels, 0))
            if depth + 1 < levels and len(by_level[depth + 1][0][row]) < most:
                parents, tokens = by_level[depth + 1]
                places[node] = depth + 1, len(parents[row])
                parents[row].append(above)
                tokens[row].append(token)
    for level in by_level:
        width = max(map(len, level[0]))
        for part in level:
            for of_row in part:
                of_row += [-1] * (width - len(of_row))
    return by_level[1:]


_Node = tuple[int, int, int, int]


def _nodes_of(trees: Sequence[DraftTree], starts: Sequence[int]) -> list[_Node]:
    """Roots and nodes of trees: of each the place of its parent or its own, depth, place among the picks, and row."""
    nodes: list[_Node] = []
    for row, (tree, start) in enumerate(zip(trees, starts, strict=True)):
        root = len(nodes)
        pairs = zip([ROOT, *tree.parents], [0, *tree.depths()], strict=True)
        nodes += [(root + 1 + parent, depth, start + n, row) for n, (parent, depth) in enumerate(pairs)]
    return nodes


def _accepted(
    picks: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor, rows: int, deepest: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nodes that `picks` accept by row and depth, [B, 1 + deepest], and how many of each row besides its root, [B].

    `tokens` [M]: of the nodes; `nodes` [4, M]: see `_nodes_of`."""
    parents, depths, places, of = nodes
    is_right = (picks[places[parents]] == tokens) | (depths == 0)
    for _ in range(deepest.bit_length()):  # each time twice as far up the path
        is_right = is_right & is_right[parents]
        parents = parents[parents]
    slots = of * (deepest + 1) + depths
    numbers = torch.arange(len(tokens), device=tokens.device) * is_right
    along = torch.zeros(rows * (deepest + 1), dtype=torch.long, device=tokens.device)
    along = along.scatter_reduce(0, slots, numbers, "amax").view(rows, -1)
    accepted = torch.zeros(rows, dtype=torch.long, device=tokens.device).scatter_reduce(
        0, of, depths * is_right, "amax"
    )
    return along, accepted


class _Batch:
    """What is asked for all rows, packed into one transfer to the device."""

    def __init__(
        self, weights: HeadWeights, asked: Sequence[Asked], levels: int, picks: torch.Tensor | None = None
    ) -> None:
        self._weights = weights
        device, memory = weights.shared.device, weights.memory
        pieces = [piece for row in asked for piece in row.pieces]
        offsets = accumulate([len(piece.states[0]) for piece in pieces], initial=0)
        lengths = [sum([len(piece.places) for piece in row.pieces]) for row in asked]
        nodes, trees = list[_Node](), [row.tree for row in asked]
        if picks is not None:  # as many pairs as a path may have, or its last one
            nodes = _nodes_of(trees, [row.start for row in asked])
            lengths = [1 + max(tree.depths(), default=0) if memory.ring else 1 for tree in trees]
            trees = [EMPTY] * len(trees)
        counts = [row.before + length for row, length in zip(asked, lengths, strict=True)]
        ends = list(accumulate(lengths))
        numbers = [0 if row.memory is None else row.memory.number for row in asked]
        drafted = _drafted(trees, levels, BEAM if memory.ring else MANY)
        samples = [not row.sampling.is_greedy for row in asked]
        # Lists, because most are short: an array takes as long to make as all of them.
        parts: list[list[int]] = [
            [offset + place for offset, piece in zip(offsets, pieces, strict=False) for place in piece.places],
            [token for piece in pieces for token in piece.tokens],
            [row for row, length in enumerate(lengths) for _ in range(length)],
            [place for row, count in zip(asked, counts, strict=True) for place in range(row.before, count)],
            [end - length for end, length in zip(ends, lengths, strict=True)],
            [end - 1 for end in ends],
            counts,
            numbers,
            [row.before for row in asked],
            [number for node in zip(*nodes, strict=True) for number in node],
            *[[number for part in level for row in part for number in row] for level in drafted],
        ]
        packed = sent(torch.tensor([number for part in parts for number in part], device="cpu"), device)
        places, tokens, rows, at, first, last, read, in_memory, earlier, along_trees, *of_levels = torch.split(
            packed, list(map(len, parts))
        )
        self.drafted = [level.view(2, len(asked), -1) for level in of_levels]
        """The nodes drafted already, level by level: parents, or -1 for padding, and tokens, [2, B, F]."""
        later = 0  # tokens that a pass may add before the first that is drafted
        if picks is not None:
            on_device, deepest = along_trees.view(4, -1), max([depth for _, depth, _, _ in nodes])
            along, accepted = _accepted(picks, tokens, on_device, len(asked), deepest)
            later = 1 + deepest
            last_at = earlier + accepted
            at = torch.minimum(at, last_at[rows]) if memory.ring else last_at  # padded with the last pair
            node = along[rows, at - earlier[rows]]
            places, tokens, read = places[node], picks[on_device[2, node]], last_at + 1
        layers = zip(*[piece.states for piece in pieces], strict=True)
        states = [torch.cat(layer)[places] if len(layer) > 1 else layer[0][places] for layer in layers]
        joined = torch.cat(states, -1) if len(states) > 1 else states[0]
        self.pairs = Pairs(
            joined.to(weights.shared), weights.embedded(tokens), rows, at, first, last, read, in_memory, memory,
            lengths, min(max(counts), memory.ring), numbers, sum([BEAM + len(level[0][0]) for level in drafted]),
        )  # fmt: skip
        self._noise: tuple[torch.Tensor, torch.Tensor] | None = None
        """Keys of the rows' noise, [2, B, levels]; whether each row samples, and its temperature, [2, B, 1]."""
        if any(samples):
            keys = sent(torch.from_numpy(np.stack([_keys(row, later + levels) for row in asked], 1)), device)
            if later:
                at = 1 + accepted[:, None] + torch.arange(levels, device=device)
                keys = keys.gather(2, at.expand(2, -1, -1))
            heats = torch.tensor([samples, [row.sampling.temperature or 1.0 for row in asked]], device="cpu")
            self._noise = keys, sent(heats[..., None], device)

    def likeliest(self, logits: torch.Tensor, level: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The most likely tokens after nodes of this level, [B, W, V'], and their probabilities. [B, W, K] each

        Where a row samples, the noise of the target's own draws is added, so that both tend to the same token."""
        scores, vocabulary = logits.float(), self._weights.vocabulary
        if self._noise is not None:
            keys, (sampled, heats) = self._noise
            noise = noise_of(keys[:, :, level], self._weights.vocab_size, only=vocabulary) * sampled
            scores = scores / heats[:, None] + noise[:, None]
        probs, best = scores.softmax(-1).topk(min(TOP_K, scores.shape[-1]))
        return best if vocabulary is None else vocabulary[best], probs
