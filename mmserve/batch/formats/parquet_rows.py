"""Rows of a Parquet file, read a few at a time, so that a file may be larger than memory."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mmserve.batch.formats.arrow import arrow, parquet
from mmserve.batch.formats.columns import JSON_FIELDS, OBJECT_FIELDS, Columns, cell_value
from mmserve.batch.formats.raw import RawRow
from mmserve.batch.json_text import canonical
from mmserve.core import BadRequest

__all__ = ["ParquetRows"]

_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20


class ParquetRows:
    """The rows of a Parquet file; null is absent, lists are arrays.

    Raises BadRequest: no Parquet, a column nobody reads, or one of bytes; also while it is
    read, if the file is damaged farther on.
    Memory: one batch of rows, and a buffer for each column.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path = path
        self._arrow, self._parquet = arrow(), parquet()
        try:
            with self._parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
        except (self._arrow.ArrowException, OSError) as error:
            raise _damaged(path, "is no Parquet file", error) from None
        self._read = columns.check(path, schema.names)
        for name in self._read:
            _check_type(path, name, schema.field(name).type, self._arrow)

    def __iter__(self) -> Iterator[RawRow]:
        line = 0
        try:
            # By default the whole file is read ahead: 346 MiB of a file of 346 MiB, so 3 MiB.
            with self._parquet.ParquetFile(
                self._path, pre_buffer=False, buffer_size=_BUFFER_BYTES
            ) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=list(self._read)):
                    for row in batch.to_pylist():
                        line += 1
                        yield RawRow(line, canonical(_fields(row)))
        except (self._arrow.ArrowException, OSError, ValueError, OverflowError) as error:
            # ValueError: a moment between two microseconds, which Python has no value for.
            raise _damaged(self._path, f"cannot be read after row {line}", error) from None


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: cell_value(name, value)
        if isinstance(value, str) and name in JSON_FIELDS
        else _plain(value)
        for name, value in row.items()
        if value is not None
    }


def _plain(value: Any) -> Any:  # noqa: ANN401
    """`value` as JSON has it; what JSON has not becomes text."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    is_json = isinstance(value, int | str | None)
    is_json |= isinstance(value, float) and math.isfinite(value)
    return value if is_json else str(value)


def _check_type(path: Path, name: str, kind: Any, pa: ModuleType) -> None:  # noqa: ANN401
    types = pa.types
    is_bytes = types.is_binary(kind) or types.is_large_binary(kind)
    if is_bytes or types.is_fixed_size_binary(kind):
        raise _column(path, name, f"is of {kind}", "write paths, addresses or texts as strings")
    if name in OBJECT_FIELDS and types.is_struct(kind):
        # A struct has every member of every row, so a row's own schema cannot be told.
        raise _column(path, name, "is a struct", "write it as JSON text")


def _column(path: Path, name: str, message: str, hint: str) -> BadRequest:
    text = f"{path}: column {name} {message}"
    return BadRequest(text, field="rows", reason="columns", hint=hint)


def _damaged(path: Path, state: str, error: Exception) -> BadRequest:
    return BadRequest(
        f"{path} {state}: {' '.join(str(error).split())[:200]}",
        field="rows",
        reason="damaged",
        hint="write it again; --format says that it is of another format",
    )
