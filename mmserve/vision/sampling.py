"""Which frames of a clip are taken. Pure integer arithmetic on exact times.

time     0         1         2         3          window [start, end)
frames   |--0--|--1--|--2--|--3--|--4--|          a frame is shown until the next one starts
fps=1    ^         ^         ^                    -> 0, 1, 3: the frames shown at 0, 1, 2 s
num=3    ^           ^           ^                -> 0, 2, 4: evenly, ends included
times_s      ^ ^         ^                        -> 0, 2: the frames shown then, each once
keys     K                 K                      -> 0, 3: frames stored whole
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mmserve.core import BadRequest, MediaConfig, VideoPart

__all__ = ["FrameTimes", "choose_frames", "exact_seconds", "spread"]


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """When the frames of a clip are shown, in ticks from its first frame.

    Args:
        ticks: start of each frame, strictly rising.
        tick_s: seconds of one tick.
        end: end of the clip, after the last start.
    """

    ticks: Sequence[int]
    tick_s: Fraction
    end: int

    def seconds(self, number: int) -> Fraction:
        """Exact start of frame `number`, in seconds. Pure."""
        return self.ticks[number] * self.tick_s

    @property
    def duration(self) -> Fraction:
        """Length of the clip in seconds."""
        return self.end * self.tick_s


def choose_frames(
    times: FrameTimes,
    part: VideoPart,
    config: MediaConfig,
    key_frames: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Numbers of the frames to take, rising, none twice, at least one.

    `key_frames` are the numbers of those stored whole; all are if it is None.

    `num_frames` spreads evenly over the frames shown in the window, first and last included
    (one frame: the middle one), and never gives more than exist. `fps` takes the frame shown at
    each multiple of 1/fps seconds inside the window, counted from the clip's start, a time
    being rounded to the container's tick; with both, these are thinned evenly to `num_frames`;
    with neither, `default_video_frames` are spread. `key_frames` spreads over the frames stored
    whole that the window shows, or takes the last one before it; it has no grid. `times_s`
    takes the frame shown at each of these times, rounded like the grid, whatever their order.

    Raises:
        BadRequest: a value without meaning, wishes that contradict each other, a time or window
            behind the end, or more frames than `max_video_frames`.
    """
    if part.times_s is not None:
        chosen: Sequence[int] = _at_times(times, part, part.times_s)
    else:
        chosen = _in_window(times, part, config, key_frames)
    if len(chosen) > config.max_video_frames:
        raise BadRequest(
            f"would give {len(chosen)} frames, the limit is {config.max_video_frames}",
            hint="lower fps or num_frames, narrow the window, or name fewer times_s",
            field=_counting_field(part),
            reason="range",
            num_frames=len(chosen),
            limit=config.max_video_frames,
        )
    return tuple(chosen)


def _counting_field(part: VideoPart) -> str:
    if part.times_s is not None:
        return "times_s"
    return "fps" if part.num_frames is None else "num_frames"


def _in_window(
    times: FrameTimes, part: VideoPart, config: MediaConfig, key_frames: Sequence[int] | None
) -> Sequence[int]:
    start, end = _window(times, part)
    if part.num_frames is not None and part.num_frames < 1:
        raise _bad("num_frames", part.num_frames, "at least 1")
    if part.fps is not None:
        if part.key_frames:
            raise _bad("fps", part.fps, "none with key_frames, which have no grid")
        chosen = _on_grid(times, exact_fps(part.fps), start, end)
    else:
        chosen = _shown(times, start, end)
    if part.key_frames and key_frames is not None:
        chosen = _keys_of(chosen, key_frames)
    limit = part.num_frames
    if limit is None and part.fps is None:
        limit = config.default_video_frames
    return chosen if limit is None else spread(chosen, limit)


def _keys_of(shown: Sequence[int], key_frames: Sequence[int]) -> Sequence[int]:
    """Those of `shown` stored whole, else the last such before them, else the first. Pure."""
    low, past = bisect_left(key_frames, shown[0]), bisect_left(key_frames, shown[-1] + 1)
    return key_frames[low:past] or key_frames[max(low - 1, 0) :][:1] or shown[:1]


def _at_times(times: FrameTimes, part: VideoPart, times_s: tuple[float, ...]) -> Sequence[int]:
    """Frames on screen at `times_s`, a frame beginning half a tick early."""
    others = (part.num_frames, part.fps, part.start_s, part.end_s, part.key_frames or None)
    if not times_s or any(value is not None for value in others):
        allowed = "at least one time, and no num_frames, fps, window or key_frames beside it"
        raise _bad("times_s", list(times_s[:8]), allowed)
    chosen = set()
    for value in times_s:
        point = exact_seconds(value, "times_s")
        if point >= times.duration:
            raise _bad("times_s", value, f"less than the clip's {float(times.duration):g} s")
        ticks = math.floor(point / times.tick_s + Fraction(1, 2))
        chosen.add(max(bisect_right(times.ticks, ticks) - 1, 0))
    return sorted(chosen)


def spread(chosen: Sequence[int], limit: int) -> Sequence[int]:
    """At most `limit` of `chosen`, evenly, ends included; of one, the middle. Pure."""
    last = len(chosen) - 1
    if limit > last:
        return chosen
    if limit == 1:
        return [chosen[last // 2]]
    gaps = limit - 1
    return [chosen[(2 * place * last + gaps) // (2 * gaps)] for place in range(limit)]


def exact_seconds(value: float, field: str) -> Fraction:
    """A time as the decimal that was written. Raises BadRequest if negative or not finite."""
    if not math.isfinite(value) or value < 0:
        raise _bad(field, value, "0 or more")
    return Fraction(repr(value))


def exact_fps(value: float) -> Fraction:
    """A frame rate as the decimal that was written. Raises BadRequest unless positive."""
    if not math.isfinite(value) or value <= 0:
        raise _bad("fps", value, "more than 0")
    return Fraction(repr(value))


def _window(times: FrameTimes, part: VideoPart) -> tuple[Fraction, Fraction]:
    start = exact_seconds(part.start_s, "start_s") if part.start_s is not None else Fraction(0)
    end = times.duration
    if part.end_s is not None:
        end = min(end, exact_seconds(part.end_s, "end_s"))
        if exact_seconds(part.end_s, "end_s") <= start:
            raise _bad("end_s", part.end_s, f"more than start_s, {float(start):g}")
    if start >= times.duration:
        raise _bad("start_s", part.start_s, f"less than the clip's {float(times.duration):g} s")
    return start, end


def _shown(times: FrameTimes, start: Fraction, end: Fraction) -> Sequence[int]:
    """Numbers of the frames that are on screen some time in [start, end)."""
    first = bisect_left(times.ticks, math.floor(start / times.tick_s) + 1) - 1
    past = bisect_left(times.ticks, math.ceil(end / times.tick_s))
    return range(max(first, 0), max(past, first + 1, 1))


def _on_grid(times: FrameTimes, fps: Fraction, start: Fraction, end: Fraction) -> Sequence[int]:
    """Frames on screen at a multiple of 1/fps in [start, end).

    Point k of the grid belongs to the frame with `first[n] <= k < first[n + 1]`, where first[n]
    is the first point not before the frame's start less half a tick.
    """
    points_per_tick = times.tick_s * fps
    up, down = points_per_tick.numerator, 2 * points_per_tick.denominator
    first = [-((1 - 2 * tick) * up // down) for tick in times.ticks]
    low, high = math.ceil(start * fps), math.ceil(end * fps)
    first[0] = min(first[0], low)
    after = [*first[1:], high]
    bounds = zip(first, after, strict=True)
    chosen = [n for n, (at, past) in enumerate(bounds) if max(at, low) < min(past, high)]
    return chosen or _shown(times, start, end)[:1]


def _bad(field: str, value: object, allowed: str) -> BadRequest:
    return BadRequest(
        f"has {field} = {value}, allowed is {allowed}", field=field, reason="range"
    )
