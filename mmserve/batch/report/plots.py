r"""The report's drawings, as SVG that follows the page's light or dark colours.

80 % |      .--.----          the page's style sheet gives INK, PALE and the fills below
     |  .---                  their colours, so a drawing alone is a light one
  0 %+---------------- 2:10
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mmserve.batch.counting import Course, Sketch, Stretch
from mmserve.core.svg import PALE, Canvas, Paint

__all__ = ["PLOT_WIDTH", "course_plot", "hit_rate_plot", "stage_plot"]

PLOT_WIDTH = 480.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 16.0, 30.0
_HEIGHT = 190.0
_LINE = "#2b6a94"
_GRID = "#d0d7de"
_QUANTILES = ((0.5, Paint("#2b6a94", "none")), (0.9, Paint("#6fb0da", "none")))
_LAST = (0.99, Paint("#c4e0f3", "none"))
_BAR_HEIGHT, _LANE = 12.0, 26.0
_NAME_WIDTH, _NUMBERS_WIDTH = 98.0, 168.0
_STAGES = {"decode_text": "generate", "first_token": "first token", "total": "whole answer"}


def hit_rate_plot(course: Course, seconds: float) -> str:
    """Share of prompt tokens that came from the cache, over the run. Pure."""
    values = [
        stretch.cached_tokens / stretch.prompt_tokens if stretch.prompt_tokens else None
        for stretch in course.stretches
    ]
    plot = _Plot("Share of prompt tokens from cache, over time", 1.0, seconds)
    plot.axis(lambda value: f"{value:.0%}")
    plot.curve(values, course.length_s, lambda value: f"{value:.1%} from cache")
    return plot.canvas.finish(_HEIGHT)


def course_plot(
    title: str, course: Course, seconds: float, of: Callable[[Stretch], int]
) -> str:
    """So much a second, over the run. Pure."""
    values: list[float | None] = []
    for place, stretch in enumerate(course.stretches):
        lasted_s = min(course.length_s, seconds - place * course.length_s)
        values.append(of(stretch) / max(lasted_s, course.length_s / 10))
    most = _nice(max((value for value in values if value), default=1.0))
    plot = _Plot(title, most, seconds)
    plot.axis(_short)
    plot.curve(values, course.length_s, lambda value: f"{_short(value)} a second")
    return plot.canvas.finish(_HEIGHT)


class _Plot:
    """An empty plot over time, from 0 to `most`. Mutable: the canvas."""

    def __init__(self, title: str, most: float, seconds: float) -> None:
        self.canvas = Canvas(title, PLOT_WIDTH)
        self._most = most
        self._seconds = max(seconds, 1e-3)

    def axis(self, shown: Callable[[float], str]) -> None:
        """Lines at a quarter each, with their values, and the run's beginning and end."""
        for part in range(5):
            value = self._most * part / 4
            y = self._y(value)
            self.canvas.line([(_LEFT, y), (PLOT_WIDTH - _RIGHT, y)], _GRID)
            if part % 2 == 0:
                self.canvas.words(
                    _LEFT - 8, y, shown(value), size=13, anchor="end", colour=PALE
                )
        for at_s, anchor in ((0.0, "start"), (self._seconds, "end")):
            told = _clock(at_s) if at_s else "0"
            self.canvas.words(
                self._x(at_s), _HEIGHT - 12, told, size=13, anchor=anchor, colour=PALE
            )

    def curve(
        self,
        values: Sequence[float | None],
        length_s: float,
        shown: Callable[[float], str],
    ) -> None:
        """A step for each stretch, with its value to hover over; none where it is None."""
        run: list[tuple[float, float]] = []
        for place, value in enumerate(values):
            if value is None:
                self._stroke(run)
                run = []
                continue
            begin_s = place * length_s
            end_s = max(begin_s, min(begin_s + length_s, self._seconds))
            run += [(self._x(begin_s), self._y(value)), (self._x(end_s), self._y(value))]
        self._stroke(run)
        for place, value in enumerate(values):
            if value is not None:
                self._hover(place * length_s, length_s, f"{shown(value)}")

    def _stroke(self, points: list[tuple[float, float]]) -> None:
        if points:
            self.canvas.line(points, _LINE, width=2)

    def _hover(self, begin_s: float, length_s: float, told: str) -> None:
        x = self._x(begin_s)
        width = max(0.5, self._x(min(begin_s + length_s, self._seconds)) - x)
        height = _HEIGHT - _TOP - _BOTTOM
        paint = Paint("transparent", "none")
        self.canvas.box(x, _TOP, width, height, paint, f"at {_clock(begin_s)}: {told}")

    def _x(self, at_s: float) -> float:
        return _LEFT + (PLOT_WIDTH - _LEFT - _RIGHT) * min(1.0, at_s / self._seconds)

    def _y(self, value: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + height * (1 - min(1.0, value / self._most))


def stage_plot(stages: Sequence[tuple[str, Sketch]]) -> str:
    """p50, p90 and p99 of each stage's time on a scale of powers of ten. Pure."""
    canvas = Canvas("Time of each stage: p50, p90 and p99", PLOT_WIDTH)
    low = math.floor(math.log10(max(0.1, min(s.quantile(0.5) for _, s in stages))))
    high = math.ceil(math.log10(max(max(s.quantile(0.99) for _, s in stages), 1.0)))
    high = max(high, low + 1)
    width = PLOT_WIDTH - _NAME_WIDTH - _NUMBERS_WIDTH

    def length(ms: float) -> float:
        share = (math.log10(max(ms, 10**low)) - low) / (high - low)
        return max(2.0, width * min(1.0, share))

    bottom = 36 + _LANE * len(stages)
    for power in range(low, high + 1):
        x = _NAME_WIDTH + width * (power - low) / (high - low)
        canvas.line([(x, 30), (x, bottom)], _GRID)
        canvas.words(x, bottom + 12, _time(10.0**power), size=12, anchor="middle", colour=PALE)
    kinds = (*_QUANTILES, _LAST)
    canvas.legend(_NAME_WIDTH, 12, [(f"p{share:.0%}"[:-1], paint) for share, paint in kinds])
    for place, (stage, sketch) in enumerate(stages):
        y = 36 + _LANE * (place + 0.5)
        canvas.words(0, y, _STAGES.get(stage, stage), size=13)
        told = [_time(sketch.quantile(share)) for share in (0.5, 0.9, 0.99)]
        title = f"{stage}: p50 {told[0]}, p90 {told[1]}, p99 {told[2]}, {sketch.count:,} times"
        for share, paint in (_LAST, *reversed(_QUANTILES)):
            reach = length(sketch.quantile(share))
            canvas.box(_NAME_WIDTH, y - _BAR_HEIGHT / 2, reach, _BAR_HEIGHT, paint, title)
        canvas.words(PLOT_WIDTH, y, " · ".join(told), size=12, anchor="end", colour=PALE)
    return canvas.finish(bottom + 24)


def _nice(value: float) -> float:
    """The least of 1, 2, 4, 8 times a power of ten that is not below. Pure."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-6)))
    return next(power * step for step in (1, 2, 4, 8, 10) if power * step >= value * 0.9999)


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _time(ms: float) -> str:
    value, unit = (ms / 1000, "s") if ms >= 1000 else (ms, "ms")
    return f"{value:.2g} {unit}" if value < 10 else f"{value:,.0f} {unit}"


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60}:{rest % 60:02}"
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{minutes} min"
