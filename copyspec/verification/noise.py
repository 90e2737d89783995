"""Sampling noise keyed by position, which turns sampling into an argmax.

A token drawn from P is argmax(log P + G) with Gumbel noise G (Gumbel 1954; Maddison et al. 2014,
arXiv:1411.0030). The noise is keyed by (seed, sample, position) instead of the order of draws, so a position gets
the same noise whatever was drafted, whatever shape the tree has, and whichever rows share the batch. Sampled
output with drafts therefore equals sampled output without, token for token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

_MASK64 = 0xFFFFFFFFFFFFFFFF
_MASK32 = 0xFFFFFFFF
# splitmix64 (Steele et al. 2014) makes the keys on the host.
_GAMMA = 0x9E3779B97F4A7C15
# A 32-bit mixer with low bias (C. Wellons, hash-prospector, 2018) expands them over the vocabulary on the device.
_MIX_A, _MIX_B = 0x7FEB352D, 0x846CA68B - 2**32
_SPREAD = 0x9E3779B9 - 2**32


def gumbel(
    seed: int,
    sample: int,
    positions: Sequence[int],
    vocab_size: int,
    device: torch.device,
    *,
    only: torch.Tensor | None = None,
) -> torch.Tensor:
    """Standard Gumbel noise for every token at every absolute position. [len(positions), vocab_size], float32.

    `only` [n] restricts it to these tokens: [len(positions), n].
    The arithmetic is integer up to the final logarithms, so devices differ at most by their rounding.
    """
    keys = torch.from_numpy(position_keys(seed, sample, positions)).to(device)
    return noise_of(keys, vocab_size, only=only)


def position_keys(seed: int, sample: int, positions: Sequence[int]) -> npt.NDArray[np.int64]:
    """The noise key of each position, split into its lower and upper 32 bits. [2, n]"""
    keys = [_position_key(seed, sample, position) for position in positions]
    return np.array([[key & _MASK32 for key in keys], [key >> 32 for key in keys]], np.int64)


def noise_of(keys: torch.Tensor, vocab_size: int, *, only: torch.Tensor | None = None) -> torch.Tensor:
    """Gumbel noise from `position_keys` [2, n], computed on their device; otherwise as `gumbel`."""
    # Products of int32 wrap, so their low 32 bits are right. In int64 the same takes three times as long.
    low, high = keys.to(torch.int32).unsqueeze(2)
    tokens = torch.arange(vocab_size, device=keys.device) if only is None else only
    bits = _mix32(_SPREAD * tokens.to(torch.int32) + low)
    bits = _mix32(bits.bitwise_xor_(high)).to(torch.int64).bitwise_and_(_MASK32)
    # Uniform on (0, 1), with the finest steps where noise is largest: -log(-log1p(-u)) grows as u falls to 2**-33.
    negated = bits.to(torch.float32).add_(0.5).mul_(-(2.0**-32)).clamp_(min=2.0**-24 - 1)
    return negated.log1p_().neg_().log_().neg_()


def uniform(seed: int, sample: int, position: int, draw: int) -> float:
    """A uniform number on [0, 1), determined by seed, sample, absolute position and the index of the draw there."""
    return (_splitmix64(_position_key(seed, sample, position) ^ draw) >> 11) * 2.0**-53


def _position_key(seed: int, sample: int, position: int) -> int:
    key = _splitmix64(seed & _MASK64)
    key = _splitmix64(key ^ (sample & _MASK64))
    return _splitmix64(key ^ (position & _MASK64))


def _splitmix64(state: int) -> int:
    state = (state + _GAMMA) & _MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
    return state ^ (state >> 31)


def _mix32(x: torch.Tensor) -> torch.Tensor:
    """Mix int32 in place. The masks make the shifts those of unsigned numbers."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= _MIX_A
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _MIX_B
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x
