"""Rows as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mmserve.batch.formats.opening import check_text_file, opened
from mmserve.batch.formats.raw import RawRow
from mmserve.core import BadRequest

__all__ = ["JsonLines", "numbered_lines"]


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, bytes without line end) of every line that is not blank.

    Lines end with LF or CRLF; a byte-order mark before the first is dropped.
    """
    with opened(path) as file:
        for line, raw in enumerate(file, start=1):
            content = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
            if content.strip():
                yield line, content.rstrip(b"\r\n")


class JsonLines:
    """The rows of a file of JSON lines. Raises BadRequest if it is plainly another file."""

    def __init__(self, path: Path) -> None:
        check_text_file(path, "jsonl")
        if next((content for _, content in numbered_lines(path)), b"").strip() == b"[":
            raise BadRequest(
                f"{path} is one JSON list, not a row a line",
                field="rows",
                reason="other_format",
                hint=f"jq -c '.[]' {path} writes one row a line",
            )
        self._path = path

    def __iter__(self) -> Iterator[RawRow]:
        for line, content in numbered_lines(self._path):
            yield RawRow(line, content)
