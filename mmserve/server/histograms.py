"""Durations by bucket, in the form that Prometheus reads.

observe(0.03)    le 0.01: 0    le 0.05: 1    le 0.1: 1    ..    le +Inf: 1    sum 0.03
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

__all__ = ["BUCKETS", "Cell", "Histograms"]

BUCKETS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    "inter_token_seconds": (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1),
    "request_seconds": (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    "queue_seconds": (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30),
    "stage_seconds": (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 30),
}
"""Upper bounds in seconds by histogram; above the last stands one more, without a bound."""


class Cell:
    """One histogram under one set of labels. Mutable; touched by the event loop only."""

    __slots__ = ("_bounds", "_counts", "total_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, `times` times. Changes: the counts. Cost: under a microsecond."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self.total_s += seconds * times

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and number of durations up to it, growing, the last for all. Pure."""
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class Histograms:
    """The histograms of one app. Mutable; touched by the event loop only."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, tuple[tuple[str, str], ...]], Cell] = {}

    def cell(self, name: str, **labels: str) -> Cell:
        """The histogram of `BUCKETS` with these labels. Changes: it is there from now on."""
        key = name, tuple(labels.items())
        found = self._cells.get(key)
        if found is None:
            found = self._cells[key] = Cell(BUCKETS[name])
        return found

    def cells(self) -> Iterator[tuple[str, dict[str, str], Cell]]:
        """Name, labels and counts of each that is there. Pure."""
        for (name, labels), cell in self._cells.items():
            yield name, dict(labels), cell
