# mypy: ignore-errors
# The kernels are in Triton's own language, and triton has no types.
"""Tree attention in Triton: all cached tokens are visible, and tree nodes after them according to ancestor bits.

One program handles one row, one key head, up to MAX_ROWS queries of its group (all nodes of all heads in the group
share its keys) and SPLIT slots; `_combine` merges the splits (Flash-Decoding, Dao et al. 2023). Splits and blocks begin
at fixed slots, so the order of every sum depends only on the position and the buffer's size. Slots after the tree are
never read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SPLIT = 256
"""Slots per program of a buffer of at most 4,096. On an H200 half of that took 1.6 times as long at 8,000 slots, since
twice as many partial results are written and read; larger buffers have fewer of them, see `split_of`."""

BLOCK = 32  # slots processed at a time: 64 exceed the registers of sm_90
LANES = 16  # queries whose splits one program of `_combine` merges
WARPS, STAGES = 4, 2  # of a program, and blocks that are loaded ahead
MAX_ROWS = 64  # maximum queries per program

DEPTH, LENGTH, WORDS = 0, 1, 4  # fields of a tree mask, see `tree_attention`
WORD = 63  # nodes per word of ancestor bits
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _tanh(x):
    # The quotient is inaccurate for small x; the series is within 1e-8 below a quarter.
    square = x * x
    small = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    e = tl.exp(-2 * tl.abs(x))
    large = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.25, small, tl.where(x < 0, -large, large))


@triton.jit
def _first_slot(length, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """The first slot of the first block visible to any node. The root looks back furthest."""
    first = length * 0
    if WINDOW:
        first = tl.maximum(length - WINDOW + 1, 0) // BLOCK * BLOCK
    return first


@triton.jit
def _add_block(
    q, keys, values, slot, readable, seen, top, total, acc, scale, softcap, sks, svs, key_feature, value_feature,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, HAS_CAP: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    key_mask = readable[:, None] & (key_feature < KEY_WIDTH)[None, :]
    k = tl.load(keys + slot[:, None] * sks + key_feature[None, :], mask=key_mask, other=0.0)
    value_mask = readable[:, None] & (value_feature < VALUE_WIDTH)[None, :]
    v = tl.load(values + slot[:, None] * svs + value_feature[None, :], mask=value_mask, other=0.0)
    if UPCAST:
        k, v = k.to(tl.float32), v.to(tl.float32)
    s = tl.dot(q, tl.trans(k), out_dtype=tl.float32, input_precision=PRECISION) * scale
    if HAS_CAP:
        s = softcap * _tanh(s / softcap)
    s = tl.where(seen, s, LOWEST)
    high = tl.maximum(top, tl.max(s, 1))
    p = tl.where(seen, tl.exp(s - high[:, None]), 0.0)
    shrink = tl.exp(top - high)
    total = total * shrink + tl.sum(p, 1)
    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, out_dtype=tl.float32, input_precision=PRECISION)
    return high, total, acc


@triton.jit
def _attend_split(
    Q, K, V, TREE, ACC, TOP, TOTAL, scale, softcap,
    sqb, sqh, sqn, skb, skh, sks, svb, svh, svs, stb, stn, stf,
    NODES: tl.constexpr, GROUP: tl.constexpr, KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    KEY_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    BLOCK: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, DEPTH: tl.constexpr, LENGTH: tl.constexpr, WORDS: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    batch, tile_of_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    head, tile = tile_of_head // TILES, tile_of_head % TILES
    tree = TREE + batch * stb
    length = tl.load(tree + LENGTH * stf)
    begin = tl.maximum(split * SPLIT, _first_slot(length, WINDOW, BLOCK))
    end = tl.minimum((split + 1) * SPLIT, length + NODES)
    if begin < end:
        row = tile * ROWS + tl.arange(0, ROWS)
        node, member = row % NODES, row // NODES
        real = row < NODES * GROUP
        key_feature, value_feature = tl.arange(0, KEY_PADDED), tl.arange(0, VALUE_PADDED)
        q_mask = real[:, None] & (key_feature < KEY_WIDTH)[None, :]
        places = Q + batch * sqb + (head * GROUP + member)[:, None] * sqh + node[:, None] * sqn
        q = tl.load(places + key_feature[None, :], mask=q_mask, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        position = length + tl.load(tree + node * stn + DEPTH * stf, mask=real, other=0)
        keys, values = K + batch * skb + head * skh, V + batch * svb + head * svh
        top = tl.full([ROWS], LOWEST, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
        whole = length // BLOCK * BLOCK  # blocks before this one hold cached tokens only
        for start in range(begin, tl.minimum(end, whole), BLOCK):
            slot = start + tl.arange(0, BLOCK)
            readable = slot < length
            seen = real[:, None] & readable[None, :]
            if WINDOW:
                seen = seen & (position[:, None] - slot[None, :] < WINDOW)
            top, total, acc = _add_block(
                q, keys, values, slot, readable, seen, top, total, acc, scale, softcap, sks, svs, key_feature,
                value_feature, KEY_WIDTH, VALUE_WIDTH, HAS_CAP, UPCAST, PRECISION,
            )  # fmt: skip
        for start in range(tl.maximum(begin, whole), end, BLOCK):
            slot = start + tl.arange(0, BLOCK)
            readable = slot < end
            column = tl.maximum(slot - length, 0)
            in_tree = (slot >= length) & readable
            words = tree + node[:, None] * stn + (WORDS + column // WORD)[None, :] * stf
            word = tl.load(words, mask=real[:, None] & in_tree[None, :], other=0)
            ancestor = ((word >> (column % WORD)[None, :]) & 1) != 0
            seen = real[:, None] & readable[None, :] & (ancestor | (slot < length)[None, :])
            if WINDOW:
                depth = tl.load(tree + column * stn + DEPTH * stf, mask=in_tree, other=0)
                place = tl.where(in_tree, length + depth, slot)
                seen = seen & (position[:, None] - place[None, :] < WINDOW)
            top, total, acc = _add_block(
                q, keys, values, slot, readable, seen, top, total, acc, scale, softcap, sks, svs, key_feature,
                value_feature, KEY_WIDTH, VALUE_WIDTH, HAS_CAP, UPCAST, PRECISION,
            )  # fmt: skip
        base = ((batch * tl.num_programs(1) + tile_of_head) * tl.num_programs(2) + split).to(tl.int64) * ROWS
        lane = tl.arange(0, ROWS)
        tl.store(ACC + (base + lane)[:, None] * VALUE_PADDED + value_feature[None, :], acc)
        tl.store(TOP + base + lane, top)
        tl.store(TOTAL + base + lane, total)


@triton.jit
def _combine(
    ACC, TOP, TOTAL, OUT, TREE, SINKS, splits, sob, soh, son, stb, stf,
    NODES: tl.constexpr, GROUP: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    batch, tile_of_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, tile = tile_of_head // TILES, tile_of_head % TILES
    lane, feature = tl.program_id(2) * LANES + tl.arange(0, LANES), tl.arange(0, VALUE_PADDED)
    row = tile * ROWS + lane
    node, member = row % NODES, row // NODES
    real = row < NODES * GROUP
    length = tl.load(TREE + batch * stb + LENGTH * stf)
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    acc = tl.zeros([LANES, VALUE_PADDED], tl.float32)
    first, last = _first_slot(length, WINDOW, BLOCK) // SPLIT, (length + NODES + SPLIT - 1) // SPLIT
    for split in range(first, last):
        base = ((batch * tl.num_programs(1) + tile_of_head) * splits + split).to(tl.int64) * ROWS
        other = tl.load(TOP + base + lane)
        high = tl.maximum(top, other)
        mine, theirs = tl.exp(top - high), tl.exp(other - high)
        total = total * mine + tl.load(TOTAL + base + lane) * theirs
        more = tl.load(ACC + (base + lane)[:, None] * VALUE_PADDED + feature[None, :])
        acc = acc * mine[:, None] + more * theirs[:, None]
        top = high
    if HAS_SINKS:
        sink = tl.load(SINKS + head * GROUP + member, mask=real, other=0.0).to(tl.float32)
        high = tl.maximum(top, sink)
        shrink = tl.exp(top - high)
        total = total * shrink + tl.exp(sink - high)
        acc = acc * shrink[:, None]
    out = OUT + batch * sob + (head * GROUP + member)[:, None] * soh + node[:, None] * son + feature[None, :]
    result = acc / tl.where(real, total, 1.0)[:, None]
    tl.store(out, result.to(OUT.dtype.element_ty), mask=real[:, None] & (feature < VALUE_WIDTH)[None, :])


def split_of(slots: int) -> int:
    """Slots per program for buffers of `slots`: twice as many at 8,192, and four times at 16,384 and beyond."""
    return SPLIT * min(4, max(1, triton.next_power_of_2(slots) // 4096))


def tiling(group: int, nodes: int) -> tuple[int, int]:
    """Queries per program, and the number of programs that share a key head."""
    rows = min(MAX_ROWS, max(16, triton.next_power_of_2(group * nodes)))
    return rows, triton.cdiv(group * nodes, rows)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tree: torch.Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `tree_attention.attend`."""
    rows_in_batch, heads, nodes, key_width = query.shape
    key_heads, slots, value_width = keys.shape[1], keys.shape[2], values.shape[3]
    group, split, device = heads // key_heads, split_of(slots), query.device
    splits = triton.cdiv(slots, split)
    rows, tiles = tiling(group, nodes)
    padded = [max(16, triton.next_power_of_2(width)) for width in (key_width, value_width)]
    query, keys, values = (each if each.stride(3) == 1 else each.contiguous() for each in (query, keys, values))
    grid = (rows_in_batch, key_heads * tiles)
    partial = (*grid, splits, rows)
    acc = torch.empty((*partial, padded[1]), dtype=torch.float32, device=device)
    top, total = (torch.empty(partial, dtype=torch.float32, device=device) for _ in range(2))
    # Triton's interpreter has no bfloat16 arithmetic, and truncates results where a GPU rounds them.
    dtype = query.dtype if query.is_cuda else torch.float32
    out = torch.empty((rows_in_batch, nodes, heads, value_width), dtype=dtype, device=device)
    sizes = {
        "NODES": nodes, "GROUP": group, "VALUE_WIDTH": value_width, "VALUE_PADDED": padded[1], "ROWS": rows,
        "TILES": tiles, "BLOCK": BLOCK, "SPLIT": split, "WINDOW": tree.shape[1] - 1, "LENGTH": LENGTH,
    }  # fmt: skip
    strides = (*query.stride()[:3], *keys.stride()[:3], *values.stride()[:3], tree.stride(0), *tree.stride()[2:])
    _attend_split[(*grid, splits)](
        query, keys, values, tree, acc, top, total, scale, softcap or 0.0, *strides,
        KEY_WIDTH=key_width, KEY_PADDED=padded[0], HAS_CAP=softcap is not None, UPCAST=not query.is_cuda,
        PRECISION="ieee", DEPTH=DEPTH, WORDS=WORDS, WORD=WORD, num_stages=STAGES,
        num_warps=WARPS, **sizes,
    )  # fmt: skip
    _combine[(*grid, triton.cdiv(rows, LANES))](
        acc, top, total, out, tree, top if sinks is None else sinks, splits, out.stride(0), out.stride(2),
        out.stride(1), tree.stride(0), tree.stride(3), LANES=LANES, HAS_SINKS=sinks is not None, num_warps=4, **sizes,
    )  # fmt: skip
    return out.to(query.dtype)
