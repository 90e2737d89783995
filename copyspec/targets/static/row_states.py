"""Recurrent states of a pool's rows at fixed addresses, and what the tokens of the last pass write into them.

A pass takes all its tokens at once, from the states of their rows, and leaves these as they are
(`recurrent.tree_mixers`). Once it is known which of its tokens are accepted, `commit` writes these into the states, of
all layers together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.recurrence import State
from copyspec.targets.recurrent.recurrences import PIECE_BYTES, TokenWrites
from copyspec.targets.recurrent.tree_mixers import CONV, RECURRENT, TreeRun


class StateKind(NamedTuple):
    """The states of a row in a mixer: the last inputs of its convolution, [D, W], and what its recurrence keeps, if it
    has one."""

    window: torch.Size
    window_dtype: torch.dtype
    state: torch.Size | None = None
    state_dtype: torch.dtype | None = None

    @classmethod
    def of(cls, state: State) -> StateKind:
        """`state`: of one row, [1, ...]."""
        recurrent = state.get(RECURRENT)
        own = (recurrent.shape[1:], recurrent.dtype) if recurrent is not None else (None, None)
        return cls(state[CONV].shape[1:], state[CONV].dtype, *own)


class PooledStates:
    """The states of all rows in all mixers, and what the last pass has kept of its tokens."""

    def __init__(self, kinds: Sequence[StateKind], rows: int, tokens: int, device: torch.device) -> None:
        """`kinds`: by mixer; `tokens`: of a pass, at most."""
        counts = {kind: kinds.count(kind) for kind in kinds}
        with inference_mode(False):
            self.prompts = torch.zeros(rows, dtype=torch.long, device=device)  # their lengths
        self._groups = {kind: _Group(kind, count, rows, tokens, device) for kind, count in counts.items()}
        self._places = [(self._groups[kind], kinds[:number].count(kind)) for number, kind in enumerate(kinds)]

    def state(self, mixer: int) -> State:
        """The states of all rows in a mixer, [B, ...]."""
        group, number = self._places[mixer]
        states = {CONV: group.windows[number]}
        return states if group.states is None else {**states, RECURRENT: group.states[number]}

    def record(self, mixer: int, run: TreeRun) -> None:
        """Keep what the tokens of a pass write in a mixer."""
        group, number = self._places[mixer]
        group.record(number, run)

    def begin(self, prompts: Mapping[int, int]) -> None:
        """Let rows have read nothing. `prompts`: the lengths of their prompts."""
        table = torch.tensor([*prompts.items()], device="cpu").to(self.prompts.device)
        with inference_mode(True):
            self.prompts[table[:, 0]] = table[:, 1]
            for group in self._groups.values():
                for states in group.tensors:
                    states[:, table[:, 0]] = 0

    def write(self, row: int, states: Sequence[State]) -> None:
        """Let a row have these states, [1, ...] each, by mixer."""
        for mixer, state in enumerate(states):
            for name, buffer in self.state(mixer).items():
                buffer[row] = state[name][0]

    def read(self, row: int) -> list[State]:
        """Copy the states of a row, [1, ...] each, by mixer."""
        mixers = map(self.state, range(len(self._places)))
        return [{name: buffer[row : row + 1].clone() for name, buffer in state.items()} for state in mixers]

    def commit(self, paths: Mapping[int, Sequence[int]]) -> None:
        """Write tokens of the last pass into the states of their rows. `paths`: by row, the places of its accepted
        tokens in the pass, in order."""
        by_width: dict[int, list[list[int]]] = {}
        for row, path in paths.items():
            width = 1 << (len(path) - 1).bit_length()
            padding = [path[0]] * (width - len(path))  # of its own row, whose numbers may be not finite
            by_width.setdefault(width, []).append([row, len(path), *padding, *path])
        with inference_mode(True):
            for table in by_width.values():
                for group in self._groups.values():
                    group.commit(torch.tensor(table, device="cpu").to(group.windows.device))

    def copy(self, other: PooledStates, rows: int) -> None:
        """Copy the states of the first rows of another pool of the same kinds. `other` has no uncommitted tokens."""
        self.prompts[:rows] = other.prompts[:rows]
        for group, before in zip(self._groups.values(), other._groups.values(), strict=True):
            for states, old in zip(group.tensors, before.tensors, strict=True):
                states[:, :rows] = old[:, :rows]


class _Group:
    """The mixers whose states have the same shapes."""

    def __init__(self, kind: StateKind, count: int, rows: int, tokens: int, device: torch.device) -> None:
        self._tokens = tokens
        self._written: TokenWrites | None = None  # made of the first pass, which shows the shapes
        self.states: torch.Tensor | None = None  # [L, B, ...]
        with inference_mode(False):  # captured programs write to normal tensors
            self.windows = torch.zeros((count, rows, *kind.window), dtype=kind.window_dtype, device=device)
            self._inputs = self.windows.new_zeros((count, tokens, kind.window[0]))
            if kind.state is not None:
                self.states = torch.zeros((count, rows, *kind.state), dtype=kind.state_dtype, device=device)
        self._is_transposed = False

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        return [self.windows] if self.states is None else [self.windows, self.states]

    def record(self, number: int, run: TreeRun) -> None:
        inputs = run.token_inputs
        self._inputs[number, : len(inputs)] = inputs
        if self.states is None:
            return
        written, self._is_transposed = run.written()
        if self._written is None:
            with inference_mode(False):
                self._written = TokenWrites(
                    *[
                        part.new_zeros((len(self.windows), part.shape[0], self._tokens, part.shape[2]))
                        for part in written
                    ]
                )
        for buffer, part in zip(self._written, written, strict=True):
            buffer[number, :, : part.shape[1]] = part

    def commit(self, table: torch.Tensor) -> None:
        """`table`: rows, the lengths of their paths, and these, padded in front, [R, 2 + M]."""
        rows, counts, paths = table[:, 0], table[:, 1:2], table[:, 2:]
        windows, width, most = self.windows, self.windows.shape[-1], paths.shape[1]
        column = torch.arange(width, device=table.device)
        tail = paths[:, (column + most - width).clamp(min=0)]
        index = column + counts  # of what is left of the window; behind it the path's last inputs
        index = torch.where(index < width, index, width + column)[None, :, None].expand(*windows.shape[:1], -1, -1, -1)
        inputs = torch.cat([windows[:, rows], self._inputs[:, tail].transpose(2, 3)], dim=-1)
        windows[:, rows] = inputs.gather(-1, index.expand(-1, -1, windows.shape[2], -1))
        if self.states is None:
            return
        assert self._written is not None
        keys, updates, totals = self._written
        is_padding = torch.arange(most, device=table.device) < most - counts
        size = 4 * len(rows) * most * updates.shape[1] * keys.shape[-1]
        step = max(1, PIECE_BYTES // size)
        for first in range(0, len(windows), step):
            layers = slice(first, first + step)
            of_paths = TokenWrites(*[tensor[layers][:, :, paths].transpose(1, 2) for tensor in (keys, updates, totals)])
            states = self.states[layers][:, rows]
            matrices = states.transpose(-1, -2) if self._is_transposed else states
            matrices = matrices.reshape(*states.shape[:2], updates.shape[1], keys.shape[-1], updates.shape[-1])
            after = of_paths.into(matrices.float(), is_padding[:, None, :, None])
            after = after.transpose(-1, -2) if self._is_transposed else after
            self.states[layers][:, rows] = after.reshape(states.shape).to(states.dtype)
