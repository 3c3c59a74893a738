"""The reader that a file needs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from mmserve.batch.formats.columns import Columns
from mmserve.batch.formats.csv_rows import CsvRows
from mmserve.batch.formats.json_lines import JsonLines
from mmserve.batch.formats.parquet_rows import ParquetRows
from mmserve.batch.settings import FormatName

__all__ = ["RowSource", "open_rows"]

RowSource: TypeAlias = JsonLines | CsvRows | ParquetRows


def open_rows(path: Path, name: FormatName, columns: Columns) -> RowSource:
    """The rows of a file, to be read as often as wanted. Raises BadRequest if it is no such."""
    if name == "csv":
        return CsvRows(path, columns)
    if name == "parquet":
        return ParquetRows(path, columns)
    return JsonLines(path)
