"""What goes over a cluster: rows of groups as they stand in the input, records as lines.

   {"group": 7, "rows": [{"line": 3, "content": b'{"video": ...}'}, ...]}
-> {"group": 7, "records": [b'{"id": ..., "line": 3, ...}', ...]}
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmserve.batch.elsewhere import PlannedRow
from mmserve.batch.records import Record
from mmserve.core import CacheUse, Timing, Usage

__all__ = ["GroupRow", "blocks_of", "groups_of", "numbered_content", "record_at", "record_of"]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A line of the input that is a row; `content` is its JSON object."""

    line: int
    content: bytes = field(repr=False)


def groups_of(planned: Iterable[PlannedRow]) -> Iterator[tuple[int, list[GroupRow]]]:
    """Rows that follow each other and have one group, numbered. Memory: one group."""
    runs = itertools.groupby(planned, key=lambda row: row.group_id)
    for number, (_, rows) in enumerate(runs):
        yield number, [GroupRow(row.line, row.content) for row in rows]


def blocks_of(
    groups: Iterable[tuple[int, Sequence[GroupRow]]], groups_a_block: int
) -> Iterator[list[dict[str, Any]]]:
    """So many groups at a time, as they go over the wire. Memory: one block."""
    items = (
        {
            "group": number,
            "rows": [{"line": row.line, "content": row.content} for row in rows],
        }
        for number, rows in groups
    )
    while block := list(itertools.islice(items, groups_a_block)):
        yield block


def numbered_content(row: GroupRow) -> bytes:
    """The row with the id that its line gives it, so that it may stand on another. Pure."""
    fields = json.loads(row.content)
    fields.setdefault("id", f"line-{row.line}")
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")


def record_at(record: bytes, line: int) -> bytes:
    """A record's line of JSON with another line of the input. Pure."""
    fields = json.loads(record) | {"line": line}
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "backslashreplace")


def record_of(record: bytes) -> Record:
    """The record that a line of JSON spells. Pure."""
    fields = json.loads(record)
    error, times = fields.get("error"), fields.get("timestamps_s")
    usage, timing = fields.get("usage"), fields.get("timing_ms")
    return Record(
        row_id=fields["id"],
        line=fields["line"],
        question_index=fields["question_index"],
        question=fields["question"],
        answer=fields["answer"],
        frames_used=fields["frames_used"],
        timestamps_s=None if times is None else tuple(times),
        usage=None if usage is None else _usage(usage),
        timing=None if timing is None else Timing(**timing),
        error=None if error is None else (error["code"], error["message"]),
        note=fields.get("note"),
        sample_index=fields.get("sample_index"),
    )


def _usage(counts: dict[str, Any]) -> Usage:
    uses = tuple(CacheUse(**use) for use in counts.pop("cache", ()))
    return Usage(**counts, cache=uses)
