"""Products with weights of few bits: near the full ones, and the same in any company."""

from __future__ import annotations

import pytest
import torch

from mmserve.kernels.quantized import QuantizedLinear

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


@pytest.mark.parametrize(("bits", "error"), [(8, 0.02), (4, 0.13)])
@pytest.mark.parametrize("num_inputs", [96, 80, 7])
def test_few_bits_are_near_the_full_product(bits: int, error: float, num_inputs: int) -> None:
    """The relative error is that of rounding, also where blocks do not fill the row."""
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(48, num_inputs, generator=generator)
    bias = torch.randn(48, generator=generator)
    x = torch.randn(3, 5, num_inputs, generator=generator)
    expected = torch.nn.functional.linear(x, weight, bias)
    found = QuantizedLinear(weight, bias, bits=bits)(x)
    assert found.shape == expected.shape
    assert (found - expected).norm() / expected.norm() < error


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_does_not_feel_its_neighbours(bits: int) -> None:
    """Alone or among rows a thousand times larger, a row's result is the same to the bit."""
    generator = torch.Generator().manual_seed(1)
    product = QuantizedLinear(torch.randn(64, 96, generator=generator), bits=bits)
    rows = torch.randn(33, 96, generator=generator)
    rows[1::2] *= 1000
    together = product(rows)
    alone = torch.cat([product(row[None]) for row in rows])
    assert torch.equal(together, alone)


def test_zero_rows_and_a_zero_weight_are_fine() -> None:
    """No rows give no rows; a block of zeros stays zero."""
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    weight[:, :32] = 0
    product = QuantizedLinear(weight, bits=4)
    assert product(torch.empty(0, 64)).shape == (0, 8)
    x = torch.zeros(1, 64)
    x[:, :32] = 5
    assert not product(x).any()
