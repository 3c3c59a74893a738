"""Matrices of 8 and 4 bits beside full ones: time, error, and whether neighbours are felt.

One matrix of SmolLM2-135M's feed-forward layer (576 to 1,536 values), random, on one thread.
torch's dynamic int8 product stands beside ours because it is faster and is not used: it scales
all rows of a call by one number.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import Record, report
from mmserve.kernels import Linear, QuantizedLinear

_INPUTS, _OUTPUTS = 576, 1536
_ROWS = (1, 8, 32, 128)

Product = Callable[[Tensor], Tensor]


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


def milliseconds(product: Product, x: Tensor, repeats: int) -> float:
    """The median of several calls."""
    for _ in range(3):
        product(x)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        product(x)
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def row_of(name: str, product: Product, weight: Tensor, repeats: int) -> dict[str, Any]:
    """Times by number of rows, relative error, and how far neighbours move a row."""
    generator = torch.Generator().manual_seed(1)
    inputs = {num: torch.randn(num, _INPUTS, generator=generator) for num in _ROWS}
    x = inputs[32]
    exact = x @ weight.T
    together = product(x)
    alone = torch.cat([product(row[None]) for row in x])
    return {
        "product": name,
        **{f"rows_{num}_ms": milliseconds(product, inputs[num], repeats) for num in _ROWS},
        "error": float((together - exact).norm() / exact.norm()),
        "moved_by_neighbours": float((together - alone).abs().max()),
    }


def run(repeats: int) -> Record:
    """All products on one matrix."""
    torch.set_num_threads(1)
    weight = torch.randn(_OUTPUTS, _INPUTS, generator=torch.Generator().manual_seed(0)) * 0.05
    products: dict[str, Product] = {
        "float32": Linear(weight),
        "8 bits": QuantizedLinear(weight, bits=8),
        "4 bits": QuantizedLinear(weight, bits=4),
        "torch, dynamic int8": dynamic_int8(weight),
    }
    with torch.inference_mode():
        rows = [row_of(name, product, weight, repeats) for name, product in products.items()]
    full, eight, four, _ = rows
    summary = {
        "int8_speedup_1_row": full["rows_1_ms"] / eight["rows_1_ms"],
        "int8_speedup_128_rows": full["rows_128_ms"] / eight["rows_128_ms"],
        "int4_speedup_1_row": full["rows_1_ms"] / four["rows_1_ms"],
        "int8_moved_by_neighbours": eight["moved_by_neighbours"],
    }
    return Record(repeats=repeats, summary=summary, rows=rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", help="write the record here, or - for standard output")
    arguments = parser.parse_args()
    report(run(7 if arguments.quick else 101), arguments.json)


if __name__ == "__main__":
    main()
