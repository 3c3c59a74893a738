# mypy: disallow-untyped-decorators=False
"""KV write fused with rotary: a layer's new tokens in one launch.

    fused [T, H + 2 G, D]   queries  --turned--> in place
                            keys     --turned--> the store
                            values   ----------> the store

Cosines and sines come ready, for plain and for three-axis positions alike: they are made once a
step and read by every layer. Made here from positions, they would save 2 C of about 128 D bytes
that a token moves and cost C sines and cosines in every layer, so that does not pay.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["copy_kernel", "turn_kernel", "turn_tile", "turn_to_store", "write_to_store"]

_TILE = 1024
"""Pairs of a program: its heads by half a head."""


def turn_to_store(
    fused: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> None:
    """Turn queries in place; write turned keys, and values, to their slots.

    Args:
        fused: [T, H + 2 G, D] queries, keys and values, the last axis dense.
        cos: [T, C], C in [1, D / 2], contiguous.
        sin: [T, C], contiguous.
        keys: [G, N, D] of one layer, any strides.
        values: [G, N, D].
        slots: int64 [T]; a token with a negative one is not written.

    Changes: the queries of `fused`, the store.
    """
    num_tokens, num_heads, size = fused.shape
    if num_tokens == 0:
        return
    half = cos.shape[1]
    heads, pairs, num_warps = turn_tile(num_heads, half)
    rest = size - 2 * half
    turn_kernel[(num_tokens, triton.cdiv(num_heads, heads))](
        fused,
        cos,
        sin,
        keys,
        values,
        slots,
        num_heads - 2 * keys.shape[0],
        keys.shape[0],
        *fused.stride(),
        *keys.stride(),
        *values.stride(),
        half=half,
        rest=rest,
        heads=heads,
        pairs=pairs,
        others=triton.next_power_of_2(rest) if rest else 0,
        num_warps=num_warps,
    )


def write_to_store(
    keys: Tensor, values: Tensor, key_store: Tensor, value_store: Tensor, slots: Tensor
) -> None:
    """Write [T, G, D] keys and values to slots of [G, N, D]; a negative one is not written.

    Changes: the store.
    """
    num_tokens, num_groups, size = keys.shape
    if num_tokens == 0:
        return
    heads, columns, num_warps = turn_tile(num_groups, size)
    copy_kernel[(num_tokens, triton.cdiv(num_groups, heads))](
        keys,
        values,
        key_store,
        value_store,
        slots,
        num_groups,
        *keys.stride(),
        *values.stride(),
        *key_store.stride(),
        *value_store.stride(),
        size=size,
        heads=heads,
        columns=columns,
        num_warps=num_warps,
    )


def turn_tile(num_heads: int, width: int) -> tuple[int, int, int]:
    """Heads and columns of a program, and its warps. Pure."""
    columns = triton.next_power_of_2(width)
    heads = max(1, min(triton.next_power_of_2(num_heads), _TILE // columns))
    return heads, columns, min(4, max(1, heads * columns // 256))


@triton.jit
def turn_kernel(
    fused: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    num_queries: tl.tensor,
    num_groups: tl.tensor,
    fused_token: tl.tensor,
    fused_head: tl.tensor,
    fused_one: tl.tensor,
    key_group: tl.tensor,
    key_slot: tl.tensor,
    key_one: tl.tensor,
    value_group: tl.tensor,
    value_slot: tl.tensor,
    value_one: tl.tensor,
    half: tl.constexpr,
    rest: tl.constexpr,
    heads: tl.constexpr,
    pairs: tl.constexpr,
    others: tl.constexpr,
) -> None:
    """Some heads of one token. Changes: queries of `fused`, `keys` and `values`."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token + tl.arange(0, 1)[:, None])  # as a block: masks broadcast
    head = (tl.program_id(1) * heads + tl.arange(0, heads))[:, None]
    is_query = head < num_queries
    is_key = (head >= num_queries) & (head < num_queries + num_groups) & (slot >= 0)
    is_value = (head >= num_queries + num_groups) & (head < num_queries + 2 * num_groups)
    group = (head - num_queries) % num_groups
    source = fused + token * fused_token + head * fused_head
    key_place = keys + slot * key_slot + group.to(tl.int64) * key_group
    value_place = values + slot * value_slot + group.to(tl.int64) * value_group
    stored = is_value & (slot >= 0)

    pair = tl.arange(0, pairs)[None, :]
    inside = pair < half
    known = (is_query | is_key | stored) & inside
    first = tl.load(source + pair * fused_one, mask=known, other=0.0)
    second = tl.load(source + (pair + half) * fused_one, mask=known, other=0.0)
    c = tl.load(cos + token * half + pair, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + token * half + pair, mask=inside, other=0.0).to(tl.float32)
    one, two = first.to(tl.float32), second.to(tl.float32)
    low = (one * c - two * s).to(first.dtype)
    high = (two * c + one * s).to(first.dtype)
    tl.store(source + pair * fused_one, low, mask=is_query & inside)
    tl.store(source + (pair + half) * fused_one, high, mask=is_query & inside)
    tl.store(key_place + pair * key_one, low, mask=is_key & inside)
    tl.store(key_place + (pair + half) * key_one, high, mask=is_key & inside)
    tl.store(value_place + pair * value_one, first, mask=stored & inside)
    tl.store(value_place + (pair + half) * value_one, second, mask=stored & inside)
    if rest > 0:
        other = tl.arange(0, others)[None, :]
        column = other + 2 * half
        beyond = other < rest
        kept = tl.load(source + column * fused_one, mask=(is_key | stored) & beyond, other=0.0)
        tl.store(key_place + column * key_one, kept, mask=is_key & beyond)
        tl.store(value_place + column * value_one, kept, mask=stored & beyond)


@triton.jit
def copy_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    key_store: tl.tensor,
    value_store: tl.tensor,
    slots: tl.tensor,
    num_groups: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    key_one: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    value_one: tl.tensor,
    key_store_group: tl.tensor,
    key_store_slot: tl.tensor,
    key_store_one: tl.tensor,
    value_store_group: tl.tensor,
    value_store_slot: tl.tensor,
    value_store_one: tl.tensor,
    size: tl.constexpr,
    heads: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Some heads of keys and values of one token. Changes: the stores."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token + tl.arange(0, 1)[:, None])  # as a block: masks broadcast
    head = (tl.program_id(1) * heads + tl.arange(0, heads))[:, None].to(tl.int64)
    column = tl.arange(0, columns)[None, :]
    inside = (head < num_groups) & (column < size) & (slot >= 0)
    new_keys = tl.load(
        keys + token * key_token + head * key_head + column * key_one, mask=inside, other=0.0
    )
    new_values = tl.load(
        values + token * value_token + head * value_head + column * value_one,
        mask=inside,
        other=0.0,
    )
    key_place = key_store + slot * key_store_slot + head * key_store_group
    value_place = value_store + slot * value_store_slot + head * value_store_group
    tl.store(key_place + column * key_store_one, new_keys, mask=inside)
    tl.store(value_place + column * value_store_one, new_values, mask=inside)
