"""Rows of one medium side by side, in the order in which media first come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mmserve.batch.rows import Row, RowFault

__all__ = ["grouped"]


def grouped(
    rows: Iterable[Row | RowFault],
) -> tuple[Iterator[tuple[int, Row]], list[RowFault]]:
    """(group, row) of good rows, a group's rows together, and the faults.

    Memory: every row, which a plan on disk does not need.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    faults = []
    for row in rows:
        if isinstance(row, RowFault):
            faults.append(row)
        else:
            groups.setdefault(_media(row), []).append(row)
    plan = ((number, row) for number, own in enumerate(groups.values()) for row in own)
    return plan, faults


def _media(row: Row) -> tuple[object, ...]:
    window = (row.num_frames, row.fps, row.start_s, row.end_s, row.times_s, row.key_frames)
    return (row.video, row.images, *window)
