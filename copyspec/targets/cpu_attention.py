"""Attention of draft trees in bfloat16 on a CPU, in one call of the compiled module.

PyTorch is bitwise equal to plain decoding only for single queries (`hooks/attention.py`), each of which costs it a call
of some ten microseconds per head. The module computes all nodes of the trees of all rows at once
(`native/avx2_attention.c`), bitwise equal to PyTorch's products, exponentials and sums, for whose order there is no
promise: so both are compared, for each shape of heads, before the module's is used. Random inputs would not do: a
different summation order changes one bfloat16 result in a million. The inputs are chosen so that results lie next to a
rounding boundary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from copyspec.targets.compiled import _linear
from copyspec.targets.hooks.attention import Seen, SplitMask
from copyspec.targets.hooks.inference import in_inference_mode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from copyspec.targets.tree_cache import Write

Attended = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""

LENGTHS = (*range(1, 18), 31, 100, 511, 512, 513, 700, 1030)
"""Keys per query of the comparison: with each rest of registers and groups, and of more than one split of keys."""

SPLIT = 512
"""Keys whose exponentials are relative to one largest score."""

EXPONENTIALS, SUMS, TRIED = 16_384, 4, 100_000
"""Numbers of exponentials and of sums compared; candidates drawn per sum, of which those nearest to a rounding tie are
kept."""

AFTER, MAX_ROWS = 3, 64
"""Slots after the cached ones in the comparison, and its maximum number of tokens."""

_POLYNOMIAL = (-0.079204240219773236, -0.22433836478672356, 0.30354260500649682, 0.00010703434948458272)
_LOG2_E = 1.44269504


def seen_by(mask: torch.Tensor | None, write: Write, rows: int, columns: int) -> Seen | None:
    """What the columns of a pass, [rows, columns], attend to by a mask; None if it hides slots before the pass, or is
    of a kind that is not known."""
    if mask is None:
        if columns > 1 or not write.plain:
            return None
        if write.seen is None:
            starts = np.full(rows, write.start)
            write.seen = Seen(np.arange(rows), starts, starts[:, None])
        return write.seen
    if type(mask) is not SplitMask or mask.shape[:3] != (rows, 1, columns) or any([each.prompt for each in mask.calls]):
        return None
    if not hasattr(mask, "seen"):
        mask.seen = _seen_by(mask)
    return mask.seen


def _seen_by(mask: SplitMask) -> Seen | None:
    rows, _, columns = mask.shape[:3]
    width = max([len(group.slots) for split in mask.calls for group in split.groups])
    paths = np.full((rows * columns, width), -1, np.int64)
    for first, split in zip(range(0, rows * columns, columns), mask.calls, strict=True):
        for group in split.groups:
            for length, column in enumerate(group.columns, len(group.slots) - len(group.columns) + 1):
                paths[first + column, :length] = group.slots[:length]
    places = np.flatnonzero(paths[:, 0] >= 0)
    found = Seen(places, np.repeat([split.cached for split in mask.calls], columns)[places], paths[places])
    seen = (mask.as_subclass(torch.Tensor) == 0).sum(-1).flatten().numpy()[places]
    return found if np.array_equal(seen, found.starts + (found.paths >= 0).sum(-1)) else None


@cache
@in_inference_mode
def registers(heads: int, key_heads: int, size: int) -> int:
    """Number of accumulators between which PyTorch alternates when it sums exponentials: 2 since PyTorch 2.13, 1
    before. 0 if the module is bitwise equal with neither, or does not compute attention for this processor. Takes some
    0.1 s."""
    if _linear is None or not _linear.attends():
        return 0
    shape = heads, key_heads, size
    return next((number for number in (2, 1) if all(_is_equal(*each, number) for each in _cases(*shape))), 0)


def _cases(heads: int, key_heads: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]]:
    """Queries, keys and values, and factors of the scores, of which PyTorch and the module compute the attention."""
    for length in (SPLIT, SPLIT + 8, SPLIT + 200):
        yield *_outputs_at_ties(size, length), 1.0
    yield *_exponentials_at_ties(size), 1.0
    drawn = torch.Generator().manual_seed(0)
    for length in LENGTHS:
        queries, keys = _drawn(drawn, heads, size), _drawn(drawn, key_heads, length, size)
        values = _drawn(drawn, key_heads, length, size) * torch.exp(2 * _drawn(drawn, key_heads, length, size))
        if length % 2:  # uniform weights of values that cancel in pairs: the result is the rounding error
            queries, values[:, length // 2 : length // 2 * 2] = 0 * queries, -values[:, : length // 2]
        yield queries.bfloat16(), keys.bfloat16(), values.bfloat16(), size**-0.5


def _drawn(drawn: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=drawn, device="cpu")


def _is_equal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, registers: int) -> bool:
    """Whether both compute the same for queries, [H, D], and keys and values, [G, n, D]. The module does for several
    tokens whose last slots are not in order."""
    (heads, size), (key_heads, length) = queries.shape, keys.shape[:2]
    theirs = scaled_dot_product_attention(
        queries[None, :, None], keys[None], values[None], scale=scaling, enable_gqa=heads > key_heads
    )[0, :, 0]
    threads = torch.get_num_threads()
    rows, start = min(4 * threads, MAX_ROWS), max(0, length - AFTER)
    seen = Seen(np.arange(rows), np.full(rows, start), np.tile(np.arange(length - 1, start - 1, -1), (rows, 1)))
    held = [torch.cat([each[:, :start], each[:, start:].flip(1)], dim=1) for each in (keys, values)]
    given = queries.expand(rows, -1, -1).contiguous()
    ours = torch.empty_like(given)
    cache = held[0].data_ptr(), held[1].data_ptr(), length, scaling, *seen, registers
    _linear.attention(ours.data_ptr(), given.data_ptr(), (rows, heads, key_heads, size), cache, threads)
    return bool((ours == theirs).all())


def _bits(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bit pattern of PyTorch's float32 exp(scores), as a real number."""
    scaled = scores * _LOG2_E
    return (scaled - np.polyval(_POLYNOMIAL, scaled - np.floor(scaled)) + 127.0) * 2**23


def _exponentials_at_ties(size: int) -> Attended:
    """Inputs whose exponentials lie next to a bfloat16 rounding boundary; each is an output."""
    drawn, queries = np.random.default_rng(0), EXPONENTIALS // size
    scores = np.zeros((queries, 1 + size))  # the first is the largest
    ties = -6.0 * drawn.random((queries, size))
    wanted = np.floor(_bits(ties) / 65536) * 65536 + 32768 + drawn.integers(-64, 64, ties.shape)
    for _ in range(6):  # Newton's steps
        ties += (wanted - _bits(ties)) / (_LOG2_E * 2**23)
    scores[:, 1:] = ties
    values = np.zeros((queries, 1 + size, size), np.float32)
    values[:, range(1, 1 + size), range(size)] = 1.0
    return _with_scores(scores, values)


def _outputs_at_ties(size: int, length: int) -> Attended:
    """Inputs whose outputs lie next to a bfloat16 rounding boundary, so that any change of the softmax denominator
    flips them. Each output has two nonzero values."""
    drawn = np.random.default_rng(0)
    below = -6.0 * drawn.random((SUMS, length))  # the largest score of the split
    below[:, 0] = below[:, -1] = 0.0
    largest = np.where(np.arange(length) < SPLIT, -0.5 * (length > SPLIT), 0.0)
    exponentials = (np.round(_bits(below) / 64) * 64).astype(np.int32).view(np.float32).astype(np.float64)
    factors, sums = _rounded(exponentials) * np.exp(largest), (exponentials * np.exp(largest)).sum(-1)
    values, columns = np.zeros((SUMS, length, size), np.float32), np.arange(size)
    one, ahead, mantissa = drawn.integers([[0], [1], [128]], [[length], [length], [256]], (3, TRIED))
    other = (one + ahead) % length
    for query in range(SUMS):
        outputs = (factors[query, one] * (mantissa / 128) + factors[query, other]) / sums[query]
        distance = np.abs(np.frexp(outputs)[0] * 256 % 1 - 0.5)
        best = np.argpartition(distance, size)[:size]
        values[query, one[best], columns] = mantissa[best] / 128
        values[query, other[best], columns] = 1.0
    return _with_scores(below + largest, values)


def _with_scores(scores: NDArray[np.float64], values: NDArray[np.float32]) -> Attended:
    """Queries, [H, D], and keys, [H, n, D], that have these scores, [H, n]: each is a sum of three bfloat16."""
    keys, rest = np.zeros(values.shape, np.float32), scores.copy()
    for part in range(3):
        keys[..., part] = _rounded(rest)
        rest -= keys[..., part]
    queries = np.zeros((len(scores), values.shape[2]), np.float32)
    queries[:, :3] = 1.0
    return tuple(torch.from_numpy(each).bfloat16() for each in (queries, keys, values))  # type: ignore[return-value]


def _rounded(numbers: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers rounded to bfloat16."""
    found: NDArray[np.float64] = torch.from_numpy(numbers).bfloat16().double().numpy()
    return found
