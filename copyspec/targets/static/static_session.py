"""A session whose passes have static shapes: one copy in, one program, one read out by the caller.

Prompts are read by a session of the usual kind, whose keys and values are then copied into the arena. `keep` only
notes which of them move: the next pass does that before anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from copyspec.static_options import Runner, StaticOptions
from copyspec.targets.session import TreeSession, check_rows
from copyspec.targets.static.arenas import Arena, ArenaPool, ArenaSize
from copyspec.targets.static.buffers import CacheLayout
from copyspec.targets.static.packing import SlotMove, pack
from copyspec.targets.static.settings import (
    EXACT_NODES,
    LOOK_AHEAD,
    NODE_BUCKETS,
    node_bucket,
    row_bucket,
    slot_bucket,
)
from copyspec.tree import EMPTY

if TYPE_CHECKING:
    from copyspec.targets.base import Session
    from copyspec.targets.seq2seq import Seq2SeqSession
    from copyspec.tree import DraftTree

logger = logging.getLogger(__name__)

MOST_RESERVED = 2048
"""New tokens of a request that have room from the start; longer outputs have the arena grow."""

Chains = Sequence[Sequence[int]]


class SessionHost(Protocol):
    """What a session needs of its target."""

    options: StaticOptions
    arenas: ArenaPool
    by_length: bool
    """Whether attention reads as many keys as there are, however many slots a program has."""

    @property
    def lowest(self) -> torch.Tensor:
        """What an additive mask holds where nothing is seen."""
        ...

    def reader(self, prompts: Sequence[Sequence[int]]) -> TreeSession:
        """A session that reads prompts."""
        ...

    def encoder_session(self, prompts: Sequence[Sequence[int]]) -> Seq2SeqSession | None:
        """What holds the encoder's output; None for decoder-only models."""
        ...

    def learn(self, layout: CacheLayout) -> None:
        """Tells what the model's layers keep, as seen in a pass."""
        ...

    def layout(self) -> CacheLayout:
        """The same; a pass over one token finds out."""
        ...

    def arena(self, size: ArenaSize) -> Arena:
        """An arena that nobody uses."""
        ...


class StaticSession:
    """Rows of one batch in one arena."""

    def __init__(self, target: SessionHost, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._target = target
        self._new_tokens = new_tokens
        self._lengths = [0] * len(prompts)
        self._moves: list[list[SlotMove]] = [[] for _ in prompts]
        self._arena: Arena | None = None
        self._used = 0  # slots that hold anything, over all rows
        self._scored: list[tuple[int, int]] | None = None  # of the last `score`: the first slot, the chain's length
        self._encoder = target.encoder_session(prompts)
        self._cross_is_stale = self._encoder is not None
        self._rows = 0  # in exact mode, of every pass
        self._attended = 0  # slots that passes attend to
        self._told_states = False

    @property
    def lengths(self) -> Sequence[int]:
        return self._lengths

    @property
    def runner(self) -> Runner:
        """How the last pass was run."""
        return "static" if self._arena is None else self._arena.runner.name

    @property
    def is_settled(self) -> bool:
        """Whether the time of the last pass says something of the next."""
        return self._arena is None or self._arena.runner.is_settled

    def score(self, chains: Chains, trees: Sequence[DraftTree]) -> torch.Tensor:
        if not torch.is_inference_mode_enabled():  # entering it again takes longer than a look
            with torch.inference_mode():
                return self.score(chains, trees)
        check_rows(len(self._lengths), chains, trees)
        starts = list(self._lengths)
        unread, width = [list(chain) for chain in chains], max(map(len, trees))
        self._prefill(starts, unread, width)
        while self._needs_pieces(unread, width):
            self._read_piece(starts, unread)
        logits = self._pass(starts, unread, trees)
        self._scored = [(start, len(chain)) for start, chain in zip(starts, unread, strict=True)]
        if all(len(chain) == 1 for chain in unread):
            return logits[: len(unread), : 1 + width]
        firsts = [len(chain) - 1 for chain in unread]
        return torch.stack([logits[row, first : first + 1 + width] for row, first in enumerate(firsts)])

    def score_with_states(
        self, chains: Chains, trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[torch.Tensor, None]:
        if not self._told_states:
            self._told_states = True
            logger.warning(
                "passes of static shapes keep no hidden states: draft heads do not draft here; "
                "StaticOptions(use='never') has passes that do"
            )
        return self.score(chains, trees), None

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        if self._scored is None:
            raise RuntimeError("keep() commits what the last score() computed; call score() first")
        for row, ((start, length), path) in enumerate(zip(self._scored, paths, strict=True)):
            behind = start + length
            self._moves[row] = [(behind + node, behind + place) for place, node in enumerate(path) if node != place]
            self._lengths[row] = behind + len(path)
        self._scored = None

    def trim(self, lengths: Sequence[int]) -> None:
        if len(lengths) != len(self._lengths) or any(map(int.__gt__, lengths, self._lengths)):
            raise ValueError(f"rows of {list(self._lengths)} tokens cannot be cut to {list(lengths)}")
        self._lengths = list(lengths)
        self._scored = None

    @torch.inference_mode()
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

    @torch.inference_mode()
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

    def _prefill(self, starts: list[int], chains: list[list[int]], width: int) -> None:
        """Reads the prompts of rows that hold nothing yet, but for their last token, by sessions of the usual kind."""
        fresh = [row for row, start in enumerate(starts) if start == 0]
        if self._encoder is not None and self._encoder.has_no_cross:
            self._encoder.prefill([chain[:1] for chain in chains])  # what is cached of the chain is not used
            self._hold(self._layout_of(self._encoder.contents()), len(starts), 1 + width)
        fresh = [row for row in fresh if len(chains[row]) > 1]
        groups = [[row] for row in fresh] if self._target.options.exact else [fresh] if fresh else []
        for rows in groups:
            if self._encoder is not None:
                break  # start tokens only: they are a piece like any other
            reader = self._target.reader([chains[row] for row in rows])
            try:
                reader.prefill([chains[row][:-1] for row in rows])
                contents = reader.contents()
                used = max(len(chains[row]) for row in rows)
                self._hold(self._layout_of(contents), len(starts), used + width)
                assert self._arena is not None
                for index, row in enumerate(rows):
                    starts[row] = len(chains[row]) - 1
                    self._moves[row] = []
                    self._arena.key_values.adopt(row, contents, index, starts[row])
                    del chains[row][:-1]
            finally:
                reader.close()
            self._used = max(self._used, used)

    def _read_piece(self, starts: list[int], chains: list[list[int]]) -> None:
        """Caches as much of the longest chains as one pass holds, and leaves each row its last token at least."""
        most = (EXACT_NODES if self._target.options.exact else NODE_BUCKETS[-1]) - 1
        pieces = [chain[: min(most, len(chain) - 1)] or chain[:1] for chain in chains]
        self._pass(starts, pieces, [EMPTY] * len(chains))
        for row, piece in enumerate(pieces):
            if len(chains[row]) > 1:
                starts[row] += len(piece)
                del chains[row][: len(piece)]

    def _needs_pieces(self, chains: list[list[int]], width: int) -> bool:
        """Whether chains are longer than a pass holds beside the trees. In exact mode a tree's pass begins with the
        last token alone: it is as wide as a plain one."""
        longest = max(map(len, chains))
        if not self._target.options.exact:
            return longest > 1 and longest + width > NODE_BUCKETS[-1]
        if 1 + width > EXACT_NODES:
            raise ValueError(
                f"exact mode verifies trees of at most {EXACT_NODES - 1} nodes, got {width}; "
                f"set max_draft_nodes={EXACT_NODES - 1}"
            )
        return longest > 1

    def _pass(self, starts: Sequence[int], chains: Chains, trees: Sequence[DraftTree]) -> torch.Tensor:
        """One pass of all rows. Logits [rows bucket, nodes bucket, V]."""
        exact = self._target.options.exact
        columns = max(len(chain) + len(tree) for chain, tree in zip(chains, trees, strict=True))
        columns = max(columns, 1 + max(map(len, self._moves)))  # one of the places of moves stays free
        nodes = EXACT_NODES if exact else node_bucket(columns)
        needed = max(starts) + nodes + 1
        self._hold(None, len(starts), needed)
        arena = self._arena
        assert arena is not None
        self._rows = max(self._rows, row_bucket(len(starts))) if exact else row_bucket(len(starts))
        whole = exact or self._target.by_length
        if needed > self._attended:
            self._attended = slot_bucket(needed + min(self._new_tokens, LOOK_AHEAD))
        slots = arena.size.capacity if whole else min(self._attended, arena.size.capacity)
        size = (self._rows, nodes, slots)
        self._refresh_cross(arena)
        staging = arena.runner.staging(size)
        pack(staging, starts, chains, trees, self._moves, arena.size.capacity - 1)
        logits = arena.runner.run(size)
        self._moves = [[] for _ in starts]
        self._used = max(self._used, max(starts) + columns)
        return logits

    def _hold(self, layout: CacheLayout | None, rows: int, used: int) -> None:
        """Sees that the arena has room for so many rows and slots."""
        arena = self._arena
        if layout is None:
            layout = arena.size.layout if arena is not None else self._target.layout()
        reserved = self._new_tokens if self._target.options.exact else min(self._new_tokens, MOST_RESERVED)
        if arena is None:
            capacity = slot_bucket(used + reserved + NODE_BUCKETS[-2] + 1)
            self._arena = self._target.arena(self._size(layout, row_bucket(rows), capacity))
            return
        old = arena.size
        if rows <= old.rows and used <= old.capacity and self._cross_width() <= old.cross_width:
            return
        capacity = old.capacity if used <= old.capacity else slot_bucket(used)
        size = self._size(layout, max(old.rows, row_bucket(rows)), capacity)
        self._arena = self._target.arena(size)
        held = list(range(len(self._lengths)))
        self._arena.key_values.copy_rows(held, held, arena.key_values, self._used)
        self._cross_is_stale = self._encoder is not None
        self._target.arenas.give(arena)

    def _size(self, layout: CacheLayout, rows: int, capacity: int) -> ArenaSize:
        if self._encoder is None:
            return ArenaSize(layout, rows, capacity)
        cross = self._layout_of(self._encoder.cross_contents())
        return ArenaSize(layout, rows, capacity, cross, self._cross_width())

    def _cross_width(self) -> int:
        return 0 if self._encoder is None else slot_bucket(self._encoder.cross_mask().shape[1])

    def _refresh_cross(self, arena: Arena) -> None:
        if self._encoder is not None and self._cross_is_stale:
            arena.fill_cross(self._encoder.cross_contents(), self._encoder.cross_mask(), self._target.lowest)
            self._cross_is_stale = False

    def _layout_of(self, contents: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> CacheLayout:
        layout = CacheLayout(contents)
        self._target.learn(layout)
        return layout
