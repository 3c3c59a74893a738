"""Time as a length: the clock of the records against the pixels of a drawing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmserve.sched.show.timeline import StepRecord

__all__ = ["Axis", "time_words"]


class Axis:
    """From the clock to pixels: step k is between `left[k]` and `right[k]`.

    A step longer than half of all others together, and pauses that would take much room, are
    cut short; `cuts` says where, and why.
    """

    def __init__(self, records: Sequence[StepRecord], left: float, right: float) -> None:
        self.records = records
        starts = np.array([record.start_s for record in records])
        ends = np.maximum([record.end_s for record in records], starts + 1e-6)
        work, gaps = ends - starts, np.maximum(starts[1:] - ends[:-1], 0.0)
        longest_s = float(work.sum() - work.max()) / 2 if len(work) > 2 else float(work.max())
        is_cut, is_pause = work > longest_s, gaps > longest_s / 20
        work, shown = np.minimum(work, longest_s), np.minimum(gaps, longest_s / 20)
        before = np.concatenate(([0.0], np.cumsum(work[:-1] + shown)))
        pixels = (right - left) / float(before[-1] + work[-1])
        self.left = left + before * pixels
        self.right = self.left + work * pixels
        middles = (self.left + self.right) / 2
        between = (self.right[:-1] + self.left[1:]) / 2
        self.cuts = [
            *((float(middles[k]), "a step is cut short") for k in np.flatnonzero(is_cut)),
            *(
                (float(between[k]), f"nothing ran for {time_words(float(gaps[k]) * 1e3)}")
                for k in np.flatnonzero(is_pause)
            ),
        ]
        self._clock = np.ravel(np.column_stack((starts, ends)))
        self._pixels = np.ravel(np.column_stack((self.left, self.right)))

    def x(self, clock_s: float) -> float:
        """Where a time is, the nearest end if it is outside. Pure."""
        return float(np.interp(clock_s, self._clock, self._pixels))

    def marks(self, room: float) -> list[int]:
        """Places of steps whose beginnings are at least `room` pixels apart. Pure."""
        found = [0]
        for place in range(1, len(self.records)):
            if self.left[place] - self.left[found[-1]] >= room:
                found.append(place)
        return found


def time_words(time_ms: float) -> str:
    """A duration, with a unit that suits it. Pure."""
    if time_ms < 10_000:
        return f"{time_ms:,.0f} ms"
    return f"{time_ms / 1e3:,.1f} s" if time_ms < 600_000 else f"{time_ms / 60_000:,.0f} min"
