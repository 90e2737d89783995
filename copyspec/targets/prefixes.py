"""The prefix cache: keys and values of earlier rows, kept by their tokens for prompts that begin as those did.

They are kept in blocks of BLOCK_TOKENS, each under its own tokens and the block before it, so that prompts share what
they share and a lookup compares tokens, not hashes (the blocks of PagedAttention, Kwon et al. 2023, arXiv:2309.06180).
What was used longest ago makes room, the ends of prefixes before their beginnings.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from copyspec.forks import at_rest

if TYPE_CHECKING:
    from copyspec.targets.hooks.model_state import ModelState

BLOCK_TOKENS = 32
"""A prompt is read again from its last whole block: 16 tokens too many on average, a fraction of a pass."""

MAX_BYTES = 1 << 30
"""About 23,000 tokens of SmolLM2-135M in float32, or 8,000 of an 8B model in bfloat16."""

MAX_STATES = 32
"""Of adapters that are switched: more than a program switches between, few enough to compare with each."""

Layers = Sequence["tuple[torch.Tensor, torch.Tensor] | None"]
"""Keys and values of each layer, [H, n, D]; None for a layer that keeps none of its own."""


class PrefixSession(Protocol):
    """A session whose rows may begin with keys and values that were computed before."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def load(self, prefixes: Sequence[Sequence[Layers]], room: int) -> None:
        """Row r begins with the pieces `prefixes[r]`, one behind the other; `room`: slots that it will need."""
        ...

    def read(self, row: int, start: int, stop: int) -> Layers:
        """A copy of what a row holds in slots start .. stop - 1."""
        ...


@dataclass(frozen=True, slots=True)
class _Block:
    number: int
    layers: Layers
    size: int  # bytes


class PrefixCache:
    """Of one model. Safe to use from several threads."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes`: of keys and values that are kept at most."""
        self.max_bytes = max_bytes
        # (the block before, the tokens) -> block; what was used last comes last, and each block behind its successors.
        self._blocks: OrderedDict[tuple[int, tuple[int, ...]], _Block] = OrderedDict()
        self._roots: list[tuple[ModelState, int]] = []
        self._numbers = 0
        self._bytes = 0
        self._lock = at_rest(threading.RLock())

    @property
    def num_bytes(self) -> int:
        """Of keys and values that are kept now."""
        return self._bytes

    def __len__(self) -> int:
        """Tokens whose keys and values are kept."""
        return BLOCK_TOKENS * len(self._blocks)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._blocks.clear()
            self._roots.clear()
            self._bytes = 0

    def find(self, state: ModelState, tokens: Sequence[int]) -> list[Layers]:
        """The blocks with which `tokens` begin, as far as they are kept; never all of them: the last token is passed
        through the model in any case, for its logits."""
        found: list[Layers] = []
        with self._lock:
            keys = self._known(self._root(state), tokens[: max(0, len(tokens) - 1)])
            found = [self._blocks[key].layers for key in keys]
            self._touch(keys)
        return found

    def add(self, state: ModelState, tokens: Sequence[int], read: Callable[[int, int], Layers]) -> None:
        """Keeps the whole blocks of `tokens`, whose keys and values from start to stop are `read(start, stop)`."""
        with self._lock:
            root = self._root(state)
            keys = self._known(root, tokens)
            used = set(keys)
            before = self._blocks[keys[-1]].number if keys else root
            try:
                for start in range(BLOCK_TOKENS * len(keys), len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
                    layers = read(start, start + BLOCK_TOKENS)
                    block = _Block(self._next(), layers, sum(map(_bytes, layers)))
                    if not self._make_room(block.size, used):
                        break
                    key = (before, tuple(tokens[start : start + BLOCK_TOKENS]))
                    self._blocks[key] = block
                    self._bytes += block.size
                    keys.append(key)
                    used.add(key)
                    before = block.number
            except torch.OutOfMemoryError:  # the memory is needed for the passes
                self.clear()
                return
            self._touch(keys)

    def _known(self, root: int, tokens: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """The keys of the blocks with which `tokens` begin."""
        keys: list[tuple[int, tuple[int, ...]]] = []
        before = root
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = (before, tuple(tokens[start : start + BLOCK_TOKENS]))
            block = self._blocks.get(key)
            if block is None:
                break
            keys.append(key)
            before = block.number
        return keys

    def _touch(self, keys: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _make_room(self, size: int, used: set[tuple[int, tuple[int, ...]]]) -> bool:
        """Forgets what was used longest ago, until `size` bytes more may be kept; False where that is in use."""
        while self._bytes + size > self.max_bytes:
            oldest = next(iter(self._blocks), None)
            if oldest is None or oldest in used:
                return False
            self._bytes -= self._blocks.pop(oldest).size
        return True

    def _root(self, state: ModelState) -> int:
        """What comes before the first block of the model as it is. Other weights never come back."""
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


def _bytes(layer: tuple[torch.Tensor, torch.Tensor] | None) -> int:
    return 0 if layer is None else sum(each.numel() * each.element_size() for each in layer)
