"""Compiled products: near a float64 reference, and the same to the bit in any company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmserve.kernels.elementwise import activation as activated
from mmserve.kernels.native import NativeLinear, Unbuildable
from mmserve.kernels.native.library import native_library
from mmserve.kernels.native.linear import codes_and_scales, tile_rows, values_of

try:
    native_library()
except Unbuildable as reason:
    pytest.skip(f"no native library: {reason}", allow_module_level=True)

SHAPES = [(1, 1), (33, 7), (45, 70), (64, 96), (100, 1500), (7, 33), (576, 576), (256, 1023)]
ACTIVATIONS = ["gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu", "silu"]
BITS = [None, 8, 4]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs the test with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Normal values that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stands_for(weight: Tensor, bits: int | None) -> Tensor:
    """The weight that the product has after rounding, float64."""
    if bits is None:
        return weight.double()
    return values_of(*codes_and_scales(weight, bits), weight.shape[1]).double()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_a_product_equals_the_sum_in_float64(
    num_outputs: int, num_inputs: int, bits: int | None, threads: int
) -> None:
    """For shapes that fill no panel, no block and no tile, and for 1 to 90 rows."""
    weight, bias = drawn(num_outputs, num_inputs, seed=1), drawn(num_outputs, seed=2)
    product = NativeLinear(weight, bias, bits=bits)
    x = drawn(90, num_inputs, seed=3)
    exact = x.double() @ stands_for(weight, bits).T + bias
    size = x.double().abs() @ stands_for(weight, bits).abs().T + bias.abs()
    for rows in (1, 2, 5, 12, 13, 40, 48, 90):
        error = (product(x[:rows]) - exact[:rows]).abs() / size[:rows]
        assert error.max() < 1e-6
    assert (product.num_inputs, product.num_outputs) == (num_inputs, num_outputs)


@pytest.mark.parametrize("bits", BITS)
def test_many_inputs_and_rows_go_through_parts(bits: int | None, threads: int) -> None:
    """Sums that are kept in the output between parts of the inputs stay exact sums."""
    weight, x = drawn(40, 2111, seed=1), drawn(300, 2111, seed=2)
    product = NativeLinear(weight, bits=bits)
    exact = x.double() @ stands_for(weight, bits).T
    assert (product(x) - exact).abs().max() < 1e-6 * 2111
    assert torch.equal(product(x[123:223]), product(x)[123:223])
    assert (product(x[123:124]) - exact[123:124]).abs().max() < 1e-6 * 2111


@pytest.mark.parametrize("num_bits", [8, 16, 24])
def test_weights_of_fewer_bits_are_fewer_parts(num_bits: int) -> None:
    """What a bfloat16 checkpoint brings costs a third, and is as exact."""
    weight = (drawn(70, 330, seed=1).view(torch.int32) & -(1 << 24 - num_bits)).view(
        torch.float32
    )
    x = drawn(64, 330, seed=2)
    exact = x.double() @ weight.double().T
    product = NativeLinear(weight)
    assert product.num_parts == num_bits // 8
    error = (product(x) - exact).abs() / (x.double().abs() @ weight.double().abs().T)
    assert error.max() < 1e-6


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_checkpoints(name: str, bits: int | None) -> None:
    """Each activation of the biased product, far from zero too, as float64 has it."""
    weight, bias = drawn(45, 70, seed=1), drawn(45, seed=2) * 30
    x = drawn(9, 70, seed=3)
    exact = activated(name, x.double() @ stands_for(weight, bits).T + bias.double())
    found = NativeLinear(weight, bias, activation=name, bits=bits)(x)
    assert (found - exact).abs().max() < 2e-5


@settings(max_examples=40)
@given(
    num_outputs=st.integers(1, 200),
    num_inputs=st.integers(1, 1400),
    rows=st.integers(1, 120),
    bits=st.sampled_from(BITS),
    data=st.data(),
)
def test_a_row_does_not_feel_its_neighbours(
    num_outputs: int, num_inputs: int, rows: int, bits: int | None, data: st.DataObject
) -> None:
    """Alone, or in any group with rows a thousand times larger, a row's result is the same.

    Where the processor has matrix tiles, a row among many is the same in any company of many,
    and the same but for the last bits among few.
    """
    product = NativeLinear(drawn(num_outputs, num_inputs, seed=1), bits=bits, activation="silu")
    x = drawn(rows, num_inputs, seed=2)
    x[1::2] *= 1000
    together = product(x)
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    for last in (end, begin + 1):
        found, expected = product(x[begin:last]), together[begin:last]
        many = tile_rows() or rows + 1
        if (last - begin >= many) == (rows >= many):
            assert torch.equal(found, expected)
        else:
            largest = x[begin:last].abs().amax(1, keepdim=True)
            assert ((found - expected).abs() < 3e-6 * num_inputs * largest).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("num_outputs", "rows"), [(576, 1), (40, 200), (2000, 30)])
def test_the_number_of_threads_is_not_felt(
    num_outputs: int, rows: int, bits: int | None
) -> None:
    """One thread or three, many panels or few, the result is the same to the bit."""
    product = NativeLinear(drawn(num_outputs, 700, seed=1), bits=bits)
    x = drawn(rows, 700, seed=2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = product(x)
    torch.set_num_threads(3)
    found = product(x)
    torch.set_num_threads(before)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("bits", BITS)
def test_shapes_and_strides_of_the_input_do_not_matter(bits: int | None) -> None:
    """More axes, a transposed view, another dtype and no rows are all taken."""
    product = NativeLinear(drawn(20, 48, seed=1), bits=bits)
    x = drawn(6, 48, seed=2)
    expected = product(x)
    assert torch.equal(product(x.view(2, 3, 48)), expected.view(2, 3, 20))
    assert torch.equal(product(x.T.contiguous().T), expected)
    assert torch.equal(product(x[0]), expected[0])
    assert product(x.double()).dtype == torch.float64
    assert product(torch.empty(0, 48)).shape == (0, 20)
    assert product(torch.empty(2, 0, 48)).shape == (2, 0, 20)


def test_inputs_of_another_size_are_refused() -> None:
    """A row that is too short would be read beyond its end."""
    with pytest.raises(ValueError, match="47 inputs, the weight has 48"):
        NativeLinear(drawn(20, 48))(drawn(3, 47))


@pytest.mark.parametrize(("bits", "most"), [(8, 0.0065), (4, 0.11)])
@pytest.mark.parametrize("num_inputs", [96, 80, 7])
def test_few_bits_are_near_the_full_product(bits: int, most: float, num_inputs: int) -> None:
    """The relative error is that of rounding to codes, also where blocks do not fill a row."""
    weight, x = drawn(480, num_inputs, seed=1), drawn(50, num_inputs, seed=2)
    expected = x @ weight.T
    found = NativeLinear(weight, bits=bits)(x)
    assert (found - expected).norm() / expected.norm() < most


@pytest.mark.parametrize("bits", [8, 4])
def test_a_weight_is_within_half_a_step_of_its_code(bits: int) -> None:
    """No value moves by more than half a step, up to how far a bfloat16 scale falls short."""
    weight = drawn(64, 96, seed=1) * torch.logspace(-6, 6, 64)[:, None]
    codes, scales = codes_and_scales(weight, bits)
    moved = (values_of(codes, scales, 96) - weight).abs().view(64, 3, 32)
    top = (1 << bits - 1) - 1
    short = scales.float() * top * 2.0**-8
    assert (moved <= torch.maximum(scales.float() / 2, short).unsqueeze(2) * 1.001).all()
    assert codes.abs().max() == top


@pytest.mark.parametrize("bits", [8, 4])
def test_a_block_of_zeros_stays_zero(bits: int) -> None:
    """Zeros have no scale to divide by, and stay zero beside blocks that have one."""
    weight = drawn(8, 64, seed=1)
    weight[:, :32] = 0
    x = torch.zeros(1, 64)
    x[:, :32] = 5
    assert not NativeLinear(weight, bits=bits)(x).any()


@pytest.mark.parametrize("bits", BITS)
def test_what_is_not_a_number_stays_in_its_row(bits: int | None) -> None:
    """A row of infinities or of no numbers leaves the other rows as they are."""
    product = NativeLinear(drawn(40, 50, seed=1), bits=bits)
    x = drawn(14, 50, seed=2)
    expected = product(x)
    x[3], x[7] = torch.nan, torch.inf
    found = product(x)
    others = [row for row in range(14) if row not in (3, 7)]
    assert torch.equal(found[others], expected[others])
    assert found[3].isnan().all()
    assert not found[7].isfinite().any()


def test_other_numbers_of_bits_are_refused() -> None:
    """Codes of three bits are not known."""
    with pytest.raises(ValueError, match="bits is 3"):
        NativeLinear(drawn(8, 32), bits=3)
