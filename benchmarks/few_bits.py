"""Matrices of 8 and 4 bits beside full ones: time, error, and whether neighbours are felt.

A matrix of SmolLM2-135M's feed-forward layer (576 to 1,536 values), random, many times over:
the copies are called in turn, so that each is read from memory as a model's weights are, and
none from a cache. Ours in compiled C stand beside those that torch and onnxruntime give.
torch's dynamic int8 product is not used here: it scales all rows of a call by one number.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import Record, report
from mmserve.kernels.linear import Linear
from mmserve.kernels.native import NativeLinear
from mmserve.kernels.quantized import QuantizedLinear

_INPUTS, _OUTPUTS = 576, 1536
_ROWS = (1, 8, 32, 128)
_COPIES = 96
"""With 4.5 bits a weight these are 48 MB, more than the caches hold."""

Product = Callable[[Tensor], Tensor]
Make = Callable[[Tensor], Product]


def dynamic_int8(weight: Tensor) -> Product:
    """Torch's own product of int8 weights and rows scaled together."""
    torch.backends.quantized.engine = "fbgemm"
    scales = weight.abs().amax(1) / 127
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codes = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(codes, None)

    def product(x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, packed, True)  # noqa: FBT003 - an operator

    return product


PRODUCTS: dict[str, tuple[Make, float]] = {
    "float32": (NativeLinear, 32),
    "8 bits": (lambda weight: NativeLinear(weight, bits=8), 8.5),
    "4 bits": (lambda weight: NativeLinear(weight, bits=4), 4.5),
    "torch, float32": (Linear, 32),
    "onnxruntime, 8 bits": (lambda weight: QuantizedLinear(weight, bits=8), 9),
    "onnxruntime, 4 bits": (lambda weight: QuantizedLinear(weight, bits=4), 5),
    "torch, dynamic int8": (dynamic_int8, 8),
}
"""By name, what makes it and its bits a weight, scales included."""


def milliseconds(products: Sequence[Product], x: Tensor, repeats: int) -> float:
    """The median of `repeats` calls of the products in turn."""
    turn = itertools.cycle(products)
    for product in itertools.islice(turn, len(products) // 4):
        product(x)
    times = []
    for product in itertools.islice(turn, repeats):
        began = time.perf_counter()
        product(x)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def row_of(name: str, weight: Tensor, copies: int, repeats: int) -> dict[str, Any]:
    """Times by number of rows, bytes read for one row, error, and what neighbours do."""
    make, bits = PRODUCTS[name]
    products = [make(weight) for _ in range(copies)]
    generator = torch.Generator().manual_seed(1)
    inputs = {num: torch.randn(num, _INPUTS, generator=generator) for num in _ROWS}
    x = inputs[32]
    exact = x.double() @ weight.double().T
    together = products[0](x)
    alone = torch.cat([products[0](row[None]) for row in x])
    times = {num: milliseconds(products, inputs[num], repeats) for num in _ROWS}
    return {
        "product": name,
        **{f"rows_{num}_ms": times[num] for num in _ROWS},
        "rows_1_gb_per_s": weight.numel() * bits / 8e6 / times[1],
        "error": float((together - exact).norm() / exact.norm()),
        "moved_by_neighbours": float((together - alone).abs().max()),
    }


def run(threads: int, copies: int, repeats: int) -> Record:
    """All products on one matrix."""
    torch.set_num_threads(threads)
    weight = torch.randn(_OUTPUTS, _INPUTS, generator=torch.Generator().manual_seed(0)) * 0.05
    with torch.inference_mode():
        rows = {name: row_of(name, weight, copies, repeats) for name in PRODUCTS}
    full, eight, four = rows["float32"], rows["8 bits"], rows["4 bits"]
    library, library_eight = rows["torch, float32"], rows["onnxruntime, 8 bits"]
    summary = {
        "threads": threads,
        "int8_speedup_1_row": full["rows_1_ms"] / eight["rows_1_ms"],
        "int8_speedup_128_rows": full["rows_128_ms"] / eight["rows_128_ms"],
        "int4_speedup_1_row": full["rows_1_ms"] / four["rows_1_ms"],
        "int4_speedup_128_rows": full["rows_128_ms"] / four["rows_128_ms"],
        "int8_moved_by_neighbours": eight["moved_by_neighbours"],
        "int4_moved_by_neighbours": four["moved_by_neighbours"],
        "native_speedup_1_row": library["rows_1_ms"] / full["rows_1_ms"],
        "native_speedup_128_rows": library["rows_128_ms"] / full["rows_128_ms"],
        "native_int8_speedup_1_row": library_eight["rows_1_ms"] / eight["rows_1_ms"],
        "native_int8_speedup_128_rows": library_eight["rows_128_ms"] / eight["rows_128_ms"],
    }
    return Record(repeats=repeats, summary=summary, rows=[*rows.values()])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer copies and repeats")
    parser.add_argument("--threads", type=int, default=1, help="threads of each product")
    parser.add_argument("--json", help="write the record here, or - for standard output")
    arguments = parser.parse_args()
    copies, repeats = (8, 8) if arguments.quick else (_COPIES, 3 * _COPIES)
    report(run(arguments.threads, copies, repeats), arguments.json)


if __name__ == "__main__":
    main()
