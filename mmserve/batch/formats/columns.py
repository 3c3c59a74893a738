"""Which columns of a table are read, and a cell as the value that a JSON line would have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmserve.batch.json_text import json_value
from mmserve.batch.values import Fault, shown
from mmserve.core import BadRequest

__all__ = ["JSON_FIELDS", "OBJECT_FIELDS", "Columns", "cell_value"]

_NUMBERS = frozenset(
    {
        "num_frames",
        "fps",
        "start_s",
        "end_s",
        "max_tokens",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "seed",
    }
)
_TRUTHS = frozenset({"key_frames"})
OBJECT_FIELDS = frozenset({"json_schema"})
JSON_FIELDS = frozenset({"images", "questions", "turns", "choices", "times_s"}) | OBJECT_FIELDS
"""Fields of several values: JSON text in a cell."""
_ONE_ENTRY = ("images", "questions")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that somebody reads, and whether others are ignored or refused."""

    known: frozenset[str]
    is_ignoring: bool = False

    def check(self, path: Path, given: Sequence[str]) -> tuple[str, ...]:
        """Those of `given` that are read. Pure. Raises BadRequest naming what is wrong."""
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise _refused(path, f"column {shown(twice[0])} is there twice", "rename one")
        if not {"video", "images"} & set(given):
            raise _refused(
                path,
                f"no column video or images, it has {', '.join(map(shown, given[:5]))}",
                "the first line of a CSV file names its columns, with commas between",
            )
        unknown = [name for name in given if name not in self.known]
        if unknown and not self.is_ignoring:
            names = ", ".join(shown(name) for name in unknown[:5])
            raise _refused(
                path,
                f"nobody reads column {names}; known are {', '.join(sorted(self.known))}",
                "--extra-fields ignore leaves other columns alone",
            )
        return tuple(name for name in given if name in self.known)


def _refused(path: Path, message: str, hint: str) -> BadRequest:
    return BadRequest(f"{path}: {message}", field="rows", reason="columns", hint=hint)


def cell_value(name: str, text: str) -> Any:  # noqa: ANN401
    """What a cell means in the column `name`; the text itself where it means nothing. Pure.

    So the check of the field tells a wrong cell with its column and its text.
    """
    if name in _NUMBERS:
        return _number(text)
    if name in _TRUTHS:
        return _TRUTH.get(text.lower(), text)
    return _several(name, text) if name in JSON_FIELDS else text


def _several(name: str, text: str) -> Any:  # noqa: ANN401
    if name in _ONE_ENTRY and not text.lstrip().startswith("["):
        return [text]
    try:
        return json_value(text)
    except Fault:
        return text


def _number(text: str) -> Any:  # noqa: ANN401
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return json.loads(text)
    except ValueError:  # more digits than Python converts
        return text
