"""The prefix cache: keys and values of earlier rows, reused for prompts that begin with the same tokens.

They are stored in blocks of BLOCK_TOKENS tokens; where only the first N tokens of each prompt are kept, the last block
may be shorter. A block's key is its tokens and the preceding block, so that prompts share common prefixes and a lookup
compares tokens instead of hashes (like the blocks of PagedAttention, Kwon et al. 2023, arXiv:2309.06180). The least
recently used blocks are evicted first, the ends of prefixes before their beginnings.

A recurrent state belongs to one length. It is stored with the block, here a shorter one too, that ends there: the last
whole one of a prompt, that at the end of an output, and that where a prompt leaves an earlier one, as others may do so,
too (Marconi, Pan et al. 2024, arXiv:2411.19379).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from copyspec.common.forks import fork_safe

if TYPE_CHECKING:
    from copyspec.targets.hooks.model_state import ModelState
    from copyspec.targets.hooks.recurrence import State

BLOCK_TOKENS = 32
"""Tokens per block. A prompt is reread from its last whole block: 16 tokens on average, a fraction of a pass."""

MAX_BYTES = 1 << 30
"""Default size: about 23,000 tokens of SmolLM2-135M in float32, or 8,000 of an 8B model in bfloat16."""

MAX_STATES = 32
"""Maximum number of adapter states: more than a program switches between, few enough to compare with each."""

_Key = tuple[int, tuple[int, ...]]
"""Number of the preceding block, and tokens."""

Layers = Sequence["tuple[torch.Tensor, torch.Tensor] | None"]
"""Keys and values of each layer, [H, n, D]; None for a layer without any of its own."""


class Prefix(NamedTuple):
    """What a row can begin with."""

    length: int = 0
    pieces: Sequence[Layers] = ()
    """Keys and values of so many tokens, in order."""
    states: Sequence[State] = ()
    """Recurrent states behind them, by mixer."""


@dataclass(frozen=True, slots=True)
class Past:
    """Keys and values with which a row begins, computed by its caller."""

    layers: Layers
    before: int  # how many of their tokens precede those that the row is known by

    def prefix(self) -> Prefix:
        return Prefix(next(pair[0].shape[1] for pair in self.layers if pair is not None), [self.layers])


class PrefixSession(Protocol):
    """A session whose rows can start from keys and values that were computed earlier."""

    @property
    def lengths(self) -> Sequence[int]: ...

    @property
    def is_recurrent(self) -> bool:
        """Whether its rows have recurrent states, too."""
        ...

    def load(self, prefixes: Sequence[Prefix], room: int) -> None:
        """Start the last rows, which are empty, with these; `room`: number of slots to allocate."""
        ...

    def read(self, row: int, start: int, stop: int) -> Layers:
        """Copy the keys and values in slots start .. stop - 1 of a row."""
        ...

    def states(self, row: int) -> Sequence[State]:
        """Copy the recurrent states of a row, by mixer."""
        ...


@dataclass(slots=True)
class _Block:
    number: int
    layers: Layers
    size: int  # bytes
    states: Sequence[State] = ()


class PrefixCache:
    """The prefix cache of one model. Thread-safe."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes`: maximum size of what is stored."""
        self.max_bytes = max_bytes
        # Least recently used first, each block after its successors.
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        self._tails = defaultdict[int, set[int]](set)  # lengths of shorter blocks, by number of the preceding block
        self._roots: list[tuple[ModelState, int]] = []
        self._numbers = 0
        self._bytes = 0
        self._lock = fork_safe(threading.RLock())

    @property
    def num_bytes(self) -> int:
        """Size of the keys, values and states stored now."""
        return self._bytes

    def __len__(self) -> int:
        """Number of tokens whose keys and values are stored."""
        with self._lock:
            return sum(len(tokens) for _, tokens in self._blocks)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._blocks.clear()
            self._tails.clear()
            self._roots.clear()
            self._bytes = 0

    def find(self, state: ModelState, tokens: Sequence[int], *, with_states: bool = False) -> tuple[Prefix, int]:
        """Return the cached blocks that `tokens` begin with, and up to where whole ones are cached. `with_states`: up
        to the last length whose recurrent states are cached, too. They never cover all tokens, since the last one must
        be passed through the model for its logits."""
        tokens = tuple(tokens[: max(0, len(tokens) - 1)])
        with self._lock:
            root = self._root(state)
            keys = self._known(root, _blocks(tokens, None))
            endings = self._endings(root, keys, tokens)
            fitting = [*next(ending for ending in endings if self._can_begin(ending, with_states))]
            return self._prefix(fitting), BLOCK_TOKENS * len(keys)

    def add(
        self,
        state: ModelState,
        tokens: Sequence[int],
        read: Callable[[int, int], Layers],
        most: int | None = None,
        states: Sequence[State] = (),
    ) -> None:
        """Store the whole blocks of `tokens`, or their first `most` tokens; `read(start, stop)` returns their keys and
        values. `states`: recurrent ones behind all of `tokens`, which are then stored to the last."""
        if states:
            most = len(tokens)
        blocks = _blocks(tokens, most)
        with self._lock:
            root = self._root(state)
            keys = self._known(root, blocks)
            self._touch(keys)  # before any is evicted, so that others are older
            used = set(keys)
            before = self._blocks[keys[-1]].number if keys else root
            try:
                for at in range(len(keys), len(blocks)):
                    start = BLOCK_TOKENS * at
                    layers = read(start, start + len(blocks[at]))
                    block = _Block(self._next(), layers, sum(map(_bytes, layers)))
                    if not self._make_room(block.size, used):
                        break
                    key = (before, blocks[at])
                    if len(blocks[at]) < BLOCK_TOKENS:
                        self._tails[before].add(len(blocks[at]))
                    self._blocks[key] = block
                    self._bytes += block.size
                    keys.append(key)
                    used.add(key)
                    before = block.number
                if states and len(keys) == len(blocks) and not self._blocks[keys[-1]].states:
                    self._add_states(self._blocks[keys[-1]], states, used)
            except torch.OutOfMemoryError:  # the passes need this memory
                self.clear()
                return
            self._touch(keys)

    def _add_states(self, block: _Block, states: Sequence[State], used: set[_Key]) -> None:
        size = sum(tensor.nbytes for state in states for tensor in state.values())
        if self._make_room(size, used):
            block.states, block.size = states, block.size + size
            self._bytes += size

    def _prefix(self, keys: Sequence[_Key]) -> Prefix:
        """These blocks, which follow each other."""
        self._touch(keys)
        blocks = [self._blocks[key] for key in keys]
        return Prefix(
            sum([len(tokens) for _, tokens in keys]),
            [block.layers for block in blocks],
            blocks[-1].states if blocks else (),
        )

    def _known(self, root: int, blocks: Sequence[tuple[int, ...]]) -> list[_Key]:
        """The keys of the first of `blocks`, as many as are cached."""
        keys: list[_Key] = []
        before = root
        for tokens in blocks:
            key = (before, tokens)
            block = self._blocks.get(key)
            if block is None:
                break
            keys.append(key)
            before = block.number
        return keys

    def _endings(self, root: int, keys: Sequence[_Key], tokens: tuple[int, ...]) -> Iterator[Sequence[_Key]]:
        """The keys of cached blocks that `tokens` begin with, first those of all tokens that are cached, then of fewer,
        at last of none. `keys`: those of whole blocks."""
        for count in range(len(keys), -1, -1):
            before, start = self._blocks[keys[count - 1]].number if count else root, BLOCK_TOKENS * count
            for size in sorted(self._tails.get(before, ()), reverse=True):
                if (tail := (before, tokens[start : start + size])) in self._blocks:
                    yield [*keys[:count], tail]
            yield keys[:count]

    def _can_begin(self, keys: Sequence[_Key], with_states: bool) -> bool:
        return not keys or not with_states or bool(self._blocks[keys[-1]].states)

    def _touch(self, keys: Sequence[_Key]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _make_room(self, size: int, used: set[_Key]) -> bool:
        """Evict the least recently used blocks until `size` more bytes fit; False if only blocks in `used` are left."""
        while self._bytes + size > self.max_bytes:
            oldest = next(iter(self._blocks), None)
            if oldest is None or oldest in used:
                return False
            block = self._blocks.pop(oldest)
            self._bytes -= block.size
            self._tails.pop(block.number, None)
        return True

    def _root(self, state: ModelState) -> int:
        """The number that precedes the first block for this state of the model. Clears the cache on new weights."""
        for known, number in self._roots:
            if known == state:
                return number
        if self._roots and (len(self._roots) == MAX_STATES or not state.has_weights_of(self._roots[0][0])):
            self.clear()
        self._roots.append((state, self._next()))
        return self._roots[-1][1]

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers


def _blocks(tokens: Sequence[int], most: int | None) -> list[tuple[int, ...]]:
    """Cut the first `most` of `tokens` into blocks; without all of these, whole blocks only."""
    tokens = tuple(tokens[:most])
    stop = len(tokens) if len(tokens) == most else len(tokens) - len(tokens) % BLOCK_TOKENS
    return [tokens[start : min(start + BLOCK_TOKENS, stop)] for start in range(0, stop, BLOCK_TOKENS)]


def _bytes(layer: tuple[torch.Tensor, torch.Tensor] | None) -> int:
    return 0 if layer is None else sum(tensor.numel() * tensor.element_size() for tensor in layer)
