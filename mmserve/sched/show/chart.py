"""The last steps as text a person can read, 80 columns wide.

step 41: 1 running, 1 waiting, 3 ended, 1 retracted
slots 512 = 300 free + 90 cached + 122 held

step                34    41
#12     alice      |=...    | 36= 9# 3.
#13     bob        |--##x-=.| 15= 32# 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mmserve.core.svg import cut
from mmserve.sched.books.report import SchedReport
from mmserve.sched.show.lanes import Lane, Waiter, lanes_of
from mmserve.sched.show.timeline import StepRecord
from mmserve.sched.updates import SchedCounts

__all__ = ["draw_steps", "headline"]

_MAX_STEPS = 40
_MAX_LANES = 40
_MAX_CLIENTS = 12
_LABEL = 19
_CLIENT = 16
_COLUMNS = (("cached", 9), ("computed", 9), ("decoded", 9))
_REPORTED = (("waits", 6), ("runs", 5), ("service", 11), ("wait ms p50/99", 15))
_MARKS = "= most from cache  # computed  . decoded  - waited  x retracted  ! failed"


def draw_steps(
    counts: SchedCounts,
    records: Sequence[StepRecord],
    waiters: Iterable[Waiter] = (),
    report: SchedReport | None = None,
) -> str:
    """Ledgers, the last 40 steps with a line a sequence, and a line a client. Pure.

    Args:
        counts: as things stand now.
        records: oldest first.
        waiters: those that wait, the next to start first; the first few are enough.
        report: gives waits and service of each client, if given.
    """
    records = records[-_MAX_STEPS:]
    lanes, num_hidden = lanes_of(records, waiters, _MAX_LANES)
    lines = headline(counts)
    if records:
        lines += ["", _steps_line(records)]
    lines += [_lane_line(lane, records) for lane in lanes]
    if num_hidden:
        lines.append(f"... {num_hidden:,} more ran")
    num_unseen = counts.waiting - sum(lane.is_waiting for lane in lanes)
    if num_unseen > 0:
        lines.append(f"... {num_unseen:,} more wait")
    if records:
        lines += [*_footer(records), _MARKS]
    lines += _client_lines(records, report)
    return "\n".join(line.rstrip() for line in lines)


def headline(counts: SchedCounts) -> list[str]:
    """How things stand, in two lines. Pure."""
    return [
        f"step {counts.steps:,}: {counts.running:,} running, {counts.waiting:,} waiting, "
        f"{sum(counts.finished.values()):,} ended, {counts.retractions:,} retracted",
        f"slots {counts.slots_total:,} = {counts.slots_free:,} free + "
        f"{counts.slots_cached:,} cached + {counts.slots_held:,} held",
    ]


def _steps_line(records: Sequence[StepRecord]) -> str:
    first, last = f"{records[0].step}", f"{records[-1].step}"
    if len(records) < len(first) + len(last) + 1:
        return f"{'step':<{_LABEL}} {first}..{last}"
    return f"{'step':<{_LABEL}} {first}{last:>{len(records) - len(first)}}"


def _lane_line(lane: Lane, records: Sequence[StepRecord]) -> str:
    cells = [" "] * len(records)
    for start, end in lane.waits(records):
        cells[start:end] = "-" * (end - start)
    for place, row in lane.rows:
        if row.finish == "error":
            cells[place] = "!"
        elif row.num_decode:
            cells[place] = "."
        else:
            cells[place] = "=" if row.num_cached > row.num_prefill else "#"
    for place in lane.retracted:
        cells[place] = "x"
    label = cut(f"#{lane.sequence_id:<6} {cut(lane.client, 11)}", _LABEL)
    sums = ((lane.num_cached, "="), (lane.num_prefill, "#"), (lane.num_decode, "."))
    sizes = " ".join(f"{_short(count)}{mark}" for count, mark in sums)
    return f"{label:<{_LABEL}}|{''.join(cells)}| {sizes if lane.rows else 'waits'}"


def _footer(records: Sequence[StepRecord]) -> list[str]:
    """Digits that say how much each step took, 9 for the most."""
    rows = (
        ("ms", [record.total_ms for record in records]),
        ("tokens", [record.num_tokens for record in records]),
        ("patches", [record.num_patches for record in records]),
        ("waiting", [record.waiting for record in records]),
    )
    lines = []
    for name, values in rows:
        most = max(values)
        if most > 0:
            digits = "".join(f"{round(9 * v / most)}" if v else " " for v in values)
            lines.append(f"{name:>{_LABEL}}|{digits}| 9 = {_amount(most)}")
    return lines


def _client_lines(records: Sequence[StepRecord], report: SchedReport | None) -> list[str]:
    """Who got what in the steps drawn, and what the report adds."""
    work: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for record in records:
        for row in record.rows:
            mine = work[row.client]
            mine[0] += row.num_cached
            mine[1] += row.num_prefill
            mine[2] += row.num_decode
    told = report or SchedReport()
    for name in (*told.waits, *told.service, *told.running, *told.waiting):
        work.setdefault(name, [0, 0, 0])
    if not work:
        return []
    columns = _COLUMNS if report is None else (*_COLUMNS, *_REPORTED)
    head = "".join(f"{title:>{width}}" for title, width in columns)
    lines = ["", f"{'client':<{_CLIENT}}{head}"]
    order = sorted(work, key=lambda name: (-told.service.get(name, 0), -sum(work[name]), name))
    for name in order[:_MAX_CLIENTS]:
        cells = [*map(_short, work[name]), *_reported(told, name)]
        line = "".join(f"{cell:>{c[1]}}" for cell, c in zip(cells, columns, strict=False))
        lines.append(f"{cut(name, _CLIENT - 1) or '-':<{_CLIENT}}{line}")
    if len(work) > _MAX_CLIENTS:
        lines.append(f"... {len(work) - _MAX_CLIENTS:,} more clients")
    return lines


def _reported(report: SchedReport, name: str) -> list[str]:
    waits = report.waits.get(name)
    return [
        _short(report.waiting.get(name, 0)),
        _short(report.running.get(name, 0)),
        f"{report.service.get(name, 0):,.0f}",
        f"{_short(round(waits.p50_ms))}/{_short(round(waits.p99_ms))}" if waits else "",
    ]


def _short(count: int) -> str:
    """At most five letters up to a billion."""
    if count < 10_000:
        return f"{count}"
    return f"{count // 1000}k" if count < 10_000_000 else f"{count // 1_000_000}M"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"
