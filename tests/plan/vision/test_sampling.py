"""Which frames are taken, against plain loops over exact times."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import BadRequest, BytesSource, MediaConfig, VideoPart
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


_points = st.lists(st.integers(0, 400), min_size=1, max_size=12)


@given(gaps=_gaps, tick_s=_tick, points=_points)
@settings(max_examples=60, deadline=None)
def test_times_take_the_frame_shown_at_each(gaps, tick_s, points):
    """With `times_s`, exactly the frames on screen at these times are taken, each once."""
    times = times_of(gaps, tick_s)
    seconds = tuple(float(times.duration) * point / 401 for point in points)
    expected = sorted({shown_at(times, Fraction(repr(value))) for value in seconds})
    assert choose_frames(times, VideoPart(SOURCE, times_s=seconds), MANY) == tuple(expected)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"times_s": (4.0,)}, "times_s = 4.0, allowed is less than the clip's 4 s"),
        ({"times_s": (-0.5,)}, "times_s = -0.5, allowed is 0 or more"),
        ({"times_s": (float("nan"),)}, "times_s = nan"),
        ({"times_s": ()}, "at least one time"),
        ({"times_s": (1.0,), "num_frames": 2}, "no num_frames"),
        ({"times_s": (1.0,), "fps": 2.0}, "no num_frames, fps"),
        ({"times_s": (1.0,), "start_s": 0.0}, "no num_frames, fps, window"),
        ({"times_s": (1.0,), "key_frames": True}, "key_frames beside it"),
        ({"fps": 1.0, "key_frames": True}, "fps = 1.0, allowed is none with key_frames"),
        ({"times_s": (0.0, 1.0, 2.0, 3.0)}, "would give 4 frames, the limit is 3"),
    ],
)
def test_wishes_without_meaning_are_refused(wishes, words):
    """Times behind the end, too many, and wishes that contradict each other are refused."""
    config = MediaConfig(max_video_frames=3)
    with pytest.raises(BadRequest) as caught:
        choose_frames(times_of([1] * 4, Fraction(1)), VideoPart(SOURCE, **wishes), config)
    assert words in caught.value.message
    assert caught.value.param == (
        "fps" if "fps" in wishes and "times_s" not in wishes else "times_s"
    )


def keys(**wishes) -> tuple[int, ...]:
    """Key frames taken of ten frames, one a second, of which 0, 4, 5 and 8 are stored whole."""
    part = VideoPart(SOURCE, key_frames=True, **wishes)
    return choose_frames(times_of([1] * 10, Fraction(1)), part, MANY, (0, 4, 5, 8))


def test_key_frames_are_taken_alone():
    """With `key_frames`, frames stored whole are taken, thinned evenly if fewer are wanted."""
    assert keys() == (0, 4, 5, 8)
    assert keys(num_frames=2) == (0, 8)
    assert keys(start_s=4.0, end_s=8.0) == (4, 5)


def test_window_without_a_key_frame_gives_the_one_before():
    """A window that shows no key frame gives the last one before it."""
    assert keys(start_s=6.0, end_s=7.5) == (5,)


def test_every_picture_of_a_row_is_stored_whole():
    """Frames given as pictures are all key frames."""
    part = VideoPart(SOURCE, 10, key_frames=True)
    assert choose_frames(times_of([1] * 5, Fraction(1)), part, MANY) == (0, 1, 2, 3, 4)
