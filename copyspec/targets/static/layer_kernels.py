# mypy: ignore-errors
# The kernels are in Triton's own language, and triton has no types.
"""What a decoder layer of Llama's kind computes between its products, in Triton: four kernels in place of thirty.

Results are rounded to the model's dtype where transformers' modules round them; only the sums of norms are added in
another order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ELEMENTWISE = 1024  # numbers of a program of `silu_times`
MOVED = 2048  # numbers that a program of `move` holds at a time


@triton.jit
def _rms_norm(
    X, ADDED, WEIGHT, SUM, OUT, width, epsilon, HAS_ADDED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    token, feature = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    place, real = token * width + feature, feature < width
    dtype = OUT.dtype.element_ty
    x = tl.load(X + place, mask=real, other=0.0).to(tl.float32)
    if HAS_ADDED:
        x = (x + tl.load(ADDED + place, mask=real, other=0.0).to(tl.float32)).to(dtype)
        tl.store(SUM + place, x, mask=real)
        x = x.to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, 0) / width + epsilon)
    x = (x * factor).to(dtype).to(tl.float32)
    weight = tl.load(WEIGHT + feature, mask=real, other=0.0).to(tl.float32)
    tl.store(OUT + place, (weight * x).to(dtype), mask=real)


@triton.jit
def _turned(
    X, WEIGHT, cosine, sine, feature, real, epsilon, SIZE: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """A head's numbers, normalised if asked for, turned by the position's angles (rotary positions, Su et al. 2021)."""
    dtype = X.dtype.element_ty
    other = tl.where(feature < SIZE // 2, feature + SIZE // 2, feature - SIZE // 2)
    x = tl.load(X + feature, mask=real, other=0.0).to(tl.float32)
    partner = tl.load(X + other, mask=real, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = tl.rsqrt(tl.sum(x * x, 0) / SIZE + epsilon)
        x, partner = (x * factor).to(dtype).to(tl.float32), (partner * factor).to(dtype).to(tl.float32)
        weight = tl.load(WEIGHT + feature, mask=real, other=0.0).to(tl.float32)
        x = (weight * x).to(dtype).to(tl.float32)
        weight = tl.load(WEIGHT + other, mask=real, other=0.0).to(tl.float32)
        partner = (weight * partner).to(dtype).to(tl.float32)
    partner = tl.where(feature < SIZE // 2, -partner, partner)
    x, partner = (x * cosine).to(dtype).to(tl.float32), (partner * sine).to(dtype).to(tl.float32)
    return (x + partner).to(dtype)


@triton.jit
def _place_heads(
    Q, K, V, COSINES, SINES, Q_NORM, K_NORM, OUT, KEYS, VALUES, SLOTS, columns, epsilon,
    sab, skb, skh, sks, svb, svh, svs,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = token // columns, token % columns
    feature = tl.arange(0, PADDED)
    real = feature < SIZE
    slot = tl.load(SLOTS + token)
    angle = row * sab + column * SIZE + feature
    cosine = tl.load(COSINES + angle, mask=real, other=0.0).to(tl.float32)
    sine = tl.load(SINES + angle, mask=real, other=0.0).to(tl.float32)
    if head < HEADS:
        place = (token * HEADS + head) * SIZE
        x = _turned(Q + place, Q_NORM, cosine, sine, feature, real, epsilon, SIZE, HAS_NORM)
        tl.store(OUT + place + feature, x, mask=real)
    elif head < HEADS + KEY_HEADS:
        member = head - HEADS
        x = _turned(
            K + (token * KEY_HEADS + member) * SIZE, K_NORM, cosine, sine, feature, real, epsilon, SIZE, HAS_NORM
        )
        tl.store(KEYS + row * skb + member * skh + slot * sks + feature, x, mask=real)
    else:
        member = head - HEADS - KEY_HEADS
        x = tl.load(V + (token * KEY_HEADS + member) * SIZE + feature, mask=real, other=0.0)
        tl.store(VALUES + row * svb + member * svh + slot * svs + feature, x, mask=real)


@triton.jit
def _silu_times(GATE, UP, OUT, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = place < count
    dtype = OUT.dtype.element_ty
    gate = tl.load(GATE + place, mask=real, other=0.0).to(tl.float32)
    gate = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(OUT + place, (gate * tl.load(UP + place, mask=real, other=0.0).to(tl.float32)).to(dtype), mask=real)


@triton.jit
def _move(
    BUFFER, SOURCES, TARGETS, count, sp, sh, ss,
    HEADS: tl.constexpr, SIZE: tl.constexpr, COUNT: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    plane_and_head = tl.program_id(0).to(tl.int64)
    plane, head = plane_and_head // HEADS, plane_and_head % HEADS
    entry = tl.arange(0, COUNT)
    source = tl.load(SOURCES + entry, mask=entry < count, other=0)
    target = tl.load(TARGETS + entry, mask=entry < count, other=0)
    moved = source != target
    if tl.sum(moved.to(tl.int32), 0) > 0:
        place = BUFFER + plane * sp + head * sh
        for first in range(0, SIZE, FEATURES):
            feature = first + tl.arange(0, FEATURES)
            wanted = moved[:, None] & (feature < SIZE)[None, :]
            x = tl.load(place + source[:, None] * ss + feature[None, :], mask=wanted)
            tl.debug_barrier()  # a slot may be read by one thread and written by another
            tl.store(place + target[:, None] * ss + feature[None, :], x, mask=wanted)


def rms_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `fused_layers.rms_norm`."""
    width = x.shape[-1]
    padded = triton.next_power_of_2(width)
    out, total = torch.empty_like(x), x if added is None else torch.empty_like(x)
    _rms_norm[(x.numel() // width,)](
        x, x if added is None else added, weight, total, out, width, epsilon, HAS_ADDED=added is not None,
        PADDED=padded, num_warps=min(16, max(1, padded // 512)),
    )  # fmt: skip
    return total, out


def place_heads(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    epsilon: float,
    cache: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
) -> torch.Tensor:
    """See `fused_layers.place_heads`."""
    (rows, columns, width), (key_cache, value_cache) = queries.shape, cache
    cosines, sines = (angle.contiguous() for angle in angles)
    size, key_heads = key_cache.shape[3], key_cache.shape[1]
    heads = width // size
    out = torch.empty_like(queries)
    of_queries, of_keys = norms or (queries, keys)
    _place_heads[(rows * columns, heads + 2 * key_heads)](
        queries, keys, values, cosines, sines, of_queries, of_keys, out, key_cache, value_cache, slots, columns,
        epsilon, cosines.stride(0) if cosines.shape[0] > 1 else 0, *key_cache.stride()[:3], *value_cache.stride()[:3],
        HEADS=heads, KEY_HEADS=key_heads, SIZE=size, PADDED=triton.next_power_of_2(size), HAS_NORM=norms is not None,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out.view(rows, columns, heads, size).transpose(1, 2)


def silu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """See `fused_layers.silu_times`."""
    out, count = torch.empty_like(gate), gate.numel()
    _silu_times[(triton.cdiv(count, ELEMENTWISE),)](gate, up, out, count, BLOCK=ELEMENTWISE)
    return out


def move(buffer: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """See `buffers.move`."""
    planes, heads, _, size = buffer.shape
    count = len(sources)
    padded = triton.next_power_of_2(count)
    features = min(triton.next_power_of_2(size), max(16, MOVED // padded))
    _move[(planes * heads,)](
        buffer, sources, targets, count, *buffer.stride()[:3], HEADS=heads, SIZE=size, COUNT=padded,
        FEATURES=features,
    )  # fmt: skip
