"""Passes of static shapes through mixers: the paths of their tokens, made on the device, and the forwards that follow
them from the states of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from copyspec.targets.hooks.detours import detour
from copyspec.targets.hooks.recurrence import write_state
from copyspec.targets.recurrent.paths import Paths
from copyspec.targets.recurrent.tree_mixers import TreeRun, of_tokens
from copyspec.targets.static.layout import NODE, PLACE, POSITION, ROW
from copyspec.targets.static.masks_on_device import on_path

if TYPE_CHECKING:
    from torch import nn

    from copyspec.targets.static.masks_on_device import PassInputs
    from copyspec.targets.static.row_states import PooledStates

SEGMENT = 16
"""Tokens of a row that are multiplied with its state at a time."""


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
        self.nonfinite = torch.zeros_like(self.is_prompt)
        """Tokens with numbers that are not finite, [T]."""

    def whole(self, values: torch.Tensor) -> torch.Tensor:
        """Products over all tokens would pass on what is not finite from one row to others, as 0 times its value: zeros
        take its place."""
        self.nonfinite = self.nonfinite | ((0 * values).flatten(1).sum(1) != 0)  # NaN, then
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
    nonfinite: torch.Tensor | None,
) -> Iterator[None]:
    """Let the model's mixers take the tokens of a pass at once while the context is active. `layers`: of the cache that
    the model is given; `nonfinite`: see `KeyValues.nonfinite`."""
    paths = PassPaths(work, states.prompts)
    with ExitStack() as detours:
        for number, (layer, mixer) in enumerate(mixers):
            mix = partial(_mix, mixer, layers[layer], states, number, paths)
            detours.enter_context(detour(mixer, "forward", mix))
        yield
    if nonfinite is not None:
        places = work.fields[PLACE]
        nonfinite[places] = nonfinite[places] | paths.nonfinite


def _mix(
    mixer: nn.Module, layer: Any, states: PooledStates, number: int, paths: PassPaths, *args: Any, **named: Any
) -> Any:
    """A mixer's forward on the tokens of a pass, [1, T, D]. The results of tokens that are not finite are NaN."""
    hidden: torch.Tensor = args[0] if args else named.pop("hidden_states")
    write_state(layer, states.state(number))
    run = TreeRun(paths)
    forward: Callable[..., Any] = run.forward(mixer)
    batched = partial(of_tokens, hidden.shape[1], lambda values: values.transpose(0, 1))
    whole = paths.whole(hidden.transpose(0, 1))
    result = forward(whole, *map(batched, args[1:]), **{name: batched(each) for name, each in named.items()})
    states.record(number, run)
    mixed, *more = result if isinstance(result, tuple) else (result,)
    mixed = mixed.transpose(0, 1).masked_fill(paths.nonfinite.unsqueeze(1), torch.nan)
    return (mixed, *more) if isinstance(result, tuple) else mixed
