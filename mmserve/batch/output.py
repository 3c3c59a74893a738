"""The output of a run: one writer at a time, whole records, taken up again after a kill.

A JSONL file is written while the run works: every record is one line, handed to the operating
system as soon as it is written, in the order in which they are done. So a killed run leaves
whole lines and at most one half line, the last:

    [0, end)    whole records                 taken up
    [end, size) what a killed run half wrote  dropped

A table (.csv, .parquet) is written once, at the end of the run; until then its records are in
the index only. Both are put in the input's order at the end, under another name that then takes
the place of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from enum import Enum
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mmserve.batch.formats import check_table, is_table, write_table
from mmserve.batch.job import Kept, kept_record
from mmserve.core import BadRequest, Busy

__all__ = ["Output", "OutputFile", "OutputMode", "TableFile", "open_output"]

_RECORD_START = b'{"id": '
_OTHER_FORMS = (".gz", ".zst", ".bz2", ".xz", ".zip", ".xlsx", ".xls", ".tsv", ".arrow", ".orc")


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


class Output(Protocol):
    """Where the records of a run go."""

    path: Path

    @property
    def is_live(self) -> bool:
        """Whether records are there as soon as they are written."""
        ...

    @property
    def is_in_order(self) -> bool:
        """Whether it holds whole records only, in the order of the input. Pure."""
        ...

    @property
    def num_whole(self) -> int | None:
        """Records read and written, if nothing else is there; None if so. Pure."""
        ...

    def kept(self) -> Iterator[Kept]:
        """Whole records that are there, in their order. Once, before anything is written."""
        ...

    def write(self, kept: Kept) -> None:
        """Append one record, if it is live. Changes: the file."""
        ...

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put these records in the place of all. Changes: the file, whole or not at all."""
        ...

    def close(self) -> None:
        """Put everything on the disk and give the lock back. Idempotent."""
        ...

    def discard(self) -> None:
        """Close it where nothing was written; a file that this made goes. Idempotent."""
        ...


def open_output(path: Path, mode: OutputMode) -> Output:
    """The output, open and locked; nothing of it is changed, but a JSONL file is created.

    Raises BadRequest if no file of records can be there, or it holds what `mode` forbids; Busy
    if another run has it open.
    """
    _check_place(path)
    return TableFile(path, mode) if is_table(path) else OutputFile(path, mode)


class OutputFile:
    """An open, locked JSONL file; use as a context manager."""

    def __init__(self, path: Path, mode: OutputMode) -> None:
        self.path = path
        self.is_live = True
        self._is_made = not (path.exists() or path.is_symlink())
        self._file = _open_locked(path)
        self._last = (0, 0, 0)
        self._num_records = 0
        self._is_cut = False
        self._is_in_order = True
        try:
            size_bytes = os.fstat(self._file.fileno()).st_size
            _check_new(path, mode, size_bytes)
        except BaseException:
            self._file.close()
            raise

    @property
    def is_in_order(self) -> bool:
        """Whether it holds whole records only, in the order of the input. Pure."""
        return self._is_in_order and not self._is_cut

    @property
    def num_whole(self) -> int | None:
        """Records read and written; None if behind them is something else. Pure."""
        return None if self._is_cut else self._num_records

    def kept(self) -> Iterator[Kept]:
        """Whole records that are there; raises BadRequest for lines that are none."""
        with self.path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                found = kept_record(raw)
                if found is None:
                    self._check_tail(raw, number, is_last=not file.read(1))
                    self._is_cut = True
                    return
                self._note(found)
                yield found

    def write(self, kept: Kept) -> None:
        """Append one record and hand it to the operating system. Changes: the file."""
        self._note(kept)
        with _named(self.path):
            self._file.write(kept.content)
            self._file.flush()

    def replace(self, lines: Iterable[bytes]) -> None:
        """Write lines in order to a new file, which then takes this one's place and lock."""
        place = self.path.resolve()
        spare = place.with_name(f"{place.name}.part")
        file = _open_locked(spare)
        last = b""
        try:
            with _named(spare):
                file.truncate(0)
                for last in lines:
                    file.write(last)
                file.flush()
                os.fsync(file.fileno())
                spare.replace(place)
        except BaseException:
            spare.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # what could not be written before
                file.close()
            raise
        self._file.close()
        self._file = file
        found = kept_record(last)
        self._last = found.key if found else (0, 0, 0)
        self._is_in_order, self._is_cut = True, False

    def close(self) -> None:
        """Put everything on the disk and give the lock back. Idempotent."""
        if not self._file.closed:
            with _named(self.path):
                os.fsync(self._file.fileno())
                self._file.close()

    def discard(self) -> None:
        """Close it where nothing was written; a file that this made goes. Idempotent."""
        if self._is_made and not self._file.closed:
            self.path.unlink(missing_ok=True)
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _note(self, kept: Kept) -> None:
        self._is_in_order = self._is_in_order and self._last < kept.key
        self._last = kept.key
        self._num_records += 1

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


class TableFile:
    """A CSV or Parquet file, by its name's end; nothing is open until `replace`."""

    def __init__(self, path: Path, mode: OutputMode) -> None:
        self.path = path
        self.is_live = False
        self.is_in_order = False
        self.num_whole: int | None = None
        check_table(path)
        _check_new(path, mode, path.stat().st_size if path.exists() else 0)

    def kept(self) -> Iterator[Kept]:
        """Nothing: the records of a table are in the index."""
        return iter(())

    def write(self, kept: Kept) -> None:
        """Nothing is written before the end."""

    def replace(self, lines: Iterable[bytes]) -> None:
        """Write the table, whole or not at all."""
        write_table(iter(lines), self.path)
        self.is_in_order = True

    def close(self) -> None:
        """Nothing is open."""

    def discard(self) -> None:
        """Nothing is open, and nothing was made."""


def _check_place(path: Path) -> None:
    """Raises BadRequest where no file of records can be, or its name says another form."""
    if path.suffix.lower() in _OTHER_FORMS:
        raise BadRequest(
            f"output {path}: records are not written as {path.suffix}",
            field="output",
            reason="unknown_suffix",
            hint="name it .jsonl, .csv or .parquet",
        )
    if not path.parent.is_dir():
        message = f"output {path}: there is no folder {path.parent}"
        raise BadRequest(message, field="output", reason="missing", hint="make it first")
    if path.exists() and not path.is_file():
        # The last step of a run puts a file in its place, which would be the end of a device.
        kind = "a folder" if path.is_dir() else "no plain file"
        raise BadRequest(
            f"output {path} is {kind}",
            field="output",
            reason="no_file",
            hint="give the name of a file, new or of a run before",
        )


def _check_new(path: Path, mode: OutputMode, size_bytes: int) -> None:
    if mode is OutputMode.NEW and size_bytes:
        raise BadRequest(
            f"output {path} already holds {size_bytes:,} bytes",
            field="output",
            reason="exists",
            hint="--resume continues that run, --overwrite starts again",
        )


def _open_locked(path: Path) -> BufferedWriter:
    """`path`, created if missing, open for appending, with the only lock on it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A run's last step replaces the file; a lock on the old one is worth nothing.
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


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system refuses names the file, which writing to an open one does not."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
