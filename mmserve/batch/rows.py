"""One line of a batch file -> a checked row, or everything that is wrong with it.

Reading is strict: a field that is unknown, of another type or out of range makes the row fail,
because a row answered under other settings than its writer meant looks like a good one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mmserve.batch.values import CHECKS, CONSTRAINTS, SAMPLING, Fault, shown
from mmserve.core import Constraint

__all__ = ["Row", "RowFault", "json_object", "numbered_lines", "parse_row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a batch file: some media and the questions about them.

    Args:
        line: its line in the file, counted from 1.
        row_id: the caller's own id, or `line-<n>`.
        questions: at least one.
        video: path or address of the clip; None if the row is about `images`.
        images: paths or addresses of the pictures, in order.
        num_frames, fps, start_s, end_s, times_s, key_frames: how to sample the clip; None where
            the row is silent.
        max_tokens: most tokens of each answer; None where the row is silent.
        constraint: what each answer must match.
        system: what the conversation begins with; None where the row is silent.
        is_conversation: whether each question is asked after the answer to the one before, in
            one conversation; else each is asked by itself.
        num_samples: answers drawn for each question.
        temperature, seed: how they are drawn; None where the row is silent.
    """

    line: int
    row_id: str | int
    questions: tuple[str, ...]
    video: str | None = None
    images: tuple[str, ...] = ()
    num_frames: int | None = None
    fps: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    times_s: tuple[float, ...] | None = None
    key_frames: bool | None = None
    max_tokens: int | None = None
    constraint: Constraint | None = None
    system: str | None = None
    is_conversation: bool = False
    num_samples: int = 1
    temperature: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """Why a line is no row, with as much of its id and questions as could be read.

    `questions` is (None,) where they could not; so a fault, too, has one record a question.
    """

    line: int
    row_id: str | int
    questions: tuple[str | None, ...]
    message: str


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, bytes without line end) of every line that is not blank.

    Lines end with LF or CRLF; a byte-order mark before the first is dropped.
    """
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            content = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
            if content.strip():
                yield line, content.rstrip(b"\r\n")


def parse_row(line: int, content: bytes) -> Row | RowFault:
    """The row that `content` spells, or what is wrong with it. Pure."""
    try:
        fields = json_object(content)
    except Fault as fault:
        return _fault(line, str(fault))
    reader = _RowReader(fields)
    values = {name: reader.read(name, check) for name, check in CHECKS.items()}
    values["questions"] = reader.one_of("question", "questions") or ()
    reader.one_of("video", "images")
    values["constraint"] = reader.constraint()
    reader.check_window()
    reader.check_unknown()
    row_id = values.pop("id")
    if reader.faults:
        message = "; ".join(reader.faults)
        return _fault(line, message, row_id, values["questions"] or (None,))
    for name in ("question", *CONSTRAINTS):
        values.pop(name)
    values["images"] = values["images"] or ()
    return Row(line=line, row_id=_given_or_line(row_id, line), **values)


def _fault(
    line: int,
    message: str,
    row_id: str | int | None = None,
    questions: tuple[str | None, ...] = (None,),
) -> RowFault:
    return RowFault(
        line=line,
        row_id=_given_or_line(row_id, line),
        questions=questions,
        message=f"line {line}: {message}",
    )


def _given_or_line(row_id: str | int | None, line: int) -> str | int:
    return f"line-{line}" if row_id is None else row_id


def json_object(content: bytes) -> dict[str, Any]:
    """The object that a line spells, each name once. Pure. Raises Fault."""
    try:
        text = content.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Fault(f"not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise Fault(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise Fault("not a row: nested too deep") from None
    except Fault:
        raise
    except ValueError:  # a number with more digits than Python converts
        raise Fault("not a row: a number has too many digits") from None
    if not isinstance(value, dict):
        raise Fault(
            f"a row is a JSON object with video or images and question, not {shown(value)}"
        )
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Fault(f"field {shown(twice)} is given twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise Fault(f"not JSON: {name} is no JSON number")


class _RowReader:
    """The fields of one row, and the faults found in them so far."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self._values: dict[str, Any] = {}
        self.faults: list[str] = []

    def read(self, name: str, check: Callable[[object], Any]) -> Any:  # noqa: ANN401
        """The checked value; None if absent or at fault. Null is absent, except for id."""
        value = self._fields.get(name)
        if value is None and not (name == "id" and name in self._fields):
            return None
        try:
            self._values[name] = check(value)
        except Fault as fault:
            self.faults.append(f"{name} {fault}")
        return self._values.get(name)

    def one_of(self, first: str, second: str) -> Any:  # noqa: ANN401
        """The value of whichever is given; a fault if both are, or none is."""
        given = [name for name in (first, second) if self._fields.get(name) is not None]
        if len(given) != 1:
            state = f"{first} and {second} are both given" if given else f"{first} is missing"
            self.faults.append(f"{state}, give {first} or {second}")
            return None
        return self._values.get(given[0])

    def constraint(self) -> Constraint | None:
        """The one constraint that is given."""
        kinds = [kind for kind in CONSTRAINTS if self._fields.get(kind) is not None]
        if len(kinds) > 1:
            self.faults.append(f"{' and '.join(kinds)} are both given, give one")
        if len(kinds) != 1 or kinds[0] not in self._values:
            return None
        value = self._values[kinds[0]]
        if kinds[0] == "choices":
            value = json.dumps(value, ensure_ascii=False)
        return Constraint(kinds[0], value)

    def check_window(self) -> None:
        """Sampling fields belong to a clip, and its window is not empty."""
        if self._fields.get("images") is not None:
            for name in SAMPLING:
                if self._fields.get(name) is not None:
                    self.faults.append(f"{name} is for a video, the row has images")
        start_s, end_s = self._values.get("start_s") or 0.0, self._values.get("end_s")
        if end_s is not None and end_s <= start_s:
            self.faults.append(
                f"end_s is {end_s:g}, must be after start_s, which is {start_s:g}"
            )

    def check_unknown(self) -> None:
        """A field nobody reads is a fault."""
        for name in self._fields.keys() - CHECKS.keys():
            self.faults.append(f"unknown field {shown(name)}; known are {', '.join(CHECKS)}")
