"""Records as a CSV file (RFC 4180, UTF-8)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import IO, Any

from mmserve.batch.formats.records_table import PLAIN, TIMINGS, USAGES, cells_of

__all__ = ["write_csv"]

_PARTS = {"usage": USAGES, "timing_ms": TIMINGS}


def write_csv(lines: Iterator[bytes], file: IO[bytes]) -> None:
    """A line of names, then one for each record; null is an empty cell, lists are JSON text.

    Changes: `file`.
    """
    # Half a surrogate pair has no UTF-8; it is written as its escape, as in JSON lines.
    text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
    writer = csv.writer(text)
    writer.writerow(_names())
    for line in lines:
        writer.writerow(_row(cells_of(line)))
    text.flush()
    text.detach()


def _names() -> Iterator[str]:
    for name in PLAIN:
        yield from [f"{name}.{part}" for part in _PARTS.get(name, ())] or [name]


def _row(cells: dict[str, Any]) -> Iterator[object]:
    for name, value in cells.items():
        if name in _PARTS:
            yield from (_cell((value or {}).get(part)) for part in _PARTS[name])
        else:
            yield _cell(value)


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list) else value
