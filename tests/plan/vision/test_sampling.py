"""Which frames are taken, against plain loops over exact times."""

from fractions import Fraction
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import BytesSource, MediaConfig, VideoPart
from mmserve.vision.sampling import FrameTimes, choose_frames, spread

MANY = MediaConfig(max_video_frames=10_000)
SOURCE = BytesSource(b"")

_gaps = st.lists(st.integers(1, 9), min_size=1, max_size=40)
_tick = st.sampled_from([Fraction(1, 10), Fraction(1, 1000), Fraction(1001, 30000)])
_fps = st.sampled_from([0.1, 0.5, 1.0, 2.0, 2.5, 29.97, 60.0])


def times_of(gaps: list[int], tick_s: Fraction) -> FrameTimes:
    """Frames with these gaps between their starts."""
    starts = [sum(gaps[:place]) for place in range(len(gaps))]
    return FrameTimes(starts, tick_s, sum(gaps))


def shown_at(times: FrameTimes, point: Fraction) -> int:
    """The frame on screen at `point`, times being rounded to the tick."""
    started = [
        n
        for n, tick in enumerate(times.ticks)
        if (tick - Fraction(1, 2)) * times.tick_s <= point
    ]
    return started[-1] if started else 0


@given(gaps=_gaps, tick_s=_tick, fps=_fps)
@settings(max_examples=60, deadline=None)
def test_fps_takes_the_frame_shown_at_each_point(gaps, tick_s, fps):
    """With `fps`, exactly the frames on screen at a multiple of 1/fps are taken, each once."""
    times = times_of(gaps, tick_s)
    step = 1 / Fraction(repr(fps))
    points = [
        n * step for n in range(int(times.duration / step) + 1) if n * step < times.duration
    ]
    expected = tuple(sorted({shown_at(times, point) for point in points}))
    assert expected == choose_frames(times, VideoPart(SOURCE, fps=fps), MANY)


@given(gaps=_gaps, tick_s=_tick, num_frames=st.integers(1, 50))
@settings(max_examples=60, deadline=None)
def test_num_frames_spreads_evenly(gaps, tick_s, num_frames):
    """With `num_frames`, frames rise, both ends are there, and gaps differ by at most one."""
    times = times_of(gaps, tick_s)
    chosen = choose_frames(times, VideoPart(SOURCE, num_frames=num_frames), MANY)
    assert len(chosen) == min(num_frames, len(gaps))
    steps = {b - a for a, b in pairwise(chosen)}
    assert not steps or (min(steps) >= 1 and max(steps) - min(steps) <= 1)
    if len(chosen) > 1:
        assert (chosen[0], chosen[-1]) == (0, len(gaps) - 1)


@given(gaps=_gaps, low=st.integers(0, 40), length=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_window_takes_what_is_on_screen(gaps, low, length):
    """A window holds the frames on screen some time in [start, end)."""
    times = times_of(gaps, Fraction(1, 10))
    low = min(low, times.end - 1)
    part = VideoPart(SOURCE, num_frames=1000, start_s=low / 10, end_s=(low + length) / 10)
    ends = [*times.ticks[1:], times.end]
    bounds = enumerate(zip(times.ticks, ends, strict=True))
    expected = tuple(n for n, (start, end) in bounds if start < low + length and end > low)
    assert expected == choose_frames(times, part, MANY)


def test_windows_share_one_grid():
    """A sliding window takes frames of the same grid, so that encodings are shared."""
    times = times_of([1] * 100, Fraction(1, 10))
    whole = choose_frames(times, VideoPart(SOURCE, fps=3.0), MANY)
    part = VideoPart(SOURCE, fps=3.0, start_s=2.5, end_s=7.5)
    assert tuple(n for n in whole if 25 <= n < 75) == choose_frames(times, part, MANY)


def test_fps_and_num_frames_thin_the_grid():
    """With both, the grid's frames are thinned evenly, ends included."""
    times = times_of([1] * 100, Fraction(1, 10))
    assert choose_frames(times, VideoPart(SOURCE, 4, fps=1.0), MANY) == (0, 30, 60, 90)


def test_default_number_comes_from_the_settings():
    """Without wishes, `default_video_frames` are spread over the clip."""
    config = MediaConfig(default_video_frames=3)
    assert choose_frames(times_of([1] * 9, Fraction(1)), VideoPart(SOURCE), config) == (0, 4, 8)


def test_decimal_rates_are_exact():
    """A frame that starts exactly at a multiple of 1/0.1 s is the one taken there."""
    times = times_of([10] * 10, Fraction(1))
    assert choose_frames(times, VideoPart(SOURCE, fps=0.1), MANY) == tuple(range(10))


def test_times_rounded_by_the_container_hit_the_grid():
    """Millisecond timestamps of a 30 a second clip give all frames at fps 30."""
    ticks = [round(n * 1000 / 30) for n in range(60)]
    times = FrameTimes(ticks, Fraction(1, 1000), 2000)
    assert choose_frames(times, VideoPart(SOURCE, fps=30.0), MANY) == tuple(range(60))


def test_window_between_grid_points_takes_what_is_shown():
    """A window without a point of the grid gives the frame on screen at its start."""
    times = times_of([1] * 10, Fraction(1, 10))
    part = VideoPart(SOURCE, fps=1.0, start_s=0.35, end_s=0.6)
    assert choose_frames(times, part, MANY) == (3,)


def test_spread_of_one_is_the_middle():
    """One of many is the middle one."""
    assert spread(range(5), 1) == [2]
