# mypy: disallow-untyped-decorators=False
"""Gates of the feed-forward part: both halves are read once, the product is written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["gate_and_mul", "gate_kernel"]

_COLUMNS = 1024
_NUM_WARPS = 4
_CODES = {"silu": 0, "gelu_pytorch_tanh": 1}


def gate_and_mul(activation: str, gate_up: Tensor) -> Tensor:
    """activation(gate) * up of [..., 2 F], the halves side by side; gives [..., F].

    Known are `silu` and `gelu_pytorch_tanh`; the twins are `elementwise.silu_and_mul` and
    `gelu_and_mul`. Pure. Arithmetic is float32, rounded once. Raises KeyError if unknown.
    """
    code = _CODES[activation]
    size = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel() == 0:
        return out
    num_rows = out.numel() // size
    grid = (num_rows, triton.cdiv(size, _COLUMNS))
    gate_kernel[grid](
        gate_up.contiguous(), out, size, code=code, columns=_COLUMNS, num_warps=_NUM_WARPS
    )
    return out


@triton.jit
def gate_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    code: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Some values of one row of [T, 2 size]. Changes: `out` [T, size].

    The tanh form of gelu is x * sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3), because
    1 + tanh(z) = 2 sigmoid(2 z).
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(gate_up + (row * 2 + 1) * size + column, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    bend = x
    if code == 1:
        bend = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    result = x * tl.sigmoid(bend) * up.to(tl.float32)
    tl.store(out + row * size + column, result.to(gate.dtype), mask=inside)
