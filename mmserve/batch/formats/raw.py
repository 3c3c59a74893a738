"""A row as it is kept until it is asked."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RawRow"]


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row that is not parsed yet.

    Args:
        line: where it begins in its file, from 1; of a Parquet file, its number.
        content: a line of JSON as it stands; of a table, its fields as a JSON object, or a JSON
            text that says why the row cannot be read.
    """

    line: int
    content: bytes
