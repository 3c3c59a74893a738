"""Files of rows as bytes: told apart by name, unpacked, refused if they are of another kind."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

from mmserve.batch.settings import FormatName
from mmserve.core import BadRequest

__all__ = ["check_text_file", "format_of", "opened"]

_SUFFIXES: dict[str, FormatName] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "jsonl",
    "": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_FOREIGN = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive or a workbook",
    b"\x1f\x8b": "packed by gzip",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"SQLite format 3": "a database",
}


def format_of(path: Path, given: FormatName | None) -> FormatName:
    """The format that is given, or that the name of the file tells. Pure. Raises BadRequest."""
    if given is not None:
        return given
    inner = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    suffix = inner.suffix.lower()
    if suffix not in _SUFFIXES:
        known = ", ".join(name for name in _SUFFIXES if name)
        raise BadRequest(
            f"{path}: the name does not tell the format, known are {known}",
            field="format",
            reason="unknown_suffix",
            hint="--format says what it is",
        )
    return _SUFFIXES[suffix]


@contextmanager
def opened(path: Path) -> Iterator[BufferedIOBase]:
    """The bytes of a file; those that a file whose name ends in .gz holds.

    Raises BadRequest, also inside the `with`, where a packed file is damaged.
    """
    if path.suffix.lower() != ".gz":
        with path.open("rb") as file:
            yield file
        return
    try:
        with gzip.open(path, "rb") as packed:
            yield packed
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadRequest(
            f"{path} is not packed by gzip, or damaged: {error}",
            field="rows",
            reason="damaged",
            hint="pack it again, or give it unpacked",
        ) from None


def check_text_file(path: Path, name: FormatName) -> None:
    """Raises BadRequest if the file begins like one that is no text in UTF-8."""
    with opened(path) as file:
        head = file.read(16)
    for magic, kind in _FOREIGN.items():
        if head.startswith(magic):
            raise BadRequest(
                f"{path} is {kind}, not {name}",
                field="format",
                reason="other_format",
                hint="--format parquet reads it"
                if magic == b"PAR1"
                else f"export it as {name} in UTF-8",
            )
