"""Compiled norms and gates: near a float64 reference, each row by itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.kernels.native import NativeOps, Unbuildable
from mmserve.kernels.ops import TorchOps

try:
    OPS = NativeOps()
except Unbuildable as reason:
    pytest.skip(f"no native library: {reason}", allow_module_level=True)

SIZES = [1, 7, 16, 63, 64, 576, 1001]
EPS = 1e-5


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal values that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def normed(x: Tensor, gain: Tensor) -> Tensor:
    """The norm in float64."""
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * gain.double()


@pytest.mark.parametrize("size", SIZES)
def test_a_norm_equals_its_formula(size: int) -> None:
    """For sizes that fill no vector, and rows of very different length."""
    x = drawn(5, size, seed=1) * torch.logspace(-3, 3, 5)[:, None]
    gain = drawn(size, seed=2)
    assert torch.allclose(OPS.norm(x, gain, EPS).double(), normed(x, gain), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_add_norm_keeps_the_sum_and_gives_its_norm(size: int) -> None:
    """`hidden` becomes the float32 sum to the bit."""
    hidden, delta, gain = drawn(5, size, seed=1), drawn(5, size, seed=2), drawn(size, seed=3)
    total = hidden + delta
    found = OPS.add_norm(hidden, delta, gain, EPS)
    assert torch.equal(hidden, total)
    assert torch.allclose(found.double(), normed(total, gain), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_gates_equal_their_formulas(size: int) -> None:
    """The silu and the tanh approximation of gelu, far from zero too."""
    gate_up = drawn(6, 2 * size, seed=1) * torch.logspace(-3, 3, 6)[:, None]
    gate, up = gate_up.double().chunk(2, dim=-1)
    for name, exact in (
        ("silu", F.silu(gate) * up),
        ("gelu_pytorch_tanh", F.gelu(gate, approximate="tanh") * up),
    ):
        error = (OPS.gate(name, gate_up) - exact).abs()
        assert (error <= 1e-6 * exact.abs() + 2e-7 * (gate * up).abs()).all()


def test_a_row_is_the_same_alone_and_for_any_number_of_threads() -> None:
    """One row of 200 that are shared among threads, to the bit."""
    x, gain = drawn(200, 576, seed=1), drawn(576, seed=2)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    norms, gates = OPS.norm(x, gain, EPS), OPS.gate("silu", x)
    sums = OPS.add_norm(x.clone(), x, gain, EPS)
    torch.set_num_threads(before)
    for row in (0, 77, 199):
        one = x[row : row + 1]
        assert torch.equal(OPS.norm(one, gain, EPS), norms[row : row + 1])
        assert torch.equal(OPS.add_norm(one.clone(), one, gain, EPS), sums[row : row + 1])
        assert torch.equal(OPS.gate("silu", one), gates[row : row + 1])


def test_no_rows_give_no_rows() -> None:
    """Nothing is read where there is nothing."""
    none, gain = torch.empty(0, 64), torch.ones(64)
    assert OPS.norm(none, gain, EPS).shape == (0, 64)
    assert OPS.add_norm(none, none, gain, EPS).shape == (0, 64)
    assert OPS.gate("silu", none).shape == (0, 32)


def test_what_is_not_float32_or_in_order_goes_through_torch() -> None:
    """bfloat16 and strided rows give what torch's ops give, to the bit."""
    reference = TorchOps()
    wide = drawn(4, 128, seed=1)
    for x in (wide.bfloat16(), wide[:, ::2], wide.T.contiguous().T):
        gain = torch.ones(x.shape[1], dtype=x.dtype)
        assert torch.equal(OPS.norm(x, gain, EPS), reference.norm(x, gain, EPS))
        assert torch.equal(OPS.gate("silu", x), reference.gate("silu", x))
        ours, theirs = x.clone(), x.clone()
        found = OPS.add_norm(ours, x, gain, EPS)
        assert torch.equal(found, reference.add_norm(theirs, x, gain, EPS))
        assert torch.equal(ours, theirs)


def test_a_delta_of_another_shape_is_refused() -> None:
    """A shorter delta would be read beyond its end."""
    with pytest.raises(ValueError, match="delta"):
        OPS.add_norm(drawn(4, 64), drawn(3, 64), torch.ones(64), EPS)
