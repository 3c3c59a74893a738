"""What this machine can do at most: bytes read and copied a second, and fp32 matrix products.

A decode step of one row reads every weight once, so reading bounds it; a long prompt is bound
by matrix products. Other benchmarks measure these ceilings between their own rounds, so that a
share compares two times of the same minutes. Each ceiling is the best of several ways to do the
work, since a ceiling that a slow routine sets would flatter whoever is measured against it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.record import Record, report
from mmserve.core import default_threads

__all__ = [
    "CeilingMeter",
    "Ceilings",
    "ceiling_rows",
    "highest",
    "measure",
    "median_ceilings",
]

_BUFFER_BYTES = 256 << 20
"""Far more than a last-level cache holds."""
_MATRIX_SIZES = (1024, 2048)
_SHOWN = (
    ("read", "read_bytes_per_s", "GB/s"),
    ("copy", "copy_bytes_per_s", "GB/s"),
    ("matrix", "matrix_flop_per_s", "GFLOP/s"),
)
_SETTLE_S = 0.2
"""Other engines' threads spin for a while after their last product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What so many threads reach together.

    Args:
        threads: threads that worked.
        read_bytes_per_s: of memory that is only read.
        copy_bytes_per_s: of a copy, bytes read and bytes written both counted.
        matrix_flop_per_s: of square fp32 products; a multiplication and an addition are two.
    """

    threads: int
    read_bytes_per_s: float
    copy_bytes_per_s: float
    matrix_flop_per_s: float


class CeilingMeter:
    """Measures ceilings as often as asked, with the same memory each time.

    Args:
        buffer_bytes: size of each of two buffers.
        matrix_sizes: rows of the square products tried.
        probe_s: how long each way to do the work is repeated; the best call counts.
    """

    def __init__(
        self,
        buffer_bytes: int = _BUFFER_BYTES,
        matrix_sizes: Sequence[int] = _MATRIX_SIZES,
        probe_s: float = 0.25,
    ) -> None:
        self._probe_s = probe_s
        self._source = torch.ones(buffer_bytes // 4)
        self._target = torch.empty_like(self._source)
        width = 4096 if len(self._source) % 4096 == 0 else 1
        self._matrix = self._source.view(-1, width)
        self._vector = torch.ones(width)
        self._squares = [_square(size) for size in matrix_sizes]

    def measure(self, threads: int) -> Ceilings:
        """The ceilings of so many threads, now. Cost: about seven times `probe_s`.

        torch's number of threads is as before when it returns.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                time.sleep(_SETTLE_S)
                return self._measured(threads)
        finally:
            torch.set_num_threads(before)

    def measure_all(self, threads: int) -> tuple[Ceilings, ...]:
        """Of one thread, and of all of them if these are more."""
        counts = (1,) if threads == 1 else (1, threads)
        return tuple(self.measure(count) for count in counts)

    def _measured(self, threads: int) -> Ceilings:
        source, target = self._source, self._target
        num_bytes = source.numel() * source.element_size()
        reads = (source.sum, lambda: torch.dot(source, source), self._matrix_vector)
        products = [_product(*square) for square in self._squares]
        return Ceilings(
            threads=threads,
            read_bytes_per_s=max(num_bytes / self._best_s(read) for read in reads),
            copy_bytes_per_s=2 * num_bytes / self._best_s(lambda: target.copy_(source)),
            matrix_flop_per_s=max(flop / self._best_s(call) for flop, call in products),
        )

    def _matrix_vector(self) -> torch.Tensor:
        return torch.mv(self._matrix, self._vector)

    def _best_s(self, call: Callable[[], Any]) -> float:
        """Seconds of the fastest of at least three calls, after one that warms up."""
        call()
        best, num_calls = float("inf"), 0
        end = time.perf_counter() + self._probe_s
        while num_calls < 3 or time.perf_counter() < end:
            began = time.perf_counter()
            call()
            best, num_calls = min(best, time.perf_counter() - began), num_calls + 1
        return best


def _square(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    left, right = (torch.randn(size, size, generator=generator) for _ in range(2))
    return left, right, torch.empty(size, size)


def _product(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor
) -> tuple[int, Callable[[], torch.Tensor]]:
    """Operations of a square product, and the call that does them. Pure."""
    return 2 * len(left) ** 3, lambda: torch.mm(left, right, out=out)


def median_ceilings(several: Sequence[Ceilings]) -> Ceilings:
    """The median of each ceiling over rounds with the same number of threads. Pure.

    Raises ValueError if there are none, or of different numbers of threads.
    """
    counts = {one.threads for one in several}
    if len(counts) != 1:
        raise ValueError(f"ceilings of {sorted(counts)} threads have no common median")
    return Ceilings(
        threads=counts.pop(),
        read_bytes_per_s=statistics.median(one.read_bytes_per_s for one in several),
        copy_bytes_per_s=statistics.median(one.copy_bytes_per_s for one in several),
        matrix_flop_per_s=statistics.median(one.matrix_flop_per_s for one in several),
    )


def highest(several: Sequence[Ceilings]) -> Ceilings:
    """The best of several numbers of threads, ceiling by ceiling, in one round. Pure."""
    return Ceilings(
        threads=max(one.threads for one in several),
        read_bytes_per_s=max(one.read_bytes_per_s for one in several),
        copy_bytes_per_s=max(one.copy_bytes_per_s for one in several),
        matrix_flop_per_s=max(one.matrix_flop_per_s for one in several),
    )


def ceiling_rows(rounds: Sequence[Sequence[Ceilings]]) -> list[dict[str, Any]]:
    """Rows of a record, one for each ceiling and number of threads: median and range. Pure.

    Each round has the same numbers of threads in the same order.
    """
    rows = []
    for several in zip(*rounds, strict=True):
        middle = median_ceilings(several)
        for name, attribute, unit in _SHOWN:
            values = [getattr(one, attribute) / 1e9 for one in several]
            rows.append(
                {
                    "threads": middle.threads,
                    "ceiling": name,
                    "unit": unit,
                    "median": getattr(middle, attribute) / 1e9,
                    "least": min(values),
                    "most": max(values),
                }
            )
    return rows


def measure(repeats: int, probe_s: float) -> Record:
    """The ceilings of one thread and of all, over several rounds."""
    meter, threads = CeilingMeter(probe_s=probe_s), default_threads()
    rounds = [meter.measure_all(threads) for _ in range(repeats)]
    middles = [median_ceilings(several) for several in zip(*rounds, strict=True)]
    named = {"one_thread": middles[0], "all_threads": middles[-1]}
    summary = {
        f"{name}_{unit.lower().replace('/', '_per_')}_{who}": getattr(one, attribute) / 1e9
        for who, one in named.items()
        for name, attribute, unit in _SHOWN
    }
    return Record(repeats=repeats, summary=summary, rows=ceiling_rows(rounds))


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    flags = parser.parse_args()
    repeats, probe_s = (2, 0.1) if flags.quick else (flags.repeats, 0.25)
    report(measure(repeats, probe_s), flags.json)


if __name__ == "__main__":
    main()
