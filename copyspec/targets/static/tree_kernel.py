# mypy: ignore-errors
# The kernels are in Triton's own language, and triton has no types.
"""Tree attention in Triton over the pages of all rows: a token sees the cached tokens of its row, and the nodes on its
path according to ancestor bits.

The host lists units of work (`layout`): some tokens of one row and some of its slots. Programs share them out among
themselves, so that a captured pass has one grid, whichever rows share it. `_combine` merges the partial results of a
token (Flash-Decoding, Dao et al. 2023). Units and blocks begin at fixed slots of a row. Slots after its tokens are
never read.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from copyspec.targets.static.layout import FIELDS, NODE, PARTIAL, PARTIALS, POSITION, ROW, STRIDE, TREE, UNIT, WORD
from copyspec.targets.static.settings import PAGE, QUERIES

BLOCK = 32  # slots processed at a time, of one page: 64 exceed the registers of sm_90
HEADS = 8  # heads of a token whose partial results one program of `_combine` merges
WARPS, STAGES = 4, 2  # of a program, and blocks that are loaded ahead
PROGRAMS = 4  # for each multiprocessor

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
def _add_block(
    q, keys, values, place, readable, seen, top, total, acc, scale, softcap, sks, svs, key_feature, value_feature,
    KEY_WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, HAS_CAP: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    key_mask = readable[:, None] & (key_feature < KEY_WIDTH)[None, :]
    k = tl.load(keys + place[:, None] * sks + key_feature[None, :], mask=key_mask, other=0.0)
    value_mask = readable[:, None] & (value_feature < VALUE_WIDTH)[None, :]
    v = tl.load(values + place[:, None] * svs + value_feature[None, :], mask=value_mask, other=0.0)
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
def _attend_units(
    Q, K, V, PASS, UNITS, TABLE, ACC, TOP, TOTAL, tokens, table_width, scale, softcap, sqh, sqt, skh, sks, svh, svs,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PARTS: tl.constexpr, KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, KEY_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, POSITION: tl.constexpr, TREE: tl.constexpr, NODE: tl.constexpr, ROW: tl.constexpr,
    WORDS: tl.constexpr, WORD: tl.constexpr, UNIT: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KEY_HEADS
    items = tl.load(UNITS).to(tl.int32) * (KEY_HEADS * PARTS)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        head, part = item // PARTS % KEY_HEADS, item % PARTS
        unit = UNITS + 1 + item // (PARTS * KEY_HEADS) * UNIT
        first, count = tl.load(unit).to(tl.int32), tl.load(unit + 1).to(tl.int32)
        if part * ROWS < count * GROUP:
            begin, end = tl.load(unit + 2).to(tl.int32), tl.load(unit + 3).to(tl.int32)
            lane = part * ROWS + tl.arange(0, ROWS)
            token, member = first + tl.minimum(lane // GROUP, count - 1), lane % GROUP  # the last one for lanes beyond
            key_feature, value_feature = tl.arange(0, KEY_PADDED), tl.arange(0, VALUE_PADDED)
            queries = Q + (head * GROUP + member)[:, None] * sqh + token[:, None] * sqt
            q = tl.load(queries + key_feature[None, :], mask=(key_feature < KEY_WIDTH)[None, :], other=0.0)
            if UPCAST:
                q = q.to(tl.float32)
            position = tl.load(PASS + POSITION * tokens + token).to(tl.int32)
            tree = tl.load(PASS + TREE * tokens + first).to(tl.int32)
            node = tl.load(PASS + NODE * tokens + first).to(tl.int32)
            pages = TABLE + tl.load(PASS + ROW * tokens + first) * table_width
            lowest = tl.min(position, 0)  # of the unit's tokens
            if WINDOW:
                begin = tl.maximum(begin, tl.maximum(lowest - WINDOW + 1, 0) // BLOCK * BLOCK)
            last = tl.minimum(position + 1, tree)  # slots before this one are seen
            whole = tl.minimum(lowest + 1, tree) // BLOCK * BLOCK  # blocks before this one are seen by all tokens
            if ORDERED:
                whole = begin  # the same code for all blocks, whichever of their keys are nodes
            keys, values = K + head * skh, V + head * svh
            top = tl.full([ROWS], LOWEST, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            acc = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
            for start in range(begin, tl.minimum(end, whole), BLOCK):
                slot = start + tl.arange(0, BLOCK)
                readable = slot < end
                place = tl.load(pages + start // PAGE) * PAGE + slot % PAGE
                seen = readable[None, :]
                if WINDOW:
                    seen = seen & (position[:, None] - slot[None, :] < WINDOW)
                top, total, acc = _add_block(
                    q, keys, values, place, readable, seen, top, total, acc, scale, softcap, sks, svs, key_feature,
                    value_feature, KEY_WIDTH, VALUE_WIDTH, HAS_CAP, UPCAST, PRECISION,
                )  # fmt: skip
            for start in range(tl.maximum(begin, whole), end, BLOCK):
                slot = start + tl.arange(0, BLOCK)  # in order of positions: these
                readable = slot < end
                place = tl.load(pages + start // PAGE) * PAGE + slot % PAGE
                if ORDERED:
                    beyond = readable & (slot >= tree)
                    path = PASS + (WORDS + tl.maximum(slot - tree, 0)) * tokens + first
                    of_path = tree + tl.load(path, mask=beyond, other=0).to(tl.int32)
                    of_page = tl.load(pages + of_path // PAGE, mask=beyond, other=0)
                    place = tl.where(beyond, of_page * PAGE + of_path % PAGE, place)
                column = tl.maximum(slot - tree, 0)
                in_tree = (slot >= tree) & readable & (not ORDERED)
                words = PASS + (WORDS + column // WORD)[None, :] * tokens + token[:, None]
                word = tl.load(words, mask=in_tree[None, :], other=0)
                ancestor = ((word >> (column % WORD)[None, :]) & 1) != 0
                seen = readable[None, :]
                if not ORDERED:
                    seen = seen & (ancestor | (slot[None, :] < last[:, None]))
                if WINDOW:
                    of_node = tl.load(PASS + POSITION * tokens + node + column, mask=in_tree, other=0).to(tl.int32)
                    at = tl.where(in_tree, of_node, slot)
                    seen = seen & (position[:, None] - at[None, :] < WINDOW)
                top, total, acc = _add_block(
                    q, keys, values, place, readable, seen, top, total, acc, scale, softcap, sks, svs, key_feature,
                    value_feature, KEY_WIDTH, VALUE_WIDTH, HAS_CAP, UPCAST, PRECISION,
                )  # fmt: skip
            real = lane < count * GROUP
            result = (tl.load(unit + 4) + token - first) * HEADS + head * GROUP + member
            tl.store(ACC + result[:, None] * VALUE_PADDED + value_feature[None, :], acc, mask=real[:, None])
            tl.store(TOP + result, top, mask=real)
            tl.store(TOTAL + result, total, mask=real)


@triton.jit
def _combine(
    ACC, TOP, TOTAL, OUT, PASS, SINKS, tokens,
    HEADS: tl.constexpr, LANES: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_SINKS: tl.constexpr, PARTIAL: tl.constexpr, PARTIALS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head, feature = tl.program_id(1) * LANES + tl.arange(0, LANES), tl.arange(0, VALUE_PADDED)
    real = head < HEADS
    wanted = real[:, None] & (feature < VALUE_WIDTH)[None, :]
    partial, stride = tl.load(PASS + PARTIAL * tokens + token), tl.load(PASS + STRIDE * tokens + token)
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    acc = tl.zeros([LANES, VALUE_PADDED], tl.float32)
    for part in range(0, tl.load(PASS + PARTIALS * tokens + token).to(tl.int32)):
        result = (partial + part * stride) * HEADS + head
        other = tl.load(TOP + result, mask=real, other=0.0)
        high = tl.maximum(top, other)
        mine, theirs = tl.exp(top - high), tl.exp(other - high)
        total = total * mine + tl.load(TOTAL + result, mask=real, other=0.0) * theirs
        more = tl.load(ACC + result[:, None] * VALUE_PADDED + feature[None, :], mask=wanted, other=0.0)
        acc = acc * mine[:, None] + more * theirs[:, None]
        top = high
    if HAS_SINKS:
        sink = tl.load(SINKS + head, mask=real, other=0.0).to(tl.float32)
        high = tl.maximum(top, sink)
        shrink = tl.exp(top - high)
        total = total * shrink + tl.exp(sink - high)
        acc = acc * shrink[:, None]
    out = OUT + (token * HEADS + head)[:, None] * VALUE_WIDTH + feature[None, :]
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]  # tokens beyond those of the pass have no results
    tl.store(out, result.to(OUT.dtype.element_ty), mask=wanted)


@cache
def programs(device: torch.device) -> int:
    """Programs that share the units of a pass; two where kernels are interpreted."""
    if device.type != "cuda":
        return 2
    return PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    work,
    window: int,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `tree_attention.attend_in_torch`."""
    _, heads, tokens, key_width = query.shape
    key_heads, value_width, device = keys.shape[1], values.shape[3], query.device
    group = heads // key_heads
    rows = max(16, min(QUERIES, triton.next_power_of_2(work.tile * group)))
    padded = [max(16, triton.next_power_of_2(width)) for width in (key_width, value_width)]
    query, keys, values = (tensor if tensor.stride(3) == 1 else tensor.contiguous() for tensor in (query, keys, values))
    results = work.units.numel() // UNIT
    acc = torch.empty((results, heads, padded[1]), dtype=torch.float32, device=device)
    top, total = (torch.empty((results, heads), dtype=torch.float32, device=device) for _ in range(2))
    # Triton's interpreter has no bfloat16 arithmetic, and truncates results where a GPU rounds them.
    dtype = query.dtype if query.is_cuda else torch.float32
    out = torch.empty((1, tokens, heads, value_width), dtype=dtype, device=device)
    sizes = {"HEADS": heads, "VALUE_WIDTH": value_width, "VALUE_PADDED": padded[1]}
    _attend_units[(programs(device),)](
        query, keys, values, work.fields, work.units, work.block_table, acc, top, total, tokens,
        work.block_table.shape[1], scale,
        softcap or 0.0, *query.stride()[1:3], *keys.stride()[1:3], *values.stride()[1:3], KEY_HEADS=key_heads,
        PARTS=triton.cdiv(work.tile * group, rows), KEY_WIDTH=key_width, KEY_PADDED=padded[0], ROWS=rows, BLOCK=BLOCK,
        PAGE=PAGE, WINDOW=window, HAS_CAP=softcap is not None, UPCAST=not query.is_cuda, PRECISION="ieee",
        POSITION=POSITION, TREE=TREE, NODE=NODE, ROW=ROW, WORDS=FIELDS, WORD=WORD, UNIT=UNIT, ORDERED=work.ordered,
        num_stages=STAGES, num_warps=WARPS, **sizes,
    )  # fmt: skip
    _combine[(tokens, triton.cdiv(heads, HEADS))](
        acc, top, total, out, work.fields, top if sinks is None else sinks, tokens, LANES=HEADS,
        HAS_SINKS=sinks is not None, PARTIAL=PARTIAL, PARTIALS=PARTIALS, STRIDE=STRIDE, num_warps=4, **sizes,
    )  # fmt: skip
    return out.to(query.dtype)
