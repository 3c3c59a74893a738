"""What the server itself counts."""

from __future__ import annotations

from collections import defaultdict

from mmserve.core import series_key

__all__ = ["Counts"]


class Counts:
    """What the server itself counts, by series. Mutable; touched by the event loop only."""

    def __init__(self) -> None:
        self._series: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, number: float = 1, **labels: str) -> None:
        """Count one event, or a number of things. Changes: its series."""
        self._series[series_key(name, **labels)] += number

    def series(self) -> dict[str, float]:
        """All series, in the form of `Client.counters`. Pure."""
        return dict(self._series)
