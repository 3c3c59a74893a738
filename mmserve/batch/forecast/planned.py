"""The plan that a run would have, made in a folder that is gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mmserve.batch.formats import RawRow
from mmserve.batch.job import Input, JobIndex, Plan, Planned, survey
from mmserve.batch.row import Row, RowFault
from mmserve.batch.settings import AskSettings

__all__ = ["PlannedJob", "planned"]

PlannedJob = tuple[Iterator[tuple[object, Row]], Iterator[RowFault]]
"""(clip or set of pictures, row) in the order of the work; lines that are no rows."""


@contextmanager
def planned(rows: Input, settings: AskSettings) -> Iterator[PlannedJob]:
    """The order in which a run would do all rows. Cost: reads them twice. Memory: one row."""
    with TemporaryDirectory(prefix="mmserve-plan-") as folder:
        index = JobIndex(Path(folder, "plan"))
        try:
            survey(rows, index, settings)
            index.commit()
            plan = Plan(index, 1)
            yield _rows(rows, plan.rows()), _faults(rows, plan.faults())
        finally:
            index.close()


def _rows(rows: Input, plan: Iterator[Planned]) -> Iterator[tuple[object, Row]]:
    for place in plan:
        row = rows.parse(RawRow(place.line, place.content))
        if isinstance(row, Row):
            yield (place.group_id, row.images), row


def _faults(rows: Input, plan: Iterator[Planned]) -> Iterator[RowFault]:
    for place in plan:
        fault = rows.parse(RawRow(place.line, place.content))
        if isinstance(fault, RowFault):
            yield fault
