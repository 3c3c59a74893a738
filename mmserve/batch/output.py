"""The output file of a run: one writer at a time, whole lines, taken up again after a kill.

Every record is one line, handed to the operating system as soon as it is written, so a killed
run leaves whole lines and at most one half line, the last. Taking the run up again cuts that
half line off:

    [0, end)    whole records, in order       kept
    [end, size) what a killed run half wrote  cut off
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from enum import Enum
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

from mmserve.batch.records import Record, record_line
from mmserve.core import BadRequest, Busy

__all__ = ["KeptRecord", "OutputFile", "OutputMode"]

_RECORD_START = b'{"id": '


class OutputMode(Enum):
    """What to do with records that are already in the file."""

    NEW = "new"
    """There must be none."""
    RESUME = "resume"
    """Keep all."""
    RETRY_ERRORS = "retry-errors"
    """Keep answers; drop error records, so that their questions are asked again."""
    OVERWRITE = "overwrite"
    """Drop all."""


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record of an earlier run: whose it is, and whether it is an error."""

    row_id: str | int
    question: str | None
    is_error: bool


class OutputFile:
    """An open, locked output file; use as a context manager.

    `kept` maps (line, question index) to the records that stay.
    """

    def __init__(self, path: Path, mode: OutputMode) -> None:
        """Open, lock and read `path`; it is changed by `begin` only, but created if missing.

        Raises BadRequest if it holds records that `mode` forbids, or lines that are no records;
        Busy if another run has it open.
        """
        self.path = path
        self.kept: dict[tuple[int, int], KeptRecord] = {}
        self._mode = mode
        self._file = _open_locked(path)
        try:
            self._end_bytes = self._read(mode)
        except BaseException:
            self._file.close()
            raise

    def begin(self) -> None:
        """Drop what the mode says and a half-written last line. Changes: the file."""
        self._file.truncate(self._end_bytes)
        if self._mode is OutputMode.RETRY_ERRORS:
            self._drop_errors()

    def write(self, record: Record) -> None:
        """Append one record and hand it to the operating system. Changes: the file."""
        self._file.write(record_line(record))
        self._file.flush()

    def close(self) -> None:
        """Put everything on the disk and give the lock back. Idempotent."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, mode: OutputMode) -> int:
        """Fill `kept`; gives the bytes from the start of the file that stay."""
        size_bytes = os.fstat(self._file.fileno()).st_size
        if mode is OutputMode.OVERWRITE:
            return 0
        if mode is OutputMode.NEW and size_bytes:
            raise BadRequest(
                f"output {self.path} already holds {size_bytes:,} bytes",
                field="output",
                reason="exists",
                hint="--resume continues that run, --overwrite starts again",
            )
        end_bytes = self._read_kept()
        if mode is OutputMode.RETRY_ERRORS:
            self.kept = {key: kept for key, kept in self.kept.items() if not kept.is_error}
        return end_bytes

    def _read_kept(self) -> int:
        """Fill `kept`; gives the end of the last whole record, in bytes from the start."""
        end = 0
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                found = _parsed(raw)
                if found is None:
                    self._check_tail(raw, number, is_last=not file.read(1))
                    break
                key, record = found
                self.kept[key] = record
                end += len(raw)
        return end

    def _check_tail(self, raw: bytes, number: int, *, is_last: bool) -> None:
        if is_last and (raw.startswith(_RECORD_START) or _RECORD_START.startswith(raw)):
            return
        raise BadRequest(
            f"line {number} of output {self.path} is no record of this tool",
            field="output",
            reason="foreign",
            line=number,
            hint="give another output file, or --overwrite to lose what it holds",
        )

    def _drop_errors(self) -> None:
        """Copy the answers to a new file, which then takes this one's place and lock."""
        place = self.path.resolve()
        spare = place.with_name(f"{place.name}.part")
        file = _open_locked(spare)
        file.truncate(0)
        with place.open("rb") as old:
            for raw in old:
                found = _parsed(raw)
                if found is not None and not found[1].is_error:
                    file.write(raw)
        file.flush()
        os.fsync(file.fileno())
        spare.replace(place)
        self._file.close()
        self._file = file


def _open_locked(path: Path) -> BufferedWriter:
    """`path`, created if missing, open for appending, with the only lock on it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A run that retries errors replaces the file; a lock on the old one is worth nothing.
        is_current = os.fstat(file.fileno()).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        is_current = False
    if not is_current:
        file.close()
        raise Busy(
            f"another run is writing output {path}",
            retry_after_s=60,
            hint="wait for it to end, or give another output file",
        )
    return file


def _parsed(raw: bytes) -> tuple[tuple[int, int], KeptRecord] | None:
    """(line, question index) and what is kept of a whole record; None if `raw` is not one."""
    if not raw.endswith(b"\n"):
        return None
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    match fields:
        case {
            "id": str() | int() as row_id,
            "line": int() as line,
            "question_index": int() as index,
            "question": str() | None as question,
            "error": dict() | None as error,
        }:
            return (line, index), KeptRecord(row_id, question, error is not None)
    return None
