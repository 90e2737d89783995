"""Muon for hidden matrices and AdamW for the rest, on buffers that several processes share.

All weights lie in one flat float32 buffer; each process sums the gradients of all and updates its own share of
the matrices, so that the orthogonalisation (a tenth of a step) is not done twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from training.runs import working_dtype

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # K. Jordan, Muon (2024)


@dataclass(frozen=True)
class Rates:
    """Peak learning rates and averaging constants."""

    matrix: float = 0.010
    other: float = 0.0015
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    average: float = 0.998  # decay of the average of the weights (which is exported), per step


def orthogonal(update: Tensor) -> Tensor:
    """The approximate nearest semi-orthogonal matrix of each matrix in ``update`` [..., rows, columns]."""
    a, b, c = _NEWTON_SCHULZ
    x = update.to(working_dtype(update.device.type))
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    matrix: Tensor = x.mT if tall else x
    return matrix.to(update.dtype)


class Shared:
    """Flat buffers for the weights, their average, the optimiser's state and every process's gradients."""

    def __init__(self, weights: Mapping[str, Tensor], world: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shapes = {name: value.shape for name, value in weights.items()}
        self.master = torch.cat([value.flatten().float() for value in weights.values()]).to(device)
        self.average = self.master.clone()
        self.first = torch.zeros_like(self.master)
        self.second = torch.zeros_like(self.master)
        self.working = self.master.to(dtype)
        self.gradients = torch.zeros(world, len(self.master), dtype=dtype, device=device)
        self.counts = torch.zeros(world, 2, dtype=torch.float64)  # loss sum, answer tokens
        self.places = torch.zeros(world, 2, dtype=torch.int64)  # data position: pool, batch
        self.control = torch.zeros(2, dtype=torch.float64)  # learning-rate factor, whether to stop
        if world > 1:
            for buffer in vars(self).values():
                if isinstance(buffer, Tensor):
                    buffer.share_memory_()  # type: ignore[no-untyped-call]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views of a flat buffer."""
        views, start = {}, 0
        for name, shape in self.shapes.items():
            views[name] = flat[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return views

    def state(self) -> dict[str, Tensor]:
        """The state saved in a checkpoint."""
        return {name: getattr(self, name) for name in ("master", "average", "first", "second", "places")}

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)
        self.working.copy_(self.master)


class Optimizer:
    """Updates the share of the weights that belongs to process ``rank``."""

    def __init__(self, shared: Shared, rank: int, world: int, rates: Rates) -> None:
        self.shared, self.rates = shared, rates
        by_size = sorted(shared.shapes, key=lambda name: -shared.shapes[name].numel() * (name != "embed"))
        self.names = by_size[rank::world]
        self.buffers = {key: shared.views(value) for key, value in shared.state().items() if key != "places"}
        self.working = shared.views(shared.working)
        self.gradients = [shared.views(row) for row in shared.gradients]

    @torch.no_grad()
    def step(self, number: int, scale: float) -> None:
        """Make update ``number`` (from 1) with the learning rates times ``scale``."""
        tokens = float(self.shared.counts[:, 1].sum())
        # at first the average follows closely, so that it is usable after a few minutes
        keep = min(self.rates.average, (1 + number) / (10 + number))
        for name in self.names:
            gradient = sum(views[name].float() for views in self.gradients) / tokens
            assert isinstance(gradient, Tensor)
            master, first = self.buffers["master"][name], self.buffers["first"][name]
            if name != "embed" and gradient.dim() == 2:
                self._muon(name, master, first, gradient, scale)
            else:
                self._adam(master, first, self.buffers["second"][name], gradient, number, scale)
            self.buffers["average"][name].lerp_(master, 1 - keep)
            self.working[name].copy_(master)

    def _muon(self, name: str, master: Tensor, momentum: Tensor, gradient: Tensor, scale: float) -> None:
        momentum.lerp_(gradient, 1 - self.rates.momentum)
        update = gradient.lerp(momentum, self.rates.momentum)
        parts = {"qkv": 3, "up": 2, "kv": 2}.get(name.split(".")[-1], 1)  # matrices stored side by side
        update = orthogonal(update.view(parts, -1, update.shape[-1]))
        stretch = math.sqrt(max(1.0, update.shape[-2] / update.shape[-1]))
        master.add_(update.view_as(master), alpha=-self.rates.matrix * scale * stretch)

    def _adam(self, master: Tensor, m: Tensor, v: Tensor, gradient: Tensor, number: int, scale: float) -> None:
        one, two = self.rates.betas
        m.lerp_(gradient, 1 - one)
        v.lerp_(gradient.square(), 1 - two)
        size = (v / (1 - two**number)).sqrt_().add_(1e-8)
        master.addcdiv_(m, size, value=-self.rates.other * scale / (1 - one**number))
