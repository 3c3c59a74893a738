"""A report as an SVG picture: a lane for each task.

count   |#####---------------| 5 of 20   | .  .:  .            |
         share of flipped answers          where flips begin
"""

from __future__ import annotations

from mmserve.batch.drift.report import Report, TaskDrift
from mmserve.core.svg import PALE, WIDTH, Canvas, Paint, cut

__all__ = ["draw_report"]

_MARGIN = 24.0
_TOP = 132.0
_LANE = 34.0
_BAR = 14.0
_BAR_X, _BAR_WIDTH = 220.0, 330.0
_STRIP_X = 730.0
_STRIP_WIDTH = WIDTH - _STRIP_X - _MARGIN
_NAME_LETTERS = 24
_SAME = Paint("#a9d3ef", "#2b6a94")
_FLIPPED = Paint("#f5c26b", "#8a5a00")
_NOTHING = Paint("#eceff1", "#7b858f", is_dashed=True)
_TICK = "#8a5a00"


def draw_report(report: Report) -> str:
    """The report as an SVG file. Pure."""
    total = report.total
    canvas = Canvas(f"Drift of {report.b} from {report.a}")
    canvas.words(_MARGIN, 30, "Flipped answers by task", size=18, is_bold=True)
    canvas.words(_MARGIN, 54, f"A: {cut(report.a, 140)}", colour=PALE)
    canvas.words(_MARGIN, 72, f"B: {cut(report.b, 140)}", colour=PALE)
    canvas.legend(
        _MARGIN,
        96,
        (("same words", _SAME), ("flipped", _FLIPPED), ("nothing to compare", _NOTHING)),
    )
    longest = max(
        (p.difference.place for p in report.pairs if p.difference is not None), default=0
    )
    unit = _unit(report)
    canvas.words(_STRIP_X, 96, f"first difference, {unit} 0 to {longest}", colour=PALE)
    for number, task in enumerate((*report.tasks, total)):
        y = _TOP + _LANE * number
        _lane(canvas, y, task)
        is_all = number == len(report.tasks)
        places = [
            pair.difference.place
            for pair in report.pairs
            if pair.difference is not None and (is_all or pair.task == task.task)
        ]
        _strip(canvas, y, places, longest)
    return canvas.finish(_TOP + _LANE * (len(report.tasks) + 1) + _MARGIN)


def _unit(report: Report) -> str:
    units = {pair.difference.unit for pair in report.pairs if pair.difference is not None}
    return " or ".join(sorted(units)) or "token"


def _lane(canvas: Canvas, y: float, task: TaskDrift) -> None:
    canvas.words(_MARGIN, y, cut(task.task, _NAME_LETTERS))
    title = f"{task.flipped} of {task.compared} flipped, {task.failed} failed"
    paint = _SAME if task.compared else _NOTHING
    canvas.box(_BAR_X, y - _BAR / 2, _BAR_WIDTH, _BAR, paint, title)
    if task.flipped:
        width = _BAR_WIDTH * task.flipped_share
        canvas.box(_BAR_X, y - _BAR / 2, width, _BAR, _FLIPPED, title)
    told = f"{task.flipped:,} of {task.compared:,}"
    told += f", {task.failed:,} failed" if task.failed else ""
    canvas.words(_BAR_X + _BAR_WIDTH + 10, y, told, colour=PALE)


def _strip(canvas: Canvas, y: float, places: list[int], longest: int) -> None:
    canvas.line([(_STRIP_X, y), (_STRIP_X + _STRIP_WIDTH, y)])
    for place in places:
        x = _STRIP_X + _STRIP_WIDTH * place / max(1, longest)
        ends = [(x, y - _BAR / 2), (x, y + _BAR / 2)]
        canvas.line(ends, _TICK, width=2, title=f"place {place}")
