"""Plots of the report page as inline SVG, in the page's own colours.

Shapes carry classes, and the page's style sheet says what these look like by day, by night and
on paper: `ours` is mmserve, `other` another engine, `goal` a ceiling or target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Series", "bars", "lines", "number", "stack", "ticks"]

_WIDTH = 560.0
_ROW = 26.0
_LABELS = 222.0
_VALUES = 96.0
_HEIGHT = 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 142.0, 28.0, 44.0
_NUM_STYLES = 7


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `low` and `high` are the range over rounds, `goal` a mark of its own."""

    label: str
    value: float
    is_ours: bool = False
    low: float | None = None
    high: float | None = None
    goal: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """A line through points in order of x."""

    label: str
    points: Sequence[tuple[float, float]]
    is_ours: bool = False


def bars(title: str, unit: str, entries: Sequence[Bar], *, is_log: bool = False) -> str:
    """Bars from left to right, each with its value; whiskers are the range over rounds. Pure.

    On a logarithmic axis bars begin at the power of ten below the smallest value.
    """
    most = max((max(b.value, b.high or 0, b.goal or 0) for b in entries), default=0) or 1.0
    least = min((b.value for b in entries if b.value > 0), default=most) if is_log else 0.0
    start = 10 ** math.floor(math.log10(least)) if is_log else 0.0
    span = _WIDTH - _LABELS - _VALUES

    def place(value: float) -> float:
        if is_log:
            share = math.log(max(value, start) / start) / max(math.log(most / start), 1e-9)
        else:
            share = value / most
        return _LABELS + span * max(0.0, min(1.0, share))

    shapes = []
    for number, bar in enumerate(entries):
        middle = _ROW * (number + 0.5)
        shapes += _bar(bar, middle, place, unit)
    return _figure(title, _ROW * len(entries) + 4, shapes)


def _bar(bar: Bar, middle: float, place: Callable[[float], float], unit: str) -> list[str]:
    end, kind = place(bar.value), "ours" if bar.is_ours else "other"
    told = f"{bar.label}: {number(bar.value)} {unit}".strip()
    if bar.low is not None and bar.high is not None:
        told += f" (rounds: {number(bar.low)} to {number(bar.high)})"
    if bar.goal is not None:
        told += f", ceiling {number(bar.goal)}"
    parts = [
        _text(_LABELS - 8, middle, bar.label, "label end" + (" strong" if bar.is_ours else "")),
        f'<rect class="{kind}" x="{_LABELS:.1f}" y="{middle - 8:.1f}" '
        f'width="{max(end - _LABELS, 1):.1f}" height="16"><title>{escape(told)}</title></rect>',
    ]
    right = end
    if bar.low is not None and bar.high is not None and bar.high > bar.low:
        low, high = place(bar.low), place(bar.high)
        right = max(right, high)
        parts.append(
            f'<path class="range" d="M{low:.1f} {middle:.1f}H{high:.1f}'
            f'M{low:.1f} {middle - 4:.1f}v8M{high:.1f} {middle - 4:.1f}v8"/>'
        )
    if bar.goal is not None:
        x = place(bar.goal)
        right = max(right, x)
        parts.append(f'<path class="goal" d="M{x:.1f} {middle - 11:.1f}v22"/>')
    words = f"{number(bar.value)} {bar.note or unit}".strip()
    parts.append(_text(right + 6, middle, words, "value"))
    return parts


def stack(title: str, shares: Mapping[str, float]) -> str:
    """One bar whose parts add up to a whole, with a legend that tells each share. Pure."""
    shapes, x, total = [], 0.0, sum(shares.values()) or 1.0
    for place, (name, value) in enumerate(shares.items()):
        width = _WIDTH * value / total
        told = escape(f"{name}: {100 * value / total:.2f} %")
        shapes.append(
            f'<rect class="fill{place % _NUM_STYLES}" x="{x:.1f}" y="4" '
            f'width="{max(width, 0.6):.1f}" height="30"><title>{told}</title></rect>'
        )
        y = 54 + 20 * place
        shapes.append(
            f'<rect class="fill{place % _NUM_STYLES}" x="0" y="{y - 6:.1f}" '
            'width="14" height="12"/>'
        )
        shapes.append(_text(22, y, f"{name}  {100 * value / total:.2f} %", "label"))
        x += width
    return _figure(title, 48 + 20 * len(shares), shapes)


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    goals: Mapping[str, float] | None = None,
    *,
    is_log: bool = False,
) -> str:
    """Lines with their names at their ends, and level lines for goals. Pure."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    levels = list((goals or {}).values())
    x_low, x_high = min(0.0, *xs) if len(xs) > 1 else 0.0, max(xs) or 1.0
    y_low, y_high = _limits([*ys, *levels], is_log=is_log)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        if is_log:
            share = math.log(max(y, y_low) / y_low) / math.log(y_high / y_low)
        else:
            share = (y - y_low) / (y_high - y_low)
        return _LEFT + width * (x - x_low) / (x_high - x_low), _TOP + height * (1 - share)

    shapes = _axes(at, (x_low, x_high), _y_ticks(y_low, y_high, is_log=is_log), width)
    shapes.append(_text(_LEFT + width / 2, _HEIGHT - 8, x_label, "axis middle"))
    shapes.append(_text(4, 6, y_label, "axis"))
    names: list[tuple[float, str, str]] = []
    for label, level in (goals or {}).items():
        y = at(x_low, level)[1]
        shapes.append(f'<path class="goal" d="M{_LEFT:.1f} {y:.1f}h{width:.1f}"/>')
        names.append((y, label, "value"))
    for place, one in enumerate(series):
        kind = "line-ours" if one.is_ours else f"line{place % _NUM_STYLES}"
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in one.points))
        shapes.append(
            f'<path class="{kind}" d="M{path}"><title>{escape(one.label)}</title></path>'
        )
        if len(one.points) <= 40:
            shapes += [
                f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
                for x, y in (at(*point) for point in one.points)
            ]
        strong = "value strong" if one.is_ours else "value"
        names.append((at(*one.points[-1])[1], one.label, strong))
    for y, label, kind in _apart(names):
        shapes.append(_text(_LEFT + width + 8, y, label, kind))
    return _figure(title, _HEIGHT, shapes)


def _apart(names: Sequence[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Names moved down just so far that none lies on another. Pure."""
    placed, last = [], -math.inf
    for y, label, kind in sorted(names):
        last = max(y, last + 14)
        placed.append((last, label, kind))
    return placed


def _axes(
    at: Callable[[float, float], tuple[float, float]],
    x_range: tuple[float, float],
    y_ticks: Sequence[float],
    width: float,
) -> list[str]:
    shapes = []
    for value in y_ticks:
        y = at(x_range[0], value)[1]
        shapes.append(f'<path class="grid" d="M{_LEFT:.1f} {y:.1f}h{width:.1f}"/>')
        shapes.append(_text(_LEFT - 6, y, number(value), "axis end"))
    for value in ticks(*x_range):
        x = at(value, y_ticks[0])[0]
        shapes.append(_text(x, _HEIGHT - _BOTTOM + 14, number(value), "axis middle"))
    return shapes


def _limits(values: Sequence[float], *, is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log:
        positive = [value for value in values if value > 0] or [1.0]
        start = 10 ** math.floor(math.log10(min(positive)))
        return start, max(10 ** math.ceil(math.log10(max(positive))), start * 10)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (0.0 if 0 <= low < 0.5 * high else low - room), high + room


def _y_ticks(low: float, high: float, *, is_log: bool) -> list[float]:
    if not is_log:
        return ticks(low, high)
    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    return [10.0**power for power in powers]


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, both within, at most `most` of them. Pure."""
    if high <= low:
        return [low]
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(s * power for s in (1, 2, 5, 10, 20) if (high - low) / (s * power) <= most - 1)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)] or [low]


def number(value: float) -> str:
    """A number with about three digits, thousands set apart. Pure."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y + 4:.1f}">{escape(words)}</text>'


def _figure(title: str, height: float, shapes: Sequence[str]) -> str:
    told = escape(title)
    return (
        f'<figure><figcaption>{told}</figcaption><svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" '
        f'role="img" aria-label="{escape(title, quote=True)}">{"".join(shapes)}</svg></figure>'
    )
