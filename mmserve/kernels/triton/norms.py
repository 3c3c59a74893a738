# mypy: disallow-untyped-decorators=False
"""Root-mean-square norms: one read and one write of memory, also where a sum comes first."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_rms_norm", "norm_tile", "rms_norm"]

_TILE = 2048
"""Elements of a program where rows are short."""


def rms_norm(hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis; the twin is `elementwise.rms_norm`.

    Args:
        hidden: [..., E] any float dtype; heads of a fused projection are read in place.
        gain: [E] of the dtype of `hidden`, or float32: multiplied before rounding.
        eps: added to the mean square.

    Returns:
        [..., E], contiguous. Pure. Arithmetic is float32.
    """
    out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    _launch(hidden, None, gain, out, eps)
    return out


def add_rms_norm(hidden: Tensor, delta: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Add `delta` to `hidden`, both [T, E]; gives the norm of the rounded sum.

    Changes: `hidden`.
    """
    out = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    _launch(hidden, delta.contiguous(), gain, out, eps)
    return out


def norm_tile(size: int) -> tuple[int, int, int]:
    """Rows and columns of a program for rows of `size`, and its warps. Pure."""
    columns = triton.next_power_of_2(size)
    rows = max(1, min(16, _TILE // columns))
    return rows, columns, min(16, max(1, rows * columns // 512))


def _launch(
    hidden: Tensor, delta: Tensor | None, gain: Tensor, out: Tensor, eps: float
) -> None:
    size = hidden.shape[-1]
    num_rows = hidden.numel() // size
    if num_rows == 0:
        return
    source = hidden
    if hidden.stride(-1) != 1 or hidden.dim() > 3:
        source = hidden.contiguous()
    if source.dim() == 3:
        inner, outer_stride, inner_stride = source.shape[1], source.stride(0), source.stride(1)
    else:
        inner, outer_stride = 1, source.stride(0) if source.dim() == 2 else size
        inner_stride = 0
    rows, columns, num_warps = norm_tile(size)
    norm_kernel[(triton.cdiv(num_rows, rows),)](
        source,
        delta,
        gain,
        out,
        num_rows,
        inner,
        outer_stride,
        inner_stride,
        eps,
        size,
        has_delta=delta is not None,
        rows=rows,
        columns=columns,
        num_warps=num_warps,
    )


@triton.jit
def norm_kernel(
    hidden: tl.tensor,
    delta: tl.tensor,
    gain: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    inner: tl.tensor,
    outer_stride: tl.tensor,
    inner_stride: tl.tensor,
    eps: tl.tensor,
    size: tl.constexpr,
    has_delta: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Norms of some rows of [num_rows, size]; row r lies at (r // inner, r % inner).

    Changes: `out`; with a delta, [num_rows, size] contiguous, also `hidden`.
    """
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)[:, None]
    column = tl.arange(0, columns)[None, :]
    inside = (row < num_rows) & (column < size)
    place = hidden + (row // inner) * outer_stride + (row % inner) * inner_stride + column
    states = tl.load(place, mask=inside, other=0.0)
    wide = states.to(tl.float32)
    if has_delta:
        added = tl.load(delta + row * size + column, mask=inside, other=0.0).to(tl.float32)
        states = (wide + added).to(states.dtype)
        tl.store(place, states, mask=inside)
        wide = states.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=1) / size
    normed = wide * tl.rsqrt(mean_square + eps)[:, None]
    weight = tl.load(gain + column, mask=column < size, other=0.0)
    if weight.dtype != tl.float32:  # as the twin, and checkpoints' own code, round
        normed = normed.to(states.dtype).to(tl.float32)
    result = (normed * weight.to(tl.float32)).to(states.dtype)
    tl.store(out + row * size + column, result, mask=inside)
