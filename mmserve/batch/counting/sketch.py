"""Quantiles of many numbers in a few hundred counters.

A number v > 0 is counted in bucket floor(log v / log 1.04): [1.04^k, 1.04^(k+1)). A quantile is
the middle of its bucket, so it is off by 2 % at most, and never outside what was seen.
Source: DDSketch (VLDB 2019), section 2.1; we keep every bucket, as there are few.
"""

from __future__ import annotations

import math
from collections import Counter

__all__ = ["Sketch"]

_BASE = math.log(1.04)
_LEAST, _MOST = 1e-4, 1e9
"""Numbers beyond are counted at the bound: 760 buckets at most."""


class Sketch:
    """Numbers above 0, counted by size."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Count one number. Changes: the sketch."""
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)
        self._buckets[math.floor(math.log(min(max(value, _LEAST), _MOST)) / _BASE)] += 1

    def quantile(self, share: float) -> float:
        """What so large a share of the numbers is at most, within 2 %; 0 if there is none."""
        if not self.count:
            return 0.0
        left = max(1, math.ceil(share * self.count))
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                middle = math.exp((bucket + 0.5) * _BASE)
                return min(max(middle, self.least), self.most)
        return self.most

    @property
    def num_counters(self) -> int:
        """Buckets in use. Pure."""
        return len(self._buckets)
