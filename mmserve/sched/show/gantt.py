"""The last steps as an SVG picture: time from left to right, a lane a sequence.

step      | encode | forward | forward | .. |      lanes are as long as the steps
#12 alice |  cached / computed  | decoded ..|      that a sequence had a row in
#13 bob   - - - waits - - -     | computed  |
tokens    bars a step
slots     held, cached and free, stacked
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mmserve.core.svg import INK, PALE, WIDTH, Canvas, Paint, cut, fitted
from mmserve.sched.show.axis import Axis, time_words
from mmserve.sched.show.chart import headline
from mmserve.sched.show.lanes import Lane, Waiter, lanes_of
from mmserve.sched.show.timeline import StepRecord, StepRow
from mmserve.sched.updates import SchedCounts

__all__ = ["draw_gantt"]

_MAX_LANES = 48
_LEFT = 168.0
_TOP = 122.0
_LANE = 22.0
_BAR = 16.0
_STRIP = 44.0
_CACHED = Paint("#a9d3ef", "#2b6a94")
_COMPUTED = Paint("#f5c26b", "#8a5a00")
_DECODED = Paint("#b5dfca", "#1d6b4a")
_WAITED = Paint("#eceff2", "#b3bcc4")
_ENCODED = Paint("#e3b7d5", "#8a2f69")
_FORWARD = Paint("#e4e8ec", "#6b757e")
_PLANNED = Paint("#5d6770", "#5d6770")
_FREE = Paint("#f1f3f5", "#f1f3f5")
_BAD = "#b3261e"
_LEGEND = (
    ("from cache", _CACHED),
    ("computed", _COMPUTED),
    ("decoded", _DECODED),
    ("waited", _WAITED),
    ("planning", _PLANNED),
    ("encoding", _ENCODED),
    ("forward", _FORWARD),
)


def draw_gantt(
    counts: SchedCounts, records: Sequence[StepRecord], waiters: Iterable[Waiter] = ()
) -> str:
    """The records as an SVG file of at most 48 lanes. Pure.

    Pauses in which nothing ran are cut short and marked. Arguments as in `draw_steps`.
    """
    canvas = Canvas("steps of the scheduler")
    title, note = headline(counts)
    canvas.words(24, 28, title, size=16, is_bold=True)
    canvas.words(24, 52, f"{note}; a zigzag: time left out", colour=PALE)
    if not records:
        canvas.words(24, 84, "no step has run yet", colour=PALE)
        return canvas.finish(110)
    canvas.legend(24, 78, _LEGEND)
    waiters = tuple(waiters)
    lanes, num_hidden = lanes_of(records, waiters, _MAX_LANES)
    if num_hidden:  # begin shortly before the first of those that are shown
        records = records[max(0, min(lane.rows[0][0] for lane in lanes if lane.rows) - 8) :]
        lanes, num_hidden = lanes_of(records, waiters, _MAX_LANES)
    num_unseen = counts.waiting - sum(lane.is_waiting for lane in lanes)
    axis = Axis(records, _LEFT, WIDTH - 24.0)
    bottom = _TOP + _LANE * (len(lanes) + 1) + 6
    _draw_grid(canvas, axis, bottom + 2 * _STRIP + 20)
    _draw_device(canvas, axis, _TOP)
    for number, lane in enumerate(lanes, 1):
        _draw_lane(canvas, axis, lane, _TOP + _LANE * number)
    hidden = ((num_hidden, "more ran"), (num_unseen, "more wait"))
    notes = [f"... {count:,} {what}" for count, what in hidden if count > 0]
    if notes:
        canvas.words(_LEFT, bottom + 6, ", ".join(notes), colour=PALE)
        bottom += 22
    _draw_tokens(canvas, axis, bottom + 8)
    _draw_slots(canvas, axis, bottom + _STRIP + 20, counts.slots_total)
    bottom += 2 * _STRIP + 20
    _draw_cuts(canvas, axis, bottom)
    return canvas.finish(bottom + 24)


def _draw_grid(canvas: Canvas, axis: Axis, bottom: float) -> None:
    """Beginnings of steps, with the time of some, and pauses."""
    first_s = axis.records[0].start_s
    for place in axis.marks(6.0):
        x = axis.left[place]
        canvas.line([(x, _TOP - 6), (x, bottom)], "#eaeef2")
    for place in axis.marks(76.0):
        x = axis.left[place]
        time_ms = (axis.records[place].start_s - first_s) * 1e3
        canvas.line([(x, _TOP - 10), (x, bottom)], "#d1d7dd")
        if x + 60 < WIDTH:
            canvas.words(x + 3, _TOP - 14, time_words(time_ms), size=11, colour=PALE)


def _draw_cuts(canvas: Canvas, axis: Axis, bottom: float) -> None:
    """Zigzags where time is left out."""
    for x, reason in axis.cuts:
        heights = np.arange(_TOP - 6, bottom, 8).tolist()
        path = [(x + 3 * (-1) ** k, height) for k, height in enumerate(heights)]
        canvas.line(path, "#ffffff", width=4.0)
        canvas.line(path, PALE, title=reason)


def _draw_device(canvas: Canvas, axis: Axis, y: float) -> None:
    """What each step spent its time on."""
    canvas.words(24, y + _BAR / 2, "step", is_bold=True)
    for place, record in enumerate(axis.records):
        x, total_ms = axis.left[place], max(record.total_ms, 1e-3)
        pixels = (axis.right[place] - x) / total_ms
        title = (
            f"step {record.step}: planned {record.plan_ms:.2f} ms, "
            f"encoded {record.encode_ms:.1f} ms ({record.num_patches:,} patches), "
            f"forward {record.forward_ms:.1f} ms; {len(record.facts)} rows, "
            f"{record.num_tokens:,} tokens; {record.running} running, {record.waiting} waiting"
        )
        parts = (
            (record.plan_ms, _PLANNED),
            (record.encode_ms, _ENCODED),
            (record.forward_ms, _FORWARD),
        )
        for part_ms, paint in parts:
            if part_ms * pixels >= 0.2:
                canvas.box(x, y, part_ms * pixels, _BAR, paint, title)
            x += part_ms * pixels
        number, width = f"{record.step}", record.forward_ms * pixels
        canvas.words(
            x - width / 2, y + _BAR / 2, _whole(number, width), size=11, anchor="middle"
        )


def _draw_lane(canvas: Canvas, axis: Axis, lane: Lane, y: float) -> None:
    name = f"#{lane.sequence_id} {cut(lane.client, 40)}"
    canvas.words(24, y + _BAR / 2, fitted(name, _LEFT - 32))
    last = len(axis.records) - 1
    for start, end in lane.waits(axis.records):
        left = axis.x(lane.arrived_s) if start not in lane.retracted else axis.left[start]
        right = axis.right[last] if end > last else axis.left[end]
        canvas.box(left, y + 4, right - left, _BAR - 8, _WAITED, f"{name} waits")
    for rows in _runs(lane.rows):
        _draw_rows(canvas, axis, name, rows, y)
    for place in lane.retracted:
        x, middle = axis.left[place], y + _BAR / 2
        for side in (-5, 5):
            canvas.line(
                [(x - 5, middle - side), (x + 5, middle + side)],
                _BAD,
                width=2.0,
                title=f"{name} is retracted",
            )
    place, row = lane.rows[-1] if lane.rows else (0, None)
    if row is not None and row.finish is not None:
        x = axis.right[place]
        colour = _BAD if row.finish == "error" else INK
        ending = f"{name} ends: {row.finish}"
        canvas.line([(x, y - 1), (x, y + _BAR + 1)], colour, width=3.0, title=ending)


def _runs(rows: list[tuple[int, StepRow]]) -> list[list[tuple[int, StepRow]]]:
    """Rows to be drawn as one: decoding in steps that follow one another, others alone."""
    runs: list[list[tuple[int, StepRow]]] = []
    for place, row in rows:
        before, last = runs[-1][-1] if runs else (-2, row)
        if before == place - 1 and row.num_decode and last.num_decode:
            runs[-1].append((place, row))
        else:
            runs.append([(place, row)])
    return runs


def _draw_rows(
    canvas: Canvas, axis: Axis, name: str, rows: list[tuple[int, StepRow]], y: float
) -> None:
    first, last = rows[0][0], rows[-1][0]
    x, width = axis.left[first], axis.right[last] - axis.left[first]
    if rows[0][1].num_decode:
        steps = f"{axis.records[first].step} to {axis.records[last].step}"
        title = f"{name}: {len(rows)} tokens decoded in steps {steps}"
        canvas.box(x, y, width, _BAR, _DECODED, title)
        canvas.words(x + 4, y + _BAR / 2, _whole(f"{len(rows)}", width - 4), size=11)
        return
    row = rows[0][1]
    title = (
        f"{name}: {row.num_cached:,} tokens from the cache, {row.num_prefill:,} computed "
        f"in step {axis.records[first].step}"
    )
    total = max(row.num_cached + row.num_prefill, 1)
    height = _BAR * row.num_cached / total
    if row.num_cached:
        canvas.box(x, y, width, height, _CACHED, title)
    canvas.box(x, y + height, width, _BAR - height, _COMPUTED, title)
    label = (
        f"{row.num_cached:,} + {row.num_prefill:,}"
        if row.num_cached
        else f"{row.num_prefill:,}"
    )
    canvas.words(x + 4, y + _BAR / 2, _whole(label, width - 4), size=11)


def _draw_tokens(canvas: Canvas, axis: Axis, y: float) -> None:
    most = max(max(record.num_tokens for record in axis.records), 1)
    canvas.words(24, y + 8, "tokens a step", is_bold=True)
    canvas.words(24, y + 26, f"most: {most:,}", colour=PALE)
    for place, record in enumerate(axis.records):
        x, width = axis.left[place], axis.right[place] - axis.left[place]
        num_decode = sum(row.num_decode for row in record.rows)
        bottom = y + _STRIP
        title = (
            f"step {record.step}: {record.num_tokens:,} tokens, {num_decode} of them decoded"
        )
        parts = ((num_decode, _DECODED), (record.num_tokens - num_decode, _COMPUTED))
        for count, paint in parts:
            if count:
                height = _STRIP * count / most
                bottom -= height
                canvas.box(x, bottom, width, height, Paint(paint.fill, paint.fill), title)


def _draw_slots(canvas: Canvas, axis: Axis, y: float, num_slots: int) -> None:
    canvas.words(24, y + 8, "KV slots", is_bold=True)
    canvas.words(24, y + 26, f"{num_slots:,}: held, cached, free", size=11, colour=PALE)
    for place, record in enumerate(axis.records):
        x, width = axis.left[place], axis.right[place] - axis.left[place]
        bottom = y + _STRIP
        title = (
            f"after step {record.step}: {record.slots_held:,} held, "
            f"{record.slots_cached:,} cached, {record.slots_free:,} free"
        )
        parts = (
            (record.slots_held, _COMPUTED),
            (record.slots_cached, _CACHED),
            (record.slots_free, _FREE),
        )
        for count, paint in parts:
            if count:
                height = _STRIP * count / max(num_slots, 1)
                bottom -= height
                canvas.box(x, bottom, width, height, Paint(paint.fill, paint.fill), title)


def _whole(label: str, width: float) -> str:
    """A label if all of it fits: a number that is cut is another number. Pure."""
    return label if fitted(label, width, 11) == label else ""
