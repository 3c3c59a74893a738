"""The order of the work: group by group, each along the trie of its prompts.

    groups, as they first appear ...                    | the last ones, longest first
    [first line 1] [first line 2] [first line 9] ...    | [long] [less] [less] [short] [short]

A long group that begins last would run alone at the end. So the groups at the end are sorted by
work: as many as `_WORKING_SETS` times the clips that are open at once, if each were as long as
the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mmserve.batch.job.index import JobIndex

__all__ = ["Plan", "Planned"]

_WORKING_SETS = 2
_PAGE_ROWS = 64
_LEFT = """
CREATE TEMP TABLE left_rows AS
SELECT line, group_id, route, work FROM rows
WHERE group_id IS NOT NULL AND num_questions * num_samples >
    (SELECT COUNT(*) FROM records k WHERE k.line = rows.line)
"""
_GROUPS = """
CREATE TEMP TABLE left_groups AS
WITH sums AS (
    SELECT group_id, MIN(line) AS first_line, SUM(work) AS work
    FROM left_rows GROUP BY group_id),
behind AS (
    SELECT *, SUM(work) OVER (
        ORDER BY first_line DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - work
        < ? * (SELECT MAX(work) FROM sums) AS is_last
    FROM sums)
SELECT group_id, ROW_NUMBER() OVER (
    ORDER BY is_last, CASE WHEN is_last THEN -work ELSE 0 END, first_line) AS place
FROM behind
"""
_PLAN = """
CREATE TEMP TABLE plan AS
SELECT ROW_NUMBER() OVER (ORDER BY g.place, r.route, r.line) AS place, r.line, r.group_id
FROM left_rows r JOIN left_groups g USING (group_id)
"""
_PAGE = """
SELECT p.place, p.line, p.group_id, r.content FROM plan p JOIN rows r USING (line)
WHERE p.place > ? ORDER BY p.place LIMIT ?
"""
_FAULTS = """
SELECT line, content FROM rows
WHERE group_id IS NULL AND line > ? AND num_questions * num_samples >
    (SELECT COUNT(*) FROM records k WHERE k.line = rows.line)
ORDER BY line LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row whose turn it is; `group_id` is None for a line that is no row."""

    line: int
    group_id: bytes | None
    content: bytes = field(repr=False)


class Plan:
    """What is left to do, in order, as tables of the index that go with it.

    Args:
        index: with all rows.
        num_clips: clips that are open at once.
    """

    def __init__(self, index: JobIndex, num_clips: int) -> None:
        self._index = index
        index.query(_LEFT)
        index.query(_GROUPS, [_WORKING_SETS * num_clips])
        index.query(_PLAN)
        index.query("CREATE UNIQUE INDEX temp.plan_places ON plan(place)")
        index.query("DROP TABLE left_rows")
        index.query("DROP TABLE left_groups")

    def faults(self) -> Iterator[Planned]:
        """Lines that are no rows and have no record yet. Records may be written meanwhile."""
        last = 0
        while page := self._index.query(_FAULTS, [last, _PAGE_ROWS]).fetchall():
            last = page[-1][0]
            for line, content in page:
                yield Planned(line, None, content)

    def rows(self) -> Iterator[Planned]:
        """Rows with a question that has no record yet. Records may be written meanwhile."""
        last = 0
        while page := self._index.query(_PAGE, [last, _PAGE_ROWS]).fetchall():
            last = page[-1][0]
            for _, line, group_id, content in page:
                yield Planned(line, group_id, content)
