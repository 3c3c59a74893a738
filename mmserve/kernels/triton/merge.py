# mypy: disallow-untyped-decorators=False
"""The merge kernel: joins what a query read in several items by their log-sum-exps.

    out = sum over items of out_i * 2 ** (lse_i - top) / sum of 2 ** (lse_i - top)

Source: FlashAttention (2022), section 3.1, and the cascade's merge operator (FlashInfer, 2024).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["merge_kernel"]


@triton.jit
def merge_kernel(
    out: tl.tensor,
    partial_out: tl.tensor,
    partial_lse: tl.tensor,
    joins: tl.tensor,
    sources: tl.tensor,
    num_heads: int,
    size: tl.constexpr,
    padded_size: tl.constexpr,
    tile_heads: tl.constexpr,
) -> None:
    """One query and `tile_heads` of its heads a program.

    Tensors:
        out: [T, H, D] contiguous. Changes: the rows of the joined queries.
        partial_out: float32 [P, H, D].
        partial_lse: float32 [P, H] in base 2.
        joins: int32 [J, 3]: the query (-1: nothing to do) and its range [first, end) of
            sources; an empty range gives zeros.
        sources: int32 [P], rows of the partial outputs.
    """
    join = joins + tl.program_id(0) * 3
    token = tl.load(join)
    if token >= 0:
        first = tl.load(join + 1)
        end = tl.load(join + 2)
        head = tl.program_id(1) * tile_heads + tl.arange(0, tile_heads)
        dims = tl.arange(0, padded_size)
        is_head = head < num_heads
        is_used = is_head[:, None] & (dims[None, :] < size)
        top = tl.full([tile_heads], float("-inf"), tl.float32)
        total = tl.zeros([tile_heads], tl.float32)
        result = tl.zeros([tile_heads, padded_size], tl.float32)
        for i in range(first, end):
            row = tl.load(sources + i).to(tl.int64) * num_heads + head
            lse = tl.load(partial_lse + row, mask=is_head, other=float("-inf"))
            part = tl.load(
                partial_out + row[:, None] * size + dims[None, :], mask=is_used, other=0.0
            )
            new_top = tl.maximum(top, lse)
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = tl.exp2(top - base)
            weight = tl.exp2(lse - base)
            total = total * shrink + weight
            result = result * shrink[:, None] + part * weight[:, None]
            top = new_top
        result = result / tl.where(total == 0.0, 1.0, total)[:, None]
        at = (token.to(tl.int64) * num_heads + head)[:, None] * size + dims[None, :]
        tl.store(out + at, result.to(out.dtype.element_ty), mask=is_used)
