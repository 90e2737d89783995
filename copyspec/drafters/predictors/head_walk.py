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
from copyspec.drafters.predictors.head_pairs import KeptPairs, PairMemory, PairMemoryRow, Pairs, sent
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
        return self.converted(torch.embedding(self.embeddings, tokens))

    def converted(self, values: torch.Tensor) -> torch.Tensor:
        """`values` in the dtype of the heads."""
        return values if values.dtype == self.shared.dtype else values.to(self.shared)


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
    if isinstance(heads, (ParallelHeads, BlockLayers)):
        if isinstance(heads, ParallelHeads):
            logits = heads.logits(batch.pairs.states, weights.product)
        else:
            mask = weights.embedded(torch.full((1,), heads.mask, device=weights.embeddings.device))
            logits = weights.product(heads.head_inputs(heads.features(batch.pairs, mask)))
        best, probs = batch.likeliest(logits, slice(levels))
        above = batch.roots[..., None].expand(-1, levels, 2)
        return _table([torch.cat([above, best], -1).flatten(1)], [probs.flatten(1)]), [1] * levels
    numbers: list[torch.Tensor] = []
    likely: list[torch.Tensor] = []
    widths: list[int] = []
    marks = tokens = batch.roots
    chances: torch.Tensor | None = None
    nodes: Any = heads.begin(batch.pairs)
    for level in range(levels):
        if level:
            nodes = heads.follow(nodes, (batch.rows, marks), weights.embedded(tokens))
        logits = weights.product(heads.head_inputs(nodes.features))
        best, probs = batch.likeliest(logits, slice(level, level + 1))
        best = best.flatten(1)
        numbers += marks, tokens, best
        likely.append(probs.flatten(1))
        widths.append(marks.shape[1])
        if level + 1 < levels:
            marks, tokens, chances = _next(chances, best, probs, batch.drafted[level])
            if not marks.shape[1]:
                break
    return _table(numbers, likely), widths


def _table(numbers: list[torch.Tensor], probs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What the host reads of each row: of each level the parents of its nodes, -1 for padding, their tokens, and what
    may follow each; then the probabilities of these. In float32, which holds all integers up to 2**24. [B, n]"""
    return torch.cat([torch.cat(numbers, 1).float(), *probs], 1)


def waits_for_nobody(values: torch.Tensor) -> bool:
    """Whether sizes may depend on these values: the host has computed them itself."""
    return values.is_cpu


def _next(
    chances: torch.Tensor | None, best: torch.Tensor, probs: torch.Tensor, drafted: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The nodes of the next level: those drafted already, and the likeliest others. For each its parent, or -1 for
    padding, and its token, [B, W] each, and the chance of its path, 0 where that is not to be followed, [B, W, 1].

    `chances`: of the nodes of this level, [B, W, 1]; None: they are roots; `best`, `probs`: what may follow them,
    [B, W K] and [B, W, K]; `drafted`: parents and tokens, [2, B, F]."""
    joint = (probs if chances is None else chances * probs).flatten(1)
    values, places = joint.topk(min(BEAM, joint.shape[1]))
    marks, tokens = places // probs.shape[2], best.gather(1, places)
    if drafted is not None:
        same = ((marks[:, :, None] == drafted[0, :, None]) & (tokens[:, :, None] == drafted[1, :, None])).float()
        known = (values[:, :, None] * same).sum(1)
        values = values * (1.0 - same.sum(2))
    is_cheap = waits_for_nobody(values)
    if is_cheap:
        if drafted is not None:
            values, places = values.sort(1, descending=True)
            marks, tokens = marks.gather(1, places), tokens.gather(1, places)
        width = max([sum([value > MIN_BEAM_PROB for value in row]) for row in values.tolist()])
        if width < values.shape[1]:
            values, marks, tokens = values[:, :width], marks[:, :width], tokens[:, :width]
    if values.shape[0] > 1 or not is_cheap:
        values = torch.threshold(values, MIN_BEAM_PROB, 0.0)
        marks = marks.masked_fill(values == 0, -1)
    if drafted is not None:
        marks, tokens = torch.cat([drafted[0], marks], 1), torch.cat([drafted[1], tokens], 1)
        values = torch.cat([known, values], 1)
    return marks, tokens, values[..., None]


def _read(table: Sequence[Sequence[float]], widths: Sequence[int]) -> list[Predictions]:
    nodes, of_rows = sum(widths), list[Predictions]()
    count = len(table[0]) // nodes // 2 - 1
    for row in table:
        numbers, chances = iter(map(int, row[: nodes * (2 + count)])), iter(row[nodes * (2 + count) :])
        predictions, level = Predictions(), list[Path | None]([()])
        for depth, width in enumerate(widths):
            marks, tokens = list(islice(numbers, width)), list(islice(numbers, width))
            above, level = level, []
            for mark, token in zip(marks, tokens, strict=True):
                parent = above[mark] if mark >= 0 else None
                path = None if parent is None else (*parent, token) if depth else ()
                level.append(path)
                pairs = zip(islice(numbers, count), islice(chances, count), strict=True)
                likely = [pair for pair in pairs if pair[1] > 0]
                if path is not None:
                    predictions[path] = likely
        of_rows.append(predictions)
    return of_rows


def _keys(row: Asked, count: int) -> npt.NDArray[np.int64]:
    """The noise keys of a row's next tokens. [2, count]"""
    sampling = row.sampling
    if sampling.is_greedy:
        return np.zeros((2, count), np.int64)
    return position_keys(sampling.seed, sampling.sample, range(row.position, row.position + count))


def _drafted(trees: Sequence[DraftTree], levels: int, most: int) -> list[list[int]]:
    """The nodes of trees, at most so many of a row and level: place of the parent in the level above, or -1 for
    padding, and token. [2 B F] for each level after the first."""
    by_level: list[list[list[tuple[int, int]]]] = [[[] for _ in trees] for _ in range(1, levels)]
    for row, tree in enumerate(trees):
        places = {ROOT: (0, 0)}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            depth, above = places.get(parent, (levels, 0))
            if depth + 1 < levels and len(by_level[depth][row]) < most:
                places[node] = depth + 1, len(by_level[depth][row])
                by_level[depth][row].append((above, token))
    widths = [max(map(len, level)) for level in by_level]
    padded = [[row + [(-1, 0)] * (n - len(row)) for row in level] for level, n in zip(by_level, widths, strict=True)]
    return [[node[part] for part in range(2) for row in level for node in row] for level in padded]


def _in_memory(asked: Sequence[Asked], lengths: Sequence[int]) -> list[list[int]]:
    """The tensors of `KeptPairs`."""
    ends = list(accumulate(lengths))
    counts = [row.before + length for row, length in zip(asked, lengths, strict=True)]
    return [
        [row for row, length in enumerate(lengths) for _ in range(length)],
        [place for row, count in zip(asked, counts, strict=True) for place in range(row.before, count)],
        [end - length for end, length in zip(ends, lengths, strict=True)],
        [end - 1 for end in ends],
        counts,
        [0 if row.memory is None else row.memory.number for row in asked],
    ]


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
        drafted = _drafted(trees, levels, BEAM if memory.ring else MANY)
        samples = [not row.sampling.is_greedy for row in asked]
        # Lists, because most are short: an array takes as long to make as all of them.
        parts: list[Sequence[int]] = [
            [offset + place for offset, piece in zip(offsets, pieces, strict=False) for place in piece.places],
            [token for piece in pieces for token in piece.tokens],
            [0] * len(asked),
            range(len(asked)),
            [number for node in zip(*nodes, strict=True) for number in node],
            *drafted,
            *(_in_memory(asked, lengths) if memory.ring else ()),
        ]
        packed = sent(np.array([number for part in parts for number in part]), device)
        places, tokens, roots, own, along_trees, *others = torch.split(packed, list(map(len, parts)))
        self.roots, self.rows = roots.view(-1, 1), own.view(-1, 1)
        """The parents and tokens of the roots: none, and the number of each row in the batch. [B, 1] each"""
        self.drafted = [
            part.view(2, len(asked), -1) if level else None for part, level in zip(others, drafted, strict=False)
        ]
        """The nodes drafted already, level by level: parents, or -1 for padding, and tokens, [2, B, F]; None: none."""
        kept = others[len(drafted) :]  # of `_in_memory`
        later = 0  # tokens that a pass may add before the first that is drafted
        if picks is not None:
            on_device, deepest = along_trees.view(4, -1), max([depth for _, depth, _, _ in nodes])
            along, accepted = _accepted(picks, tokens, on_device, len(asked), deepest)
            later = 1 + deepest
            node = along.gather(1, accepted[:, None])[:, 0]
            if kept:
                rows, at, first, *_ = kept
                earlier = at[first]  # how many pairs of each row are before these
                kept[1] = at = torch.minimum(at, (earlier + accepted)[rows])  # padded with the last pair
                kept[4], node = earlier + accepted + 1, along[rows, at - earlier[rows]]
            places, tokens = places[node], picks[on_device[2, node]]
        layers = zip(*[piece.states for piece in pieces], strict=True)
        states = [torch.cat(layer)[places] if len(layer) > 1 else layer[0].index_select(0, places) for layer in layers]
        read = weights.converted(torch.cat(states, -1) if len(states) > 1 else states[0]), weights.embedded(tokens)
        self.pairs: Any = Pairs(*read)
        """`KeptPairs` for heads that attend to earlier ones."""
        if kept:
            used = max([row.before + length for row, length in zip(asked, lengths, strict=True)])
            numbers = [row.memory.number for row in asked if row.memory is not None]
            most = BEAM + sum([BEAM + len(level) // (2 * len(asked)) for level in drafted])
            rows, at, first, last, counts, places = kept
            self.pairs = KeptPairs(
                *read, rows, at, first, last, counts, places, memory, lengths, min(used, memory.ring), numbers, most
            )
        self._noise: tuple[torch.Tensor, torch.Tensor] | None = None
        """Of the rows' draws, 0 where a row does not sample, [B, levels, V'], and their temperatures, [B, 1, 1]."""
        if any(samples):
            keys = sent(np.stack([_keys(row, later + levels) for row in asked], 1), device)
            if later:
                at = 1 + accepted[:, None] + torch.arange(levels, device=device)
                keys = keys.gather(2, at.expand(2, -1, -1))
            noise = noise_of(keys.flatten(1), weights.vocab_size, only=weights.vocabulary)
            heats = np.array([samples, [row.sampling.temperature or 1.0 for row in asked]], np.float32)
            sampled, heats_there = sent(heats[..., None, None], device)
            self._noise = noise.view(len(asked), levels, -1).mul_(sampled), heats_there

    def likeliest(self, logits: torch.Tensor, levels: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The most likely tokens after nodes of these levels, [B, W, V'], and their probabilities. [B, W, K] each

        Where a row samples, the noise of the target's own draws is added, so that both tend to the same token."""
        scores, vocabulary = logits, self._weights.vocabulary
        if self._noise is not None:
            noise, heats = self._noise
            scores = logits / heats + noise[:, levels]
        probs, best = scores.softmax(-1, dtype=torch.float32).topk(min(TOP_K, scores.shape[-1]))
        return best if vocabulary is None else vocabulary[best], probs
