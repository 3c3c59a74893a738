"""Files of rows and of records: JSON lines, CSV and Parquet.

Owns: telling formats apart, a table's cells as the values of a JSON line, records as a table.
Called by `batch` alone; knows nothing of what rows mean.

    .jsonl .ndjson -> JsonLines   -+                           +-> .csv
    .csv           -> CsvRows     -+-> RawRow   record_line ---+
    .parquet       -> ParquetRows -+                           +-> .parquet
"""

from mmserve.batch.formats.columns import Columns
from mmserve.batch.formats.json_lines import numbered_lines
from mmserve.batch.formats.opening import format_of
from mmserve.batch.formats.raw import RawRow
from mmserve.batch.formats.reading import RowSource, open_rows
from mmserve.batch.formats.tables import check_table, is_table, write_table

__all__ = [
    "Columns",
    "RawRow",
    "RowSource",
    "check_table",
    "format_of",
    "is_table",
    "numbered_lines",
    "open_rows",
    "write_table",
]
