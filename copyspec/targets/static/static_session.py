"""A session with static shapes: each pass is one copy to the device, one program, and one read by the caller.

Prompts are read by the same passes, in pieces. `keep` only records which keys and values must move; the next pass moves
them first. Rows that begin with the same tokens hold the same pages.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch

from copyspec.options import Runner, StaticOptions
from copyspec.targets.base import LAST, Scores, Session
from copyspec.targets.hooks.inference import in_inference_mode
from copyspec.targets.rows.passes import check_rows
from copyspec.targets.static.buffers import CacheLayout, move
from copyspec.targets.static.layout import Shape, lay_out, place_of
from copyspec.targets.static.paging import StaticRow, beginnings
from copyspec.targets.static.pools import FreePools, PagePool, PoolSize
from copyspec.targets.static.settings import (
    EXACT_SPLIT,
    EXACT_TOKENS,
    MAX_RESERVED,
    PAGE,
    PREFILL_TOKENS,
    SCORED,
    size_of,
    slot_bucket,
)
from copyspec.tree import EMPTY

if TYPE_CHECKING:
    from copyspec.targets.base import RowStates
    from copyspec.targets.hooks.model_state import ModelState
    from copyspec.targets.hooks.recurrence import State
    from copyspec.targets.hooks.states import HiddenStates
    from copyspec.targets.model.facts import ModelFacts
    from copyspec.targets.rows.prefixes import Layers, Prefix
    from copyspec.tree import DraftTree

logger = logging.getLogger(__name__)

Rows = Sequence[Sequence[int]]


class EncoderSession(Session, Protocol):
    """A session whose rows have been read by an encoder."""

    def cross_contents(self) -> Sequence[Sequence[tuple[torch.Tensor, torch.Tensor]]]:
        """Keys and values of each row and layer of cross-attention, [H, S, D]; none before a pass has computed them."""
        ...


class SessionHost(Protocol):
    """The interface that a session needs of its target. A Protocol because `static_target` imports this module."""

    options: StaticOptions
    pools: FreePools
    state: ModelState | None

    @property
    def tile(self) -> int:
        """Tokens that a unit of attention has at most."""
        ...

    @property
    def is_recurrent(self) -> bool:
        """Whether layers keep recurrent states."""
        ...

    @property
    def facts(self) -> ModelFacts: ...

    def encoder_session(self, prompts: Sequence[Sequence[int]]) -> EncoderSession | None:
        """Open a session that holds the encoder's output; None for decoder-only models."""
        ...

    def refresh(self) -> None:
        """Drop what was made of the model as it was before, if it has changed."""
        ...

    def layout(self) -> CacheLayout:
        """The layout of the model's keys and values."""
        ...

    def pool(self, size: PoolSize) -> PagePool:
        """Return a pool that is not in use."""
        ...


class StaticSession:
    """The rows of one batch in one pool."""

    def __init__(self, target: SessionHost, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        self._target, self._exact = target, target.options.exact
        self._rows: list[StaticRow] = []
        self._pool: PagePool | None = None
        self._starts: list[int] | None = None  # cached tokens and uncached ones of each row in the last `score`
        self._uncached: Rows = ()  # in the last `score`
        self._encoder: EncoderSession | None = None
        self._cross_is_stale = False
        self._state: ModelState | None = None  # of the model when rows were last added
        self._warned_states = False
        self._layers: tuple[int, ...] = ()  # whose inputs the running `score` keeps
        self._recorded: list[tuple[HiddenStates, list[int], Sequence[int]]] = []
        """Of each of its passes: states, the first token of each row and behind the last, and tokens scored."""
        self._gives_last: bool | None = None  # see `HiddenStates.gives_last`
        self._tile = 1
        self.is_recurrent = target.is_recurrent
        """Whether rows have recurrent states."""
        self._spans: list[tuple[int, int]] = []  # of the last pass: each row's first token, and its uncached ones
        self._is_settled = True
        self.add(prompts, new_tokens)

    @property
    def lengths(self) -> Sequence[int]:
        return [row.length for row in self._rows]

    @property
    def runner(self) -> Runner:
        """How the last pass was run."""
        return "static" if self._pool is None else self._pool.runner.name

    @property
    def most_nodes(self) -> int:
        if self.is_recurrent:  # what tokens write into states is kept of so many
            return max(1, PREFILL_TOKENS // max(1, len(self._rows)) - 1)
        return EXACT_TOKENS - 1 if self._exact else sys.maxsize

    @property
    def most_tokens(self) -> int:
        return sys.maxsize if self._exact else PREFILL_TOKENS

    def computes(self, tokens: int) -> int:
        return -(-tokens // EXACT_TOKENS) * EXACT_TOKENS if self._exact else size_of(tokens)

    @property
    def is_settled(self) -> bool:
        """Whether the last pass's time is representative of the next ones."""
        return self._is_settled and (self._pool is None or self._pool.runner.is_settled)

    def add(self, prompts: Sequence[Sequence[int]], new_tokens: int = 0) -> None:
        if self._rows:
            self._target.refresh()
        if self._state is not self._target.state:  # the rows so far were read by the model as it was before
            self._state = self._target.state
            for row in self._rows:
                row.prefix = []
        if self._encoder is not None:
            self._encoder.add(prompts)
        else:
            self._encoder = self._target.encoder_session(prompts)
        if self._encoder is not None:
            self._cross_is_stale = True
            prompts = [[0]] * len(prompts)  # the decoder begins with a start token
        ahead = new_tokens if self._exact else min(new_tokens, MAX_RESERVED)
        self._rows += [StaticRow(prompt=len(prompt), reserved=len(prompt) + ahead + 1) for prompt in prompts]
        self._starts = None

    def score(self, uncached: Rows, trees: Sequence[DraftTree]) -> Scores:
        check_rows(len(self._rows), uncached, trees)
        unread, self._is_settled = list(uncached), True
        if self.is_recurrent:
            self._commit()
        if self._encoder is not None and not all(self._encoder.cross_contents()):
            self._encoder.score([ids[:1] for ids in unread], [EMPTY] * len(unread))  # for cross-attention alone
            self._encoder.trim([0] * len(self._rows))
        sizes = [1 + len(tree.tokens) for tree in trees]
        starts = self._begin(unread, sizes)
        self._read_pieces(starts, unread, sum(sizes) - len(trees))
        logits, roots = self._passes(starts, unread, trees, sizes)
        self._starts = [start + len(ids) for start, ids in zip(starts, unread, strict=True)]
        self._uncached = uncached
        return Scores(logits, roots, sizes)

    def score_with_states(
        self, uncached: Rows, trees: Sequence[DraftTree], layers: Sequence[int] = ()
    ) -> tuple[Scores, Sequence[RowStates] | None]:
        if self._target.options.compile:
            if not self._warned_states:
                self._warned_states = True
                logger.warning(
                    "compiled passes keep no hidden states: draft heads do not draft here; "
                    "StaticOptions(compile=False) has passes that do"
                )
            return self.score(uncached, trees), None
        self._layers, self._recorded = (LAST, *layers), []
        try:
            scores = self.score(uncached, trees)
            return scores, self._states_of_rows()
        finally:
            self._layers, self._recorded = (), []

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        if self._starts is None:
            raise RuntimeError("keep() commits what the last score() computed; call score() first")
        for row, ids, end, path in zip(self._rows, self._uncached, self._starts, paths, strict=False):
            if len(row.prefix) == row.length:
                row.prefix += ids
            count = len(path)
            row.first_slot, row.length = end, end + count
            row.path = path if count and path[-1] >= count else ()  # else its nodes are in place
        for row, (first, count), path in zip(self._rows, self._spans, paths, strict=False):
            row.written = [*range(first, first + count), *[first + count + node for node in path]]
        self._starts = None

    def trim(self, lengths: Sequence[int]) -> None:
        if len(lengths) != len(self._rows) or any(map(int.__gt__, lengths, self.lengths)):
            raise ValueError(f"rows of {list(self.lengths)} tokens cannot be cut to {list(lengths)}")
        if self.is_recurrent:  # a state cannot go back: a row of which something is cut begins anew
            lengths = [length if length == row.length else 0 for row, length in zip(self._rows, lengths, strict=True)]
        for row, length in zip(self._rows, lengths, strict=True):
            if row.length > length and self._pool is not None:
                self._pool.seal(row.pages[length // PAGE :])
                row.writable = 0
            row.length = length
            del row.prefix[length:]
        self._starts = None

    @property
    def keeps_prefixes(self) -> bool:
        """See `TreeSession`. In exact mode a prompt must be read in one way only."""
        return self._encoder is None and not self._exact

    @in_inference_mode
    def load(self, prefixes: Sequence[Prefix], room: int) -> None:
        """Start the last rows, which must be empty, with these; `room`: number of slots to reserve."""
        if self.is_recurrent:  # a larger pool does not take over what the last pass has kept of its tokens
            self._commit()
        for row, prefix in zip(self._rows[-len(prefixes) :], prefixes, strict=True):
            row.reserved = max(row.reserved, room)
            if not prefix.length:
                continue
            self._make_room([(row, 0, prefix.length)])
            start = 0
            for piece in prefix.pieces:
                stop = start + next((pair[0].shape[1] for pair in piece if pair is not None), 0)
                self.pool.key_values.fill(self._places(row, range(start, stop)), piece)
                start = stop
            if (states := self.pool.states) is not None:
                states.begin({row.number: row.prompt})
                states.write(row.number, prefix.states)
            row.length = prefix.length

    @in_inference_mode
    def read(self, row: int, start: int, stop: int) -> Layers:
        """Copy the keys and values in slots start .. stop - 1 of a row, [H, n, D] per layer."""
        slots = list(range(start, stop))
        for source, target in self._rows[row].moves():  # not moved yet
            if start <= target < stop:
                slots[target - start] = source
        return self.pool.key_values.read(self._places(self._rows[row], slots))

    def states(self, row: int) -> Sequence[State]:
        """Copy the recurrent states of a row, by mixer."""
        self._commit()
        assert self.pool.states is not None
        return self.pool.states.read(self._rows[row].number)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order. Nothing is copied: the pages of the others become free."""
        selected = [self._rows[row] for row in rows]
        for row in self._rows:
            if row not in selected and self._pool is not None:
                row.drop_pages(self._pool)
        self._rows, self._starts = selected, None
        if self._encoder is not None:
            self._encoder.select(rows)
            self._cross_is_stale = True

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            self._target.pools.give(pool)
        if self._encoder is not None:
            self._encoder.close()
        self._encoder, self._rows, self._starts = None, [], None

    @in_inference_mode
    def _states_of_rows(self) -> Sequence[RowStates] | None:
        """What the passes of a `score` have kept, by row."""
        if self._gives_last is None:
            states, first, scored = self._recorded[-1]  # which scores some tokens
            self._gives_last = states.gives_last(first, scored)
        parts = [
            states.of_rows(first, scored, is_last=self._gives_last) or () for states, first, scored in self._recorded
        ]
        if len(parts) == 1 or not all(parts):
            return parts[-1] or None
        return [{key: torch.cat([part[key] for part in row]) for key in row[0]} for row in zip(*parts, strict=True)]

    @property
    def pool(self) -> PagePool:
        assert self._pool is not None
        return self._pool

    def _begin(self, unread: list[Sequence[int]], sizes: Sequence[int]) -> list[int]:
        """The slots from which rows are read, with space for their tokens and for trees, which score so many tokens.
        New rows that begin with the tokens of others share their pages."""
        rows = self._rows[: len(unread)]
        starts = [row.length for row in rows]
        if self.keeps_prefixes and not self.is_recurrent and not all(starts):
            self._share(starts, unread)
        wanted = [
            (row, start, stop)
            for row, start, ids, size in zip(rows, starts, unread, sizes, strict=True)
            if (stop := start + len(ids) + size - 1) > row.writable
        ]
        if wanted:
            self._make_room(wanted)
        if (states := self.pool.states) is not None and not all(starts):
            states.begin({row.number: row.prompt for row, start in zip(rows, starts, strict=True) if not start})
        return starts

    def _share(self, starts: list[int], unread: list[Sequence[int]]) -> None:
        """Let new rows begin with the pages of others."""
        shared = beginnings(self._rows, unread)
        if any([other is not None for other, _ in shared]):  # which need pages themselves
            self._make_room(
                [
                    (row, row.length, row.length + len(ids))
                    for row, ids, (other, _) in zip(self._rows, unread, shared, strict=False)
                    if other is None
                ]
            )
        for place, (other, count) in enumerate(shared):
            if other is not None:
                row = self._rows[place]
                row.pages = other.pages[: count // PAGE]
                self.pool.share(row.pages)
                starts[place], unread[place] = count, unread[place][count:]

    def _read_pieces(self, starts: list[int], unread: list[Sequence[int]], nodes: int) -> None:
        """Cache what does not fit into a pass with so many nodes: as much as a pass reads at once, of one row after the
        other, and leave at least the last token of each row. In exact mode, all but that is read so."""
        if self._exact:
            tail = [1] * len(unread)
        else:
            beyond = sum(map(len, unread)) + nodes - max(PREFILL_TOKENS, size_of(nodes + len(unread)))
            if beyond <= 0:
                return
            tail = [len(ids) for ids in unread]
            for row, count in enumerate(tail):
                if beyond > 0 and count > 1:
                    tail[row] = max(1, count - beyond)
                    beyond -= count - tail[row]
        while True:
            room, pieces = PREFILL_TOKENS, list[Sequence[int]]([()] * len(unread))
            for row, (ids, rest) in enumerate(zip(unread, tail, strict=True)):
                if (count := min(len(ids) - rest, room)) > 0:
                    pieces[row], room = ids[:count], room - count
            if room == PREFILL_TOKENS:
                return
            self._is_settled = False
            self._pass(starts, pieces, [EMPTY] * len(unread), [0] * len(unread), PREFILL_TOKENS)
            for row, piece in enumerate(pieces):
                starts[row], unread[row] = starts[row] + len(piece), unread[row][len(piece) :]
            if self.is_recurrent:
                for of_row, (first, count) in zip(self._rows, self._spans, strict=False):
                    of_row.written = range(first, first + count)
                self._commit()

    def _passes(
        self, starts: Sequence[int], unread: Rows, trees: Sequence[DraftTree], sizes: Sequence[int]
    ) -> tuple[torch.Tensor, list[int]]:
        """The scores of these tokens and trees, [N, V], and the index of each row's root among them. In exact mode in
        as many passes of one size as it takes."""
        if not self._exact:
            return self._pass(starts, unread, trees, sizes)
        parts, roots, before = list[torch.Tensor](), [0] * len(trees), 0
        left = list(range(len(trees)))
        while left:
            count, now = 0, list[int]()
            while left and count + len(unread[left[0]]) + len(trees[left[0]]) <= EXACT_TOKENS:
                now.append(left.pop(0))
                count += len(unread[now[-1]]) + len(trees[now[-1]])
            if not now:
                raise ValueError(
                    f"exact mode verifies trees of at most {EXACT_TOKENS - 1} nodes, got {len(trees[left[0]])}; "
                    f"set max_draft_nodes={EXACT_TOKENS - 1}"
                )
            chosen = set(now)
            ids = [ids if row in chosen else [] for row, ids in enumerate(unread)]
            drafts = [tree if row in chosen else EMPTY for row, tree in enumerate(trees)]
            counts = [size if row in chosen else 0 for row, size in enumerate(sizes)]
            logits, places = self._pass(starts, ids, drafts, counts, EXACT_TOKENS)
            parts.append(logits if not left and not parts else logits.clone())
            for row in now:
                roots[row] = before + places[row]
            before += len(logits)
        return parts[0] if len(parts) == 1 else torch.cat(parts), roots

    def _pass(
        self,
        starts: Sequence[int],
        uncached: Rows,
        trees: Sequence[DraftTree],
        scored: Sequence[int],
        size: int = 0,
    ) -> tuple[torch.Tensor, list[int]]:
        """Run one pass over these tokens and trees, of the smallest size or of this one. Returns logits [L, V], and the
        index of each row's root among them. Rows without tokens take no part."""
        lengths = [len(ids) + len(tree.tokens) for ids, tree in zip(uncached, trees, strict=True)]
        pool, total, wanted = self.pool, sum(lengths), sum(scored)
        tokens = size or size_of(total)
        shape = Shape.of(
            tokens,
            SCORED if tokens > 2 * SCORED and wanted <= SCORED else tokens,
            most_slots=slot_bucket(max(map(int.__add__, starts, lengths))) if self._exact else 0,
            ordered=self._exact and wanted > 0,
            layers=self._layers,
        )
        self._refresh_cross()
        runner = pool.runner
        shape = runner.choose(shape)
        tokens = shape.tokens
        lay_out(
            runner.staging(shape),
            shape,
            starts,
            self._rows[: len(starts)],
            uncached,
            trees,
            scored,
            self._moved(shape.moves),
            pool.scratch,
            self._tile,
            EXACT_SPLIT if self._exact else 0,
        )
        for row in self._rows:
            row.path = ()
        logits = runner.run(shape)
        if self.is_recurrent:
            self._spans = [*zip(accumulate(lengths, initial=0), map(len, uncached), strict=False)]
        if (states := runner.states(shape) if self._layers else None) is not None:
            copied = states.copied(total, wanted if shape.scored < tokens else total)
            self._recorded.append((copied, [0, *accumulate(lengths)], scored))
        if shape.scored < tokens:
            return logits, list(accumulate(scored[:-1], initial=0))
        ends = accumulate(lengths)
        return logits, [end - count for end, count in zip(ends, scored, strict=True)]

    def _commit(self) -> None:
        """Write what was accepted of the last pass into the states of its rows."""
        rows = [row for row in self._rows if row.written]
        if rows:
            assert self.pool.states is not None
            self.pool.states.commit({row.number: row.written for row in rows})
        for row in rows:
            row.written = ()

    def _moved(self, most: int) -> list[StaticRow]:
        """The rows whose accepted nodes the next pass moves. If these are more than `most`, all are moved now."""
        rows = [row for row in self._rows if row.path]
        if sum([len(row.path) for row in rows]) <= most:
            return rows
        moves = [[place_of(row.pages, slot) for slot in slots] for row in rows for slots in row.moves()]
        if len(moves) <= most:
            return rows
        sources, targets = torch.tensor(moves, device="cpu").T.to(self._target.facts.device)
        for buffer in self.pool.key_values.buffers.values():
            move(buffer, sources, targets)
        return []

    def _make_room(self, wanted: Sequence[tuple[StaticRow, int, int]]) -> None:
        """Make sure that these rows have pages of their own for slots start .. stop - 1."""
        pool = self._pool
        missing = 0 if pool is None else sum([row.missing(pool, start, stop) for row, start, stop in wanted])
        if pool is None or missing > pool.free_pages or not self._has_rows(pool):
            self._grow({row: stop for row, _, stop in wanted}, missing)
        for row, start, stop in wanted:
            row.take_pages(self.pool, start, stop)

    def _has_rows(self, pool: PagePool) -> bool:
        return len(self._rows) <= pool.size.rows and self._cross_width() <= pool.size.cross_width

    def _grow(self, needed: Mapping[StaticRow, int], missing: int) -> None:
        """Take a pool with space for all rows, with what is reserved for them, in place of the one so far."""
        old = self._pool
        slots = sum([PAGE + max(row.reserved, needed.get(row, 0), PAGE * len(row.pages)) for row in self._rows])
        if old is not None:
            slots = max(slots, (old.used + missing) * PAGE)
        rows = 1 << (len(self._rows) - 1).bit_length()
        pages = slot_bucket(slots + PAGE) // PAGE
        if old is not None:
            rows, pages = max(rows, old.size.rows), max(pages, old.size.pages)
        layout = old.size.layout if old is not None else self._target.layout()
        cross = None if self._encoder is None else CacheLayout(self._encoder.cross_contents()[0])
        pool = self._target.pool(PoolSize(layout, rows, pages, cross, self._cross_width()))
        if old is not None:
            try:
                pool.take_over(old)
            except BaseException:  # there may be no memory for the copy
                self._target.pools.give(pool)
                raise
            self._target.pools.give(old)
        self._pool, self._cross_is_stale = pool, self._encoder is not None
        self._tile = self._target.tile

    def _places(self, row: StaticRow, slots: Sequence[int]) -> torch.Tensor:
        """Where slots of a row are in the pool, [n]."""
        places = torch.tensor([place_of(row.pages, slot) for slot in slots], dtype=torch.long, device="cpu")
        return places.to(self._target.facts.device)

    def _cross_width(self) -> int:
        if self._encoder is None or not all(self._encoder.cross_contents()):
            return 0
        return slot_bucket(sum([layers[0][0].shape[1] for layers in self._encoder.cross_contents()]))

    def _refresh_cross(self) -> None:
        if self._encoder is not None and self._cross_is_stale:
            contents = self._encoder.cross_contents()
            self.pool.fill_cross([(row.number, layers) for row, layers in zip(self._rows, contents, strict=True)])
            self._cross_is_stale = False
