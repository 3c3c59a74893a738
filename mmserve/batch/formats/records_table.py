"""A record's line of JSON -> the cells of a table's row; every table has the same columns."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from mmserve.core import Broken, Timing, Usage

__all__ = ["PLAIN", "TIMINGS", "USAGES", "cells_of"]

PLAIN = (
    "id",
    "line",
    "question_index",
    "sample_index",
    "question",
    "answer",
    "frames_used",
    "timestamps_s",
    "usage",
    "timing_ms",
    "error_code",
    "error_message",
    "note",
)
"""Columns; `usage` and `timing_ms` have parts."""
USAGES = tuple(spec.name for spec in fields(Usage))
TIMINGS = tuple(spec.name for spec in fields(Timing))


def cells_of(line: bytes) -> dict[str, Any]:
    """Every column with its value, None where the record has none. Pure.

    An id is a text in each table. Raises Broken for a record with more than the columns hold.
    """
    record = json.loads(line)
    error = record.pop("error", None) or {}
    record["error_code"], record["error_message"] = error.get("code"), error.get("message")
    _check_names("record", record, PLAIN)
    _check_names("usage", record.get("usage"), USAGES)
    _check_names("timing_ms", record.get("timing_ms"), TIMINGS)
    cells = {name: record.get(name) for name in PLAIN}
    cells["id"] = str(cells["id"])
    return cells


def _check_names(part: str, given: dict[str, Any] | None, known: tuple[str, ...]) -> None:
    lost = sorted((given or {}).keys() - set(known))
    if lost:
        message = f"a table has no column for {part} field {lost[0]!r}"
        raise Broken(message, hint="write the output as JSON lines")
