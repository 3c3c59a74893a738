"""Records as a table in a file that is there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mmserve.batch.formats.arrow import parquet
from mmserve.batch.formats.csv_table import write_csv
from mmserve.batch.formats.opening import format_of
from mmserve.batch.formats.parquet_table import write_parquet
from mmserve.core import BadRequest

__all__ = ["check_table", "is_table", "write_table"]


def is_table(path: Path) -> bool:
    """Whether records go to a file of this name as a table. Pure."""
    return path.suffix.lower() in (".csv", ".parquet", ".pq")


def check_table(path: Path) -> None:
    """Raises BadRequest if `write_table` could not write such a file; ask before a run."""
    if format_of(path, None) == "parquet":
        parquet()


def write_table(lines: Iterator[bytes], path: Path) -> None:
    """Write records, each a line of JSON, as CSV or Parquet, as the name of `path` says.

    The rows have the order of `lines`. What `path` held stays until the new file is on disk.
    Changes: `path`. Raises BadRequest: another name, or a package is missing.
    """
    if not is_table(path):
        raise BadRequest(
            f"{path} is no table, tables are .csv and .parquet",
            field="output",
            reason="unknown_suffix",
        )
    place = path.resolve()
    spare = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with spare.open("wb") as file:
            if format_of(path, None) == "csv":
                write_csv(lines, file)
            else:
                write_parquet(lines, file)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(place)
    finally:
        spare.unlink(missing_ok=True)
    _sync_folder(place.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
