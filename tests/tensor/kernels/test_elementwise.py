"""Norms, gates and rotations against their formulas."""

from __future__ import annotations

import pytest
import torch

from mmserve.kernels import (
    activation,
    gelu_and_mul,
    rms_norm,
    rotary,
    silu_and_mul,
)
from mmserve.kernels.linear import Linear


def test_rms_norm_divides_by_the_root_mean_square() -> None:
    """The result is x / sqrt(mean(x^2) + eps) * weight, and x stays as it was."""
    hidden, weight = torch.randn(5, 12), torch.randn(12)
    before = hidden.clone()
    expected = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(rms_norm(hidden, weight, 1e-3), expected)
    assert torch.equal(hidden, before)


def test_silu_and_mul_gates_the_second_half_by_the_first() -> None:
    """The first half goes through x * sigmoid(x)."""
    gate, up = torch.randn(3, 7), torch.randn(3, 7)
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(silu_and_mul(torch.cat([gate, up], dim=-1)), expected)


def test_a_wide_gain_is_applied_before_rounding() -> None:
    """A float32 gain of half-precision states multiplies what is not rounded yet."""
    torch.manual_seed(3)
    hidden, weight = torch.randn(5, 8).bfloat16(), torch.randn(8)
    wide = hidden.float()
    expected = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-3).rsqrt() * weight
    assert torch.equal(rms_norm(hidden, weight, 1e-3), expected.bfloat16())


def test_gelu_and_mul_gates_the_second_half_by_the_first() -> None:
    """[T, 2 F] becomes gelu(first F) * second F, by the tanh approximation."""
    torch.manual_seed(4)
    gate, up = torch.randn(3, 6), torch.randn(3, 6)
    expected = activation("gelu_pytorch_tanh", gate) * up
    torch.testing.assert_close(gelu_and_mul(torch.cat([gate, up], dim=-1)), expected)


def test_rotary_leaves_what_has_no_angle() -> None:
    """With angles for fewer pairs, the first dimensions turn and the others stay."""
    torch.manual_seed(5)
    states, angles = torch.randn(4, 3, 10), torch.randn(4, 3)
    turned = rotary(states, angles.cos(), angles.sin())
    assert torch.equal(turned[..., 6:], states[..., 6:])
    torch.testing.assert_close(
        turned[..., :6], rotary(states[..., :6], angles.cos(), angles.sin())
    )


def test_rotary_turns_pairs_as_complex_numbers() -> None:
    """(x1 + i x2) is multiplied by e^(i angle) for partners half a head apart."""
    states, angles = torch.randn(4, 3, 10), torch.randn(4, 5)
    pairs = torch.complex(states[..., :5], states[..., 5:])
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rotary(states, angles.cos(), angles.sin()), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("num_rows", [0, 1, 5])
def test_linear_is_the_matrix_product(dtype: torch.dtype, num_rows: int) -> None:
    """A packed weight gives x @ weight.T + bias for any number of rows, also none."""
    weight, bias, x = torch.randn(6, 9), torch.randn(6), torch.randn(num_rows, 9)
    layer = Linear(weight.to(dtype), bias.to(dtype))
    expected = (x @ weight.T + bias).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(layer(x.to(dtype)), expected, atol=tolerance, rtol=tolerance)


def test_unknown_activation_is_an_error() -> None:
    """A word that no checkpoint uses is not taken for another function."""
    with pytest.raises(KeyError):
        activation("swiglu", torch.zeros(1))
