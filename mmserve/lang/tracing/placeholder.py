"""Values that are not known while a program is traced."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import NoReturn

from mmserve.core import ProgramMisuse
from mmserve.lang.ir import Expr, Hole

__all__ = ["Placeholder", "UnknownValue", "place_of"]

_HINT = "trace it with the value given, or append it to the state"


class UnknownValue(ProgramMisuse):
    """The program needs a value that is not known while it is traced."""


class Placeholder(Expr):
    """Stands for an argument or an answer; it can be appended, and nothing else.

    Whatever would need its value raises UnknownValue, which names the line.
    """

    def __init__(self, name: str) -> None:
        super().__init__((Hole(name),))
        object.__setattr__(self, "_name", name)

    def _refuse(self, what: str) -> NoReturn:
        name = object.__getattribute__(self, "_name")
        message = f"the program {what} {name!r}, which is unknown while it is traced"
        raise UnknownValue(f"{message}, {_place_in_program()}", hint=_HINT)

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        self._refuse(f"uses .{attribute} of")

    def __bool__(self) -> bool:
        self._refuse("branches on")

    def __eq__(self, other: object) -> bool:
        self._refuse("compares")

    def __hash__(self) -> int:
        self._refuse("looks something up by")

    def __str__(self) -> str:
        self._refuse("makes a text of")

    def __format__(self, spec: str) -> str:
        self._refuse("makes a text of")

    def __repr__(self) -> str:
        return f"Placeholder({object.__getattribute__(self, '_name')!r})"

    def __iter__(self) -> NoReturn:
        self._refuse("goes through")

    def __len__(self) -> int:
        self._refuse("takes the length of")

    def __getitem__(self, index: object) -> NoReturn:
        self._refuse("takes an item of")

    def __contains__(self, item: object) -> bool:
        self._refuse("looks for something in")

    def __int__(self) -> int:
        self._refuse("makes a number of")

    def __float__(self) -> float:
        self._refuse("makes a number of")

    def __index__(self) -> int:
        self._refuse("makes a number of")

    def __lt__(self, other: object) -> bool:
        self._refuse("compares")

    def __gt__(self, other: object) -> bool:
        self._refuse("compares")

    def __le__(self, other: object) -> bool:
        self._refuse("compares")

    def __ge__(self, other: object) -> bool:
        self._refuse("compares")


def place_of(error: BaseException) -> str:
    """The line of the program that raised `error`: "in file.py line 7: text". Pure."""
    trace = error.__traceback__
    place = "in an unknown line"
    while trace is not None:
        if not _is_ours(trace.tb_frame):
            place = _line(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _place_in_program() -> str:
    """The nearest line outside this package that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return _line(frame, frame.f_lineno)


def _line(frame: FrameType, number: int) -> str:
    file = frame.f_code.co_filename
    return f"in {file} line {number}: {linecache.getline(file, number).strip()}"


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module == "mmserve" or module.startswith(("mmserve.", "contextlib"))
