# mypy: disallow-untyped-decorators=False
"""The attention kernel: work items read the slots of their segment once for all their queries.

    item    places [first, first + n) read slots [s, s + L) at positions [p, p + L)
    tile    rows = places x query heads of one KV head, columns = slots

      positions   p ....................................... p + L
                  [ head, masked ][ all seen, no mask ][ tail, masked ]

Every mask is low <= position < high of a place: causal, a window, a span seen both ways. The
query heads of a KV head fill the rows of one tile, so that one decoded token uses the matrix
units and KV is read once for all of them.

Source: FlashAttention-2 (2023), algorithm 1 (running maximum and sum), FlashDecoding (2023) for
long segments with few queries; log-sum-exps are in base 2.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["ITEM_FIELDS", "attend_kernel"]

ITEM_FIELDS = (
    "first_place",  # first query
    "num_places",  # queries; 0: the item does nothing
    "first_slot",  # where its slots begin in the array of slots
    "num_slots",
    "position",  # of the first slot
    "num_head",  # slots before those that all queries see, a multiple of the tile's slots
    "num_full",  # slots that all queries see, a multiple of the tile's slots
    "run",  # the first slot if all are consecutive, else -1
    "partial",  # row of the first place in the partial outputs; -1: the output is final
)
"""What int32 [items, 9] say of each item."""

_NUM_FIELDS: tl.constexpr = tl.constexpr(len(ITEM_FIELDS))
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _softcapped(scores: tl.tensor, softcap: float) -> tl.tensor:
    """Scores bent to stay within `softcap`; tanh(x) is 1 - 2 / (exp(2 x) + 1)."""
    grown = tl.exp2(scores * (2.0 * _LOG2_E / softcap))
    return softcap * (1.0 - 2.0 / (grown + 1.0))


@triton.jit
def _loaded(
    store: tl.tuple,
    at: tl.tensor,
    is_there: tl.tensor,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    is_masked: tl.constexpr,
) -> tl.tuple:
    """Keys and values [tile_slots, padded_size] at slots `at`; 0 where nothing is."""
    keys, values, key_slot, key_dim, value_slot, value_dim = store
    dims = tl.arange(0, padded_size)
    key_at = keys + at[:, None] * key_slot + dims[None, :] * key_dim
    value_at = values + at[:, None] * value_slot + dims[None, :] * value_dim
    if is_masked:
        is_held = is_there[:, None] & (dims[None, :] < size)
        key = tl.load(key_at, mask=is_held, other=0.0)
        value = tl.load(value_at, mask=is_held, other=0.0)
    elif size != padded_size:
        is_held = dims[None, :] < size
        key = tl.load(key_at, mask=is_held, other=0.0)
        value = tl.load(value_at, mask=is_held, other=0.0)
    else:
        key = tl.load(key_at)
        value = tl.load(value_at)
    return key, value


@triton.jit
def _read_tile(
    state: tl.tuple,
    queries: tl.tensor,
    columns: tl.tensor,
    seen: tl.tuple,
    item: tl.tuple,
    store: tl.tuple,
    scale: float,
    softcap: float,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    is_capped: tl.constexpr,
    is_masked: tl.constexpr,
) -> tl.tuple:
    """The running maximum, sum and output [rows], [rows], [rows, D] after one tile of slots.

    `columns` int32 [tile_slots] says which slots of the item, `seen` has low and high of each
    row, `item` where its slots are, how many, the position of the first, and its run; `store`
    keys and values of the KV head, and their strides by slot and by dimension.
    """
    top, total, out = state
    low, high = seen
    slots, num_slots, position, run = item
    is_scattered = (columns * 0 + run) < 0
    if is_masked:
        is_there = columns < num_slots
        found = tl.load(slots + columns, mask=is_there & is_scattered, other=0)
    else:
        is_there = is_scattered
        found = tl.load(slots + columns, mask=is_scattered, other=0)
    at = tl.where(is_scattered, found, run + columns).to(tl.int64)
    key, value = _loaded(store, at, is_there, size, padded_size, is_masked)
    scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
    if is_capped:
        scores = _softcapped(scores, softcap)
    scores *= _LOG2_E
    if is_masked:
        at_position = (position + columns)[None, :]
        is_seen = (at_position >= low[:, None]) & (at_position < high[:, None])
        scores = tl.where(is_seen & is_there[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    base = new_top
    if is_masked:  # a row that has seen nothing yet stays at no score
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    out = tl.dot(weights.to(value.dtype), value, out * shrink[:, None], input_precision="ieee")
    return new_top, total, out


@triton.jit
def attend_kernel(
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_lse: tl.tensor,
    items: tl.tensor,
    order: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    slots: tl.tensor,
    query_token: int,
    query_head: int,
    key_head: int,
    key_slot: int,
    key_dim: int,
    value_head: int,
    value_slot: int,
    value_dim: int,
    num_groups: int,
    scale: float,
    softcap: float,
    heads: tl.constexpr,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_slots: tl.constexpr,
    is_capped: tl.constexpr,
) -> None:
    """One item and one KV head a program; the KV heads of an item are neighbours.

    Tensors:
        queries: [T, H, D], strides `query_token`, `query_head`, 1.
        keys, values: [G, N, D] of one layer, with their strides.
        out: [T, H, D] contiguous. Changes: rows whose item is final.
        partial_out: float32 [P, H, D]. Changes: rows of the other items.
        partial_lse: float32 [P, H], log-sum-exp in base 2; -inf where nothing is seen.
        items: int32 [items, 9], see `ITEM_FIELDS`.
        order, low, high: int32 [T] by place: the query, and the positions it sees.
        slots: int32 [S].

    `heads` query heads of a KV head are at most `tile_rows`.
    """
    program = tl.program_id(0)
    group = program % num_groups
    item = items + (program // num_groups) * _NUM_FIELDS
    num_places = tl.load(item + 1)
    if num_places > 0:
        first_place = tl.load(item)
        num_slots = tl.load(item + 3)
        num_head = tl.load(item + 5)
        num_full = tl.load(item + 6)
        partial = tl.load(item + 8)
        rows = tl.arange(0, tile_rows)
        place = rows // heads
        head = group * heads + rows % heads
        is_row = rows < num_places * heads
        dims = tl.arange(0, padded_size)
        is_used = is_row[:, None] & (dims[None, :] < size)
        token = tl.load(order + first_place + place, mask=is_row, other=0).to(tl.int64)
        seen = (
            tl.load(low + first_place + place, mask=is_row, other=0),
            tl.load(high + first_place + place, mask=is_row, other=0),
        )
        query_at = queries + token * query_token + head * query_head
        query = tl.load(query_at[:, None] + dims[None, :], mask=is_used, other=0.0)
        where = (slots + tl.load(item + 2), num_slots, tl.load(item + 4), tl.load(item + 7))
        store = (
            keys + group.to(tl.int64) * key_head,
            values + group.to(tl.int64) * value_head,
            key_slot,
            key_dim,
            value_slot,
            value_dim,
        )
        columns = tl.arange(0, tile_slots)
        top = tl.full([tile_rows], float("-inf"), tl.float32)
        total = tl.zeros([tile_rows], tl.float32)
        result = tl.zeros([tile_rows, padded_size], tl.float32)
        for first in range(num_head, num_head + num_full, tile_slots):
            top, total, result = _read_tile(
                (top, total, result),
                query,
                first + columns,
                seen,
                where,
                store,
                scale,
                softcap,
                size,
                padded_size,
                is_capped,
                is_masked=False,
            )
        for first in range(0, num_slots - num_full, tile_slots):
            top, total, result = _read_tile(
                (top, total, result),
                query,
                tl.where(first < num_head, first, first + num_full) + columns,
                seen,
                where,
                store,
                scale,
                softcap,
                size,
                padded_size,
                is_capped,
                is_masked=True,
            )
        is_empty = total == 0.0
        result = result / tl.where(is_empty, 1.0, total)[:, None]
        num_heads = num_groups * heads
        if partial < 0:
            row = (token * num_heads + head)[:, None] * size
            tl.store(out + row + dims[None, :], result.to(out.dtype.element_ty), mask=is_used)
        else:
            place_row = (partial + place).to(tl.int64) * num_heads + head
            lse = tl.where(
                is_empty, float("-inf"), top + tl.log2(tl.where(is_empty, 1.0, total))
            )
            tl.store(
                partial_out + place_row[:, None] * size + dims[None, :], result, mask=is_used
            )
            tl.store(partial_lse + place_row, lse, mask=is_row)
