"""One pass over the input: every line is checked, noted, compared with the run before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

from mmserve.batch.asks import request_of
from mmserve.batch.formats import RawRow
from mmserve.batch.job.index import JobIndex, RowEntry
from mmserve.batch.job.kept import asked_digest
from mmserve.batch.job.route import route_of
from mmserve.batch.row import Row, RowFault
from mmserve.batch.settings import AskSettings
from mmserve.core import BadRequest

__all__ = ["Input", "survey"]


class Input(Protocol):
    """The rows of a job, in order; may be gone through more than once."""

    def __iter__(self) -> Iterator[RawRow]:
        """Every row that is not blank."""
        ...

    def parse(self, raw: RawRow) -> Row | RowFault:
        """The row, or what is wrong with it. Pure."""
        ...


def survey(rows: Input, index: JobIndex, settings: AskSettings) -> None:
    """Note every row, in place of those the index had.

    Changes: the rows of the index. Memory: one row.
    Raises BadRequest if a record of the index is about another row or question.
    """
    has_records = sum(index.num_kept) > 0
    with index.new_rows():
        for raw in rows:
            digest = hashlib.blake2b(raw.content, digest_size=16).digest()
            entry = index.old_row(raw.line, raw.content)
            is_same = entry is not None and entry.digest == digest
            asked = index.asked(raw.line) if has_records else []
            if entry is None or not is_same or asked:
                parsed = rows.parse(raw)
                if asked:
                    _compare(raw.line, parsed, asked, is_same=is_same or entry is None)
                entry = _entry(raw, digest, parsed, settings)
            index.put_row(entry)
    num_strays = index.num_strays()
    if num_strays:
        raise _other_input(f"{num_strays} of its questions are not in the input")


def _entry(raw: RawRow, digest: bytes, row: Row | RowFault, settings: AskSettings) -> RowEntry:
    if isinstance(row, RowFault):
        return RowEntry(raw.line, raw.content, digest, len(row.questions), 1, None)
    route = route_of(row, request_of(row, 0, settings))
    num_questions = len(row.questions)
    return RowEntry(raw.line, raw.content, digest, num_questions, row.num_samples, route)


def _compare(
    line: int, row: Row | RowFault, asked: list[tuple[int, bytes]], *, is_same: bool
) -> None:
    for index, digest in asked:
        if index >= len(row.questions):
            continue  # counted as a stray
        if digest != asked_digest(row.row_id, row.questions[index]):
            raise _other_input(f"line {line}, question {index}, has changed")
    if not is_same:
        raise _other_input(f"line {line} has changed, though its questions have not")


def _other_input(reason: str) -> BadRequest:
    return BadRequest(
        f"the output is of another input: {reason}",
        field="output",
        reason="other_input",
        hint="--retry-errors asks failed rows again, --overwrite starts again",
    )
