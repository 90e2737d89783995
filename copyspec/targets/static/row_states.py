"""Recurrent states of a pool's rows at fixed addresses, and what the tokens of the last pass write into them.

A pass takes all its tokens at once, from the states of their rows, and leaves these as they are (`hooks.tree_mixers`).
Once it is known which of its tokens are accepted, `commit` writes these into the states, of all layers together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from copyspec.targets.detours import detour
from copyspec.targets.hooks.inference import inference_mode
from copyspec.targets.hooks.paths import Paths
from copyspec.targets.hooks.recurrence import State, write_state
from copyspec.targets.hooks.recurrences import PIECE_BYTES, TokenWrites
from copyspec.targets.hooks.tree_mixers import CONV, RECURRENT, TreeRun
from copyspec.targets.static.layout import NODE, PLACE, POSITION, ROW
from copyspec.targets.static.masks_on_device import on_path

if TYPE_CHECKING:
    from torch import nn

    from copyspec.targets.static.masks_on_device import PassInputs

SEGMENT = 16
"""Tokens of a row that are multiplied with its state at a time."""


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
        kept = state.get(RECURRENT)
        own = (kept.shape[1:], kept.dtype) if kept is not None else (None, None)
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
                        each.new_zeros((len(self.windows), each.shape[0], self._tokens, each.shape[2]))
                        for each in written
                    ]
                )
        for buffer, each in zip(self._written, written, strict=True):
            buffer[number, :, : each.shape[1]] = each

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
            of_paths = TokenWrites(*[each[layers][:, :, paths].transpose(1, 2) for each in (keys, updates, totals)])
            states = self.states[layers][:, rows]
            matrices = states.transpose(-1, -2) if self._is_transposed else states
            matrices = matrices.reshape(*states.shape[:2], updates.shape[1], keys.shape[-1], updates.shape[-1])
            after = of_paths.into(matrices.float(), is_padding[:, None, :, None])
            after = after.transpose(-1, -2) if self._is_transposed else after
            self.states[layers][:, rows] = after.reshape(states.shape).to(states.dtype)


class _Segments(NamedTuple):
    """All tokens of a pass, and how they are multiplied with the states of their rows: as batches of one size."""

    tokens: slice
    ancestors: torch.Tensor  # [T, T]
    members: torch.Tensor  # the tokens of each segment, [S, SEGMENT]; any token in place of those that it lacks
    rows: torch.Tensor  # of each segment, [S]
    places: torch.Tensor  # of each token in the flattened segments, [T]

    def read(self, left: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """See `TreePart.read`."""
        segments = left[..., self.members, :].movedim(-3, 0)  # [S, ..., H, SEGMENT, K]
        of_rows = states[self.rows].float()
        read = segments @ of_rows.view(len(of_rows), *[1] * (segments.dim() - of_rows.dim()), *of_rows.shape[1:])
        return read.movedim(0, -3).flatten(-3, -2)[..., self.places, :]


class PassPaths(Paths):
    """The paths of a static pass, made on the device from the fields of its tokens. Each token of the scratch row is a
    path of its own."""

    def __init__(self, work: PassInputs, prompts: torch.Tensor) -> None:
        """`prompts`: the lengths of the prompts of all rows of the pool, [B]."""
        self._row, self._count = work.fields[ROW], len(prompts)
        self.is_prompt = work.fields[POSITION] < prompts[self._row]
        tokens = torch.arange(len(self._row), device=self._row.device)
        row, node = self._row.unsqueeze(1), work.fields[NODE].unsqueeze(1)
        is_read = (tokens < node) & (tokens <= tokens.unsqueeze(1))
        follows = (is_read | on_path(work, tokens - node)) & (row == self._row)
        ancestors = follows | (tokens == tokens.unsqueeze(1))
        self._depths = ancestors.sum(1)
        self.parts = [self._segments(ancestors, tokens)]
        self._columns = {}
        self.broken = torch.zeros_like(self.is_prompt)
        """Tokens with numbers that are not finite, [T]."""

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """Products over all tokens would pass on what is not finite from one row to others, as 0 times its value: zeros
        take its place."""
        self.broken = self.broken | ((0 * values).flatten(1).sum(1) != 0)  # NaN, then
        return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)

    def _segments(self, ancestors: torch.Tensor, tokens: torch.Tensor) -> Any:
        row, count = self._row, len(tokens)
        begins = torch.cat([row.new_ones(1), (row[1:] != row[:-1]).long()])
        offset = tokens - (tokens * begins).cummax(0).values
        number = (offset % SEGMENT == 0).cumsum(0) - 1
        most = min(count, count // SEGMENT + self._count)
        places = number * SEGMENT + offset % SEGMENT
        index = row.new_zeros(most * SEGMENT).scatter(0, places, tokens).view(most, SEGMENT)
        return _Segments(slice(0, count), ancestors, index, row.new_zeros(most).scatter(0, number, row), places)

    def columns(self, width: int) -> torch.Tensor:
        if width not in self._columns:
            self._columns[width] = self._last_inputs(width)
        return self._columns[width]

    def _last_inputs(self, width: int) -> torch.Tensor:
        ancestors, depths = self.parts[0].ancestors, self._depths
        back = depths.unsqueeze(1) - torch.arange(width, -1, -1, device=depths.device)  # depths of the last inputs
        is_input = ancestors.unsqueeze(1) & (depths == back.unsqueeze(2))  # [T, 1 + width, T]
        tokens = is_input.int().argmax(-1)
        return torch.where(
            back > 0, self._count * width + tokens, self._row.unsqueeze(1) * width + (width - 1 + back).clamp(min=0)
        )


@contextmanager
def mixing(
    mixers: Sequence[tuple[int, nn.Module]],
    layers: Sequence[Any],
    states: PooledStates,
    work: PassInputs,
    broken: torch.Tensor | None,
) -> Iterator[None]:
    """Let the model's mixers take the tokens of a pass at once while the context is active. `layers`: of the cache that
    the model is given; `broken`: see `KeyValues.broken`."""
    paths = PassPaths(work, states.prompts)
    with ExitStack() as detours:
        for number, (layer, mixer) in enumerate(mixers):
            mix = partial(_mix, mixer, layers[layer], states, number, paths)
            detours.enter_context(detour(mixer, "forward", mix))
        yield
    if broken is not None:
        places = work.fields[PLACE]
        broken[places] = broken[places] | paths.broken


def _mix(
    mixer: nn.Module, layer: Any, states: PooledStates, number: int, paths: PassPaths, *args: Any, **named: Any
) -> Any:
    """A mixer's forward on the tokens of a pass, [1, T, D]. The results of broken tokens are NaN."""
    hidden: torch.Tensor = args[0] if args else named.pop("hidden_states")
    write_state(layer, states.state(number))
    run = TreeRun(paths)
    forward: Callable[..., Any] = run.forward(mixer)
    batched = partial(_batched, hidden.shape[1])
    whole = paths.whole(hidden.transpose(0, 1))
    result = forward(whole, *map(batched, args[1:]), **{name: batched(each) for name, each in named.items()})
    states.record(number, run)
    mixed, *more = result if isinstance(result, tuple) else (result,)
    mixed = mixed.transpose(0, 1).masked_fill(paths.broken.unsqueeze(1), torch.nan)
    return (mixed, *more) if isinstance(result, tuple) else mixed


def _batched(tokens: int, value: Any) -> Any:
    """An argument with a number for each token of the pass, [1, T, ...], as [T, 1, ...]; others as they are."""
    if isinstance(value, tuple):
        return tuple(_batched(tokens, each) for each in value)
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or value.shape[:2] != (1, tokens):
        return value
    return value.transpose(0, 1)
