"""Rows of a CSV file (RFC 4180): a line of names, then cells in quotes or without.

A record that cannot be read is a fault of the line where it begins, and reading goes on in the
line after that one: a quote that is never closed does not take the rows behind it along.

    line 1  video,question      names
    line 2  a.mp4,"Who           [2, 4)  a record with a line end in it
    line 3   is there?"
    line 4  b.mp4,"What          [4, 5)  a fault: after the next quote comes no comma
    line 5  c.mp4,"Where?"       [5, 6)  read again, a record
"""

from __future__ import annotations

import csv
import itertools
from collections import deque
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

from mmserve.batch.formats.columns import Columns, cell_value
from mmserve.batch.formats.opening import check_text_file, opened
from mmserve.batch.formats.raw import RawRow
from mmserve.batch.json_text import canonical
from mmserve.batch.values import Fault, shown
from mmserve.core import BadRequest

__all__ = ["CsvRows"]

_MAX_CELL_CHARACTERS = 64 * 2**20


class _Lines:
    """Lines of a file as text, some of them to be read once more.

    What is not UTF-8 becomes half surrogate pairs, so that the fault is that of one record.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self._line = 0

    @property
    def begin(self) -> int:
        """Line in which the record under way begins, from 1. Pure."""
        return self._line - len(self._taken) + 1

    @property
    def is_blank(self) -> bool:
        """Whether the record under way is nothing but space. Pure."""
        return not "".join(self._taken).strip()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else self._next()
        self._taken.append(line)
        self._line += 1
        return line

    def start(self) -> None:
        """The lines that were taken are done with. Changes: the record under way."""
        self._taken = []

    def take_back(self) -> None:
        """Read all but the first of the lines taken once more. Changes: what comes next."""
        self._line -= len(self._taken) - 1
        self._again.extendleft(reversed(self._taken[1:]))
        self._taken = self._taken[:1]

    def _next(self) -> str:
        raw = self._file.readline()
        if not raw:
            raise StopIteration
        text = raw.decode("utf-8", "surrogateescape")
        return text.removeprefix("\ufeff") if self._line == 0 else text


class CsvRows:
    """The rows of a CSV file.

    Raises BadRequest if the first line does not name its columns, or names one nobody reads.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        check_text_file(path, "csv")
        self._path = path
        line, names = next(self._records(), (1, Fault("no line names the columns")))
        if isinstance(names, Fault):
            raise BadRequest(
                f"{path}, line {line}: {names}",
                field="rows",
                reason="columns",
                hint="the first line names the columns: video,question",
            )
        self._names = names
        self._read = frozenset(columns.check(path, names))

    def __iter__(self) -> Iterator[RawRow]:
        for line, cells in itertools.islice(self._records(), 1, None):
            try:
                yield RawRow(line, canonical(self._fields(cells)))
            except Fault as fault:
                yield RawRow(line, canonical(str(fault)))

    def _records(self) -> Iterator[tuple[int, list[str] | Fault]]:
        """(line where it begins, cells or what is wrong) of each record that is not blank."""
        # The limit is one of the whole process; it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL_CHARACTERS))
        with opened(self._path) as file:
            lines = _Lines(file)
            reader = csv.reader(lines, strict=True)
            while True:
                lines.start()
                try:
                    cells: list[str] | Fault | None = next(reader, None)
                except csv.Error as error:
                    lines.take_back()
                    cells = Fault(f"not CSV: {_reason(error)}")
                if cells is None:
                    return
                if not lines.is_blank:
                    yield lines.begin, cells

    def _fields(self, cells: list[str] | Fault) -> dict[str, object]:
        """The cells that are read and not empty, by name. Pure. Raises Fault."""
        names = self._names
        if isinstance(cells, Fault):
            raise cells
        if len(cells) != len(names):
            last = f", the last is {shown(cells[-1])}" if len(cells) > len(names) else ""
            raise Fault(f"{len(cells)} cells, but the file has {len(names)} columns{last}")
        found: dict[str, object] = {}
        for name, text in zip(names, cells, strict=True):
            if text and name in self._read:
                _check_text(name, text)
                found[name] = cell_value(name, text)
        return found


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Fault(f"{name} is not UTF-8 at character {error.start + 1}") from None


def _reason(error: csv.Error) -> str:
    message = str(error)
    if "unexpected end" in message:
        return "a quote is opened and never closed"
    if "expected after" in message:
        return "a quote is closed before the end of its cell, write a quote in a cell twice"
    if "field limit" in message:
        return f"a cell has more than {_MAX_CELL_CHARACTERS:,} characters, is its quote closed?"
    if "new-line" in message:
        return "a line ends with CR alone, it must end with LF or CRLF"
    return message
