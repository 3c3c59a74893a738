"""Norms, gates and rotations of one layer, as a few passes over memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

__all__ = ["activation", "gelu_and_mul", "quick_gelu", "rms_norm", "rotary", "silu_and_mul"]


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis.

    Args:
        hidden: [..., E] any float dtype.
        weight: [E] gain, of the dtype of `hidden`, or float32: multiplied before rounding.
        eps: added to the mean square.

    Pure. The mean is taken in float32.
    """
    wide = hidden.float()
    mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = mean_square.square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
    normed = torch.mul(wide, scale)
    if weight.dtype == torch.float32:
        return normed.mul_(weight).to(hidden.dtype)
    return normed.to(hidden.dtype).mul_(weight)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2 F], the two halves side by side; gives [..., F]. Pure."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_and_mul(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up of [..., 2 F] by the tanh approximation; gives [..., F]. Pure."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def rotary(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each head's halves (x1, x2) by the position's angle.

    Args:
        states: [T, H, D], first and second half of its first 2 C dimensions are the pairs'
            partners; the others stay.
        cos: [T, C] of the same dtype.
        sin: [T, C] of the same dtype.

    Returns:
        [T, H, D], contiguous. Pure.
    """
    half = cos.shape[-1]
    first, second = states[..., :half], states[..., half : 2 * half]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    turned[..., :half] = (first * cos).addcmul_(second, sin, value=-1)
    turned[..., half : 2 * half] = (second * cos).addcmul_(first, sin)
    if 2 * half < states.shape[-1]:
        turned[..., 2 * half :] = states[..., 2 * half :]
    return turned


def quick_gelu(hidden: Tensor) -> Tensor:
    """Sigmoid approximation of gelu: x * sigmoid(1.702 x). Pure."""
    return torch.sigmoid(hidden * 1.702).mul_(hidden)


def activation(name: str, hidden: Tensor) -> Tensor:
    """The activation that checkpoints call `name`. Pure. Raises KeyError if unknown."""
    if name == "quick_gelu":
        return quick_gelu(hidden)
    if name in ("gelu_pytorch_tanh", "gelu_new"):
        return F.gelu(hidden, approximate="tanh")
    if name == "gelu":
        return F.gelu(hidden)
    if name == "relu":
        return F.relu(hidden)
    if name == "silu":
        return F.silu(hidden)
    raise KeyError(name)
