"""A session with static shapes: each pass is one copy to the device, one program, and one read by the caller.

Short prompts are read like any other tokens; longer ones by a regular session, whose keys and values are then copied
into the arena (`arenas`). `keep` only records which of them must move; the next pass moves them first.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from copyspec.options import Runner, StaticOptions
from copyspec.targets.causal import TreeSession
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.passes import check_rows
from copyspec.targets.scores import Scores
from copyspec.targets.static.arenas import Arena, ArenaPool, ArenaSize, with_memory
from copyspec.targets.static.buffers import CacheLayout
from copyspec.targets.static.packing import SlotMove, pack
from copyspec.targets.static.settings import (
    EXACT_NODES,
    LOOK_AHEAD,
    MAX_READ,
    MAX_READ_TOGETHER,
    NODE_BUCKETS,
    node_bucket,
    padded_tokens,
    row_bucket,
    slot_bucket,
)
from copyspec.tree import EMPTY

if TYPE_CHECKING:
    from copyspec.targets.base import Session
    from copyspec.targets.facts import ModelFacts
    from copyspec.targets.prefixes import Layers
    from copyspec.targets.seq2seq import Seq2SeqSession
    from copyspec.tree import DraftTree

logger = logging.getLogger(__name__)

MAX_RESERVED = 2048
"""Maximum new tokens per request for which slots are reserved; the arena grows for longer outputs."""

Rows = Sequence[Sequence[int]]


def together(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Group rows whose prompts are read together."""
    groups: list[list[int]] = []
    total = 0
    for row in rows:
        if groups and total + lengths[row] <= MAX_READ_TOGETHER:
            groups[-1].append(row)
            total += lengths[row]
        else:
            groups.append([row])
            total = lengths[row]
    return groups


class SessionHost(Protocol):
    """The interface that a session needs of its target. A Protocol because `static_target` imports this module."""

    options: StaticOptions
    arenas: ArenaPool
    uses_tree_attention: bool
    """Whether attention reads only the keys in use, however many slots a program has."""

    @property
    def facts(self) -> ModelFacts: ...

    def reader(self, prompts: Sequence[Sequence[int]]) -> TreeSession:
        """Open a session that reads prompts."""
        ...

    def encoder_session(self, prompts: Sequence[Sequence[int]]) -> Seq2SeqSession | None:
        """Open a session that holds the encoder's output; None for decoder-only models."""
        ...

    def learn(self, layout: CacheLayout) -> None:
        """Record the layout of the model's keys and values, as seen in a pass."""
        ...

    def layout(self) -> CacheLayout:
        """The recorded layout; determined by a pass over one token if there is none yet."""
        ...

    def arena(self, size: ArenaSize) -> Arena:
        """Return an arena that is not in use."""
        ...


class StaticSession:
    """The rows of one batch in one arena."""

    most_nodes = sys.maxsize

    def __init__(self, target: SessionHost, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._target = target
        self._new_tokens = new_tokens
        self._lengths = [0] * len(prompts)
        self._moves: list[list[SlotMove]] = [[] for _ in prompts]
        """Accepted nodes of each row that are still in their tree's slots; the next pass moves them first, so `read`
        looks for them there until then."""
        self._arena: Arena | None = None
        self._used = 0  # slots in use, the maximum over all rows
        self._scored: list[tuple[int, int]] | None = None
        """First slot and number of uncached tokens of each row in the last `score`."""
        self._encoder = target.encoder_session(prompts)
        self._cross_is_stale = self._encoder is not None
        self._rows = 0  # rows of every pass in exact mode, padding included
        self._attended = 0  # slots that passes attend to
        self._has_read = False  # whether a regular session read prompts in the last `score`
        self._warned_states = False
        self.computed: tuple[int, int] | None = None
        """Tokens of a plain pass like the last one, and of the last one, padding included."""

    @property
    def lengths(self) -> Sequence[int]:
        return self._lengths

    @property
    def runner(self) -> Runner:
        """How the last pass was run."""
        return "static" if self._arena is None else self._arena.runner.name

    def padded(self, nodes: int) -> int:
        rows = row_bucket(len(self._lengths))
        if self._target.options.exact:
            return max(self._rows, rows) * EXACT_NODES
        return padded_tokens(rows, nodes)

    @property
    def is_settled(self) -> bool:
        """Whether the last pass's time is representative of the next ones."""
        return self._arena is None or (self._arena.runner.is_settled and not self._has_read)

    def score(self, uncached: Rows, trees: Sequence[DraftTree]) -> Scores:
        check_rows(len(self._lengths), uncached, trees)
        starts, self._has_read = list(self._lengths), False
        unread, width = [list(ids) for ids in uncached], max(map(len, trees))
        if 0 in starts:  # exact mode reserves as much with drafts as without
            self._read_new_prompts(starts, unread, EXACT_NODES - 1 if self._target.options.exact else width)
        while self._needs_pieces(unread, width):
            self._read_piece(starts, unread)
        logits = self._pass(starts, unread, trees)
        self._scored = [(start, len(ids)) for start, ids in zip(starts, unread, strict=True)]
        columns = logits.shape[1]
        roots = [row * columns + len(ids) - 1 for row, ids in enumerate(unread)]
        sizes = [1 + len(tree.tokens) for tree in trees]
        return Scores(logits[: len(unread)].flatten(0, 1), roots, sizes)

    def score_with_states(
        self, uncached: Rows, trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, None]:
        if not self._warned_states:
            self._warned_states = True
            logger.warning(
                "passes of static shapes keep no hidden states: draft heads do not draft here; "
                "StaticOptions(use='never') has passes that do"
            )
        return self.score(uncached, trees), None

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        if self._scored is None:
            raise RuntimeError("keep() commits what the last score() computed; call score() first")
        for row, ((start, length), path) in enumerate(zip(self._scored, paths, strict=True)):
            end = start + length
            self._moves[row] = [(end + node, end + place) for place, node in enumerate(path) if node != place]
            self._lengths[row] = end + len(path)
        self._scored = None

    def trim(self, lengths: Sequence[int]) -> None:
        if len(lengths) != len(self._lengths) or any(map(int.__gt__, lengths, self._lengths)):
            raise ValueError(f"rows of {list(self._lengths)} tokens cannot be cut to {list(lengths)}")
        self._lengths = list(lengths)
        self._scored = None

    @property
    def keeps_prefixes(self) -> bool:
        """See `TreeSession`. What follows a prefix is read by static passes of all rows, which would be too large for
        many; and in exact mode a prompt must be read in one way only."""
        is_small = row_bucket(len(self._lengths)) * NODE_BUCKETS[-1] <= MAX_READ
        return is_small and self._encoder is None and not self._target.options.exact

    @in_inference_mode
    def load(self, prefixes: Sequence[Sequence[Layers]], room: int) -> None:
        """Start the rows, which must be empty, with these pieces; `room`: number of slots to allocate."""
        self._hold(None, len(prefixes), room)
        assert self._arena is not None
        for row, pieces in enumerate(prefixes):
            length = 0
            for piece in pieces:
                length = self._arena.key_values.fill(row, length, piece)
            self._lengths[row] = length
        self._used = max(self._lengths)

    @in_inference_mode
    def read(self, row: int, start: int, stop: int) -> Layers:
        """Copy the keys and values in slots start .. stop - 1 of a row, [H, n, D] per layer."""
        assert self._arena is not None
        slots = list(range(start, stop))
        for source, target in self._moves[row]:  # not moved yet
            if start <= target < stop:
                slots[target - start] = source
        return self._arena.key_values.read(row, slots)

    @in_inference_mode
    def select(self, rows: Sequence[int]) -> None:
        moved = [(row, place) for place, row in enumerate(rows) if row != place]
        if moved and self._arena is not None:
            sources, places = zip(*moved, strict=True)
            buffers = self._arena.key_values
            buffers.copy_rows(sources, places, buffers, self._used)
        self._lengths = [self._lengths[row] for row in rows]
        self._moves = [list(self._moves[row]) for row in rows]
        self._scored = None
        if self._encoder is not None:
            self._encoder.select(rows)
            self._cross_is_stale = True

    @in_inference_mode
    def join(self, other: Session) -> None:
        assert isinstance(other, StaticSession)
        before, rows = len(self._lengths), len(self._lengths) + len(other._lengths)
        if self._encoder is not None and other._encoder is not None:
            self._encoder.join(other._encoder)
            self._cross_is_stale = True
        if other._arena is not None:
            self._hold(other._arena.size.layout, rows, other._used)
            assert self._arena is not None
            places = list(range(before, rows))
            theirs = list(range(len(other._lengths)))
            self._arena.key_values.copy_rows(theirs, places, other._arena.key_values, other._used)
        self._used = max(self._used, other._used)
        self._attended = max(self._attended, other._attended)
        self._lengths = [*self._lengths, *other._lengths]
        self._moves = [*self._moves, *other._moves]
        self._scored = None
        other.close()

    def close(self) -> None:
        if self._arena is not None:
            self._target.arenas.give(self._arena)
        if self._encoder is not None:
            self._encoder.close()
        self._arena, self._encoder = None, None
        self._lengths, self._moves, self._scored = [], [], None

    def _read_new_prompts(self, starts: list[int], uncached: list[list[int]], width: int) -> None:
        """Read the prompts of new rows, except for their last token, with regular sessions."""
        if self._encoder is not None:  # rows begin with start tokens, which are read like any others
            if self._encoder.has_no_cross:
                self._encoder.prefill([ids[:1] for ids in uncached])  # for cross-attention alone
                self._hold(CacheLayout(self._encoder.contents(0)), len(starts), 1 + width)
            return
        fresh = [row for row, start in enumerate(starts) if start == 0 and len(uncached[row]) > 1]
        if not fresh or self._reads_in_passes([uncached[row] for row in fresh]):
            return
        lengths = [len(ids) - 1 for ids in uncached]
        used = max(map(len, uncached))  # by all groups, so that the arena need not grow
        for rows in [[row] for row in fresh] if self._target.options.exact else together(fresh, lengths):
            self._has_read = True
            prompts = [uncached[row] for row in rows]
            reader = with_memory(self._target.facts.device, partial(self._read, prompts))
            try:
                layout = CacheLayout(reader.contents(0))
                self._target.learn(layout)
                self._hold(layout, len(starts), used + width)
                assert self._arena is not None
                for index, row in enumerate(rows):
                    starts[row] = len(uncached[row]) - 1
                    self._moves[row] = []
                    self._arena.key_values.fill(row, 0, reader.read(index, 0, starts[row]))
                    del uncached[row][:-1]
            finally:
                reader.close()
            self._used = max(self._used, used)

    def _read(self, prompts: Rows) -> TreeSession:
        """A regular session that has read all tokens of these prompts but the last."""
        reader = self._target.reader(prompts)
        try:
            reader.prefill([ids[:-1] for ids in prompts])
        except BaseException:
            reader.close()
            raise
        return reader

    def _reads_in_passes(self, prompts: Rows) -> bool:
        """Whether static passes read these prompts, like any other tokens. A captured pass starts in a tenth of the
        time of a dynamic one, and needs no copy."""
        widest = NODE_BUCKETS[-1]
        is_short = max(map(len, prompts)) <= widest
        return is_short and not self._target.options.exact and row_bucket(len(self._lengths)) * widest <= MAX_READ

    def _read_piece(self, starts: list[int], uncached: list[list[int]]) -> None:
        """Cache as much of the longest rows as a pass holds, and leave at least the last token of each row."""
        most = (EXACT_NODES if self._target.options.exact else NODE_BUCKETS[-1]) - 1
        pieces = [ids[: min(most, len(ids) - 1)] or ids[:1] for ids in uncached]
        self._pass(starts, pieces, [EMPTY] * len(uncached))
        for row, piece in enumerate(pieces):
            if len(uncached[row]) > 1:
                starts[row] += len(piece)
                del uncached[row][: len(piece)]

    def _needs_pieces(self, uncached: list[list[int]], width: int) -> bool:
        """Whether there are too many uncached tokens for a pass together with the trees. In exact mode only the last
        token is left to the tree's pass, which is as wide as a plain one."""
        longest = max(map(len, uncached))
        if not self._target.options.exact:
            return longest > 1 and longest + width > NODE_BUCKETS[-1]
        if 1 + width > EXACT_NODES:
            raise ValueError(
                f"exact mode verifies trees of at most {EXACT_NODES - 1} nodes, got {width}; "
                f"set max_draft_nodes={EXACT_NODES - 1}"
            )
        return longest > 1

    def _pass(self, starts: Sequence[int], uncached: Rows, trees: Sequence[DraftTree]) -> torch.Tensor:
        """Run one pass of all rows. Returns logits [row bucket, node bucket, V]."""
        exact = self._target.options.exact
        columns = max(len(ids) + len(tree) for ids, tree in zip(uncached, trees, strict=True))
        columns = max(columns, 1 + max(map(len, self._moves)))  # one column without a move keeps the scratch slot
        rows = row_bucket(len(starts))
        self._rows = max(self._rows, rows) if exact else rows
        nodes = EXACT_NODES if exact else node_bucket(columns, rows)
        needed = max(starts) + nodes + 1
        self._hold(None, len(starts), needed)
        arena = self._arena
        assert arena is not None
        whole = exact or self._target.uses_tree_attention
        if needed > self._attended:
            self._attended = slot_bucket(needed + min(self._new_tokens, LOOK_AHEAD))
        slots = arena.size.capacity if whole else min(self._attended, arena.size.capacity)
        size = arena.runner.choose((self._rows, nodes, slots), max(starts), arena.size.rows)
        self.computed = size[0] * (EXACT_NODES if exact else 1), size[0] * size[1]
        self._refresh_cross(arena)
        staging = arena.runner.staging(size)
        pack(staging, starts, uncached, trees, self._moves, arena.size.capacity - 1)
        logits = arena.runner.run(size)
        self._moves = [[] for _ in starts]
        self._used = max(self._used, max(starts) + columns)
        return logits

    def _hold(self, layout: CacheLayout | None, rows: int, used: int) -> None:
        """Make sure that the arena has space for this many rows and slots."""
        arena = self._arena
        if layout is None:
            layout = arena.size.layout if arena is not None else self._target.layout()
        reserved = self._new_tokens if self._target.options.exact else min(self._new_tokens, MAX_RESERVED)
        if arena is None:
            capacity = slot_bucket(used + reserved + NODE_BUCKETS[-2] + 1)
            self._arena = self._target.arena(self._size(layout, row_bucket(rows), capacity))
            return
        old = arena.size
        if rows <= old.rows and used <= old.capacity and self._cross_width() <= old.cross_width:
            return
        capacity = old.capacity if used <= old.capacity else slot_bucket(used)
        size = self._size(layout, max(old.rows, row_bucket(rows)), capacity)
        larger = self._target.arena(size)
        held = list(range(len(self._lengths)))
        try:
            larger.key_values.copy_rows(held, held, arena.key_values, self._used)
        except BaseException:  # there may be no memory for the copy
            self._target.arenas.give(larger)
            raise
        self._arena, self._cross_is_stale = larger, self._encoder is not None
        self._target.arenas.give(arena)

    def _size(self, layout: CacheLayout, rows: int, capacity: int) -> ArenaSize:
        if self._encoder is None:
            return ArenaSize(layout, rows, capacity)
        cross = CacheLayout(self._encoder.cross_contents()[0])
        return ArenaSize(layout, rows, capacity, cross, self._cross_width())

    def _cross_width(self) -> int:
        if self._encoder is None:
            return 0
        return slot_bucket(max([layers[0][0].shape[1] for layers in self._encoder.cross_contents()]))

    def _refresh_cross(self, arena: Arena) -> None:
        if self._encoder is not None and self._cross_is_stale:
            arena.fill_cross(self._encoder.cross_contents(), self._target.facts.lowest)
            self._cross_is_stale = False
