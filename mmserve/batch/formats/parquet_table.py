"""Records as a Parquet file: typed columns, token counts and times as structs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import IO, Any

from mmserve.batch.formats.arrow import arrow, parquet
from mmserve.batch.formats.records_table import PLAIN, TIMINGS, USAGES, cells_of

__all__ = ["write_parquet"]

_GROUP_ROWS = 4096


def write_parquet(lines: Iterator[bytes], file: IO[bytes]) -> None:
    """One row for each record, row group by row group.

    Changes: `file`. Memory: one row group. Raises BadRequest if pyarrow is missing.
    """
    pa = arrow()
    schema = _schema()
    with parquet().ParquetWriter(file, schema, compression="zstd") as writer:
        while group := [
            _plain(cells_of(line)) for line in itertools.islice(lines, _GROUP_ROWS)
        ]:
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


def _schema() -> Any:  # noqa: ANN401
    pa = arrow()
    use = pa.struct(
        [("kind", pa.string()), ("outcome", pa.string()), ("num_tokens", pa.int64())]
    )
    kinds = {name: pa.string() for name in PLAIN} | {
        "line": pa.int64(),
        "question_index": pa.int64(),
        "sample_index": pa.int64(),
        "frames_used": pa.int64(),
        "timestamps_s": pa.list_(pa.float64()),
        "usage": pa.struct(
            [(name, pa.list_(use) if name == "cache" else pa.int64()) for name in USAGES]
        ),
        "timing_ms": pa.struct([(name, pa.float64()) for name in TIMINGS]),
    }
    return pa.schema(kinds.items())


def _plain(cells: dict[str, Any]) -> dict[str, Any]:
    """Texts as UTF-8 has them: half a surrogate pair becomes its escape, as in JSON lines."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
        for name, value in cells.items()
    }
