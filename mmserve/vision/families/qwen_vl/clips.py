"""Frames of a clip in groups, and what time is to each family.

frames   0  1 | 2  3 | 4  4      the last group repeats its last frame
steps    time 0, 1, 2            Qwen2-VL
seconds  time 0, 2, 4            Qwen2.5-VL: seconds times positions per second
words    <0.2 seconds> ...       Qwen3-VL: text before each group
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

__all__ = ["frame_gap", "groups", "time_position", "timestamp"]

_TELEVISION = Fraction(1001, 1000)
"""What frames last longer than at 24, 30 or 60 a second."""


def groups(num_frames: int, size: int) -> list[tuple[int, ...]]:
    """Places of the frames of each group; the last group may be short. Pure."""
    return [
        tuple(range(start, min(start + size, num_frames)))
        for start in range(0, num_frames, size)
    ]


def timestamp(times: Sequence[Fraction]) -> str:
    """What stands before a group of frames with these times in seconds. Pure."""
    middle = (float(times[0]) + float(times[-1])) / 2
    return f"<{middle:.1f} seconds>"


def time_position(step: int, seconds: Fraction, positions_per_second: float) -> int:
    """Position in time of a clip's group `step`, the groups being `seconds` apart.

    Computed in float32 and cut off, as in transformers. Pure.
    """
    interval = np.float32(positions_per_second) * np.float32(float(seconds))
    return int(np.float32(step) * interval)


def frame_gap(times: Sequence[Fraction]) -> Fraction:
    """Seconds between neighbouring frames of a clip with these rising times.

    A rate of sampling that does not divide the clip's own gives gaps of some frames and of one
    more. Windows over such a clip must agree, so the gap is the simplest number that puts
    every frame within one such difference of its place; the mean if there is none. Equal gaps
    are taken as they are, but those of television (30000 / 1001 frames a second) as the round
    ones that they stand for. One frame has a gap of 1.

    Pure.
    """
    gaps = [after - before for before, after in pairwise(times)]
    if not gaps:
        return Fraction(1)
    slack, mean = max(gaps) - min(gaps), (times[-1] - times[0]) / len(gaps)
    if slack == 0:
        return mean / _TELEVISION if mean.numerator % 1001 == 0 else mean
    places = range(1, len(times))
    low = max((times[place] - times[0] - slack) / place for place in places) / _TELEVISION
    high = min((times[place] - times[0] + slack) / place for place in places)
    return _simplest(low, high) if 0 < low <= high else mean


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of the smallest denominator in [low, high], both positive. Pure."""
    whole = -(-low.numerator // low.denominator)
    if whole <= high:
        return Fraction(whole)
    floor = whole - 1
    return floor + 1 / _simplest(1 / (high - floor), 1 / (low - floor))
