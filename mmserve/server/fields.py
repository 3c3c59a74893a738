"""Reading a JSON object field by field.

Every field is taken with a check, null counts as absent, and what nobody took is refused:

    body = Body({"n": 2, "tempature": 0})
    body.take("n", integer(1, 128), 1)       # 2
    body.finish()                            # BadRequest: unknown field tempature
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from typing import TypeVar

from mmserve.core import BadRequest

__all__ = [
    "Body",
    "Check",
    "anything",
    "boolean",
    "integer",
    "integers",
    "list_of",
    "number",
    "short_text",
    "shown",
    "text",
    "text_or_texts",
    "word",
    "wrong",
]

T = TypeVar("T")
D = TypeVar("D")
Check = Callable[[object, str], T]
"""Takes a JSON value and the field's full name; gives the value to use or raises BadRequest."""

_MAX_SHOWN = 60
_MAX_NAME = 40
_MAX_SHORT = 256


class Body:
    """One JSON object being read. Mutable: it remembers which fields were taken."""

    __slots__ = ("_fields", "_known", "_where")

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong(where or "the request body", value, "an object")
        self._fields: dict[str, object] = value
        self._where = where
        self._known: set[str] = set()

    def name(self, field: str) -> str:
        """The field's full name, as errors say it. Pure."""
        return f"{self._where}.{field}" if self._where else field

    def has(self, field: str) -> bool:
        """Whether the field is there and not null. Pure."""
        return self._fields.get(field) is not None

    def take(self, field: str, check: Check[T], default: D) -> T | D:
        """The field's value, or `default`. Changes: the field counts as known."""
        self._known.add(field)
        value = self._fields.get(field)
        return default if value is None else check(value, self.name(field))

    def need(self, field: str, check: Check[T]) -> T:
        """The value of a field that must be there. Changes: the field counts as known."""
        self._known.add(field)
        value = self._fields.get(field)
        if value is None:
            name = self.name(field)
            raise BadRequest(f"{name} is missing", field=name, reason="missing")
        return check(value, self.name(field))

    def neutral(self, field: str, *, allowed: tuple[object, ...] = ()) -> None:
        """Let a field pass that has no effect here: null, or one of `allowed`.

        Changes: the field counts as known.
        """
        self._known.add(field)
        value = self._fields.get(field)
        if value is None or any(type(value) is type(a) and value == a for a in allowed):
            return
        name = self.name(field)
        words = " or ".join(["null", *(shown(value) for value in allowed)])
        message = f"{name} is {shown(value)}, which this server cannot honour"
        raise BadRequest(message, field=name, reason="unsupported", hint=f"allowed is {words}")

    def finish(self) -> None:
        """Refuse the fields that nobody took. Pure."""
        for field in self._fields:
            if field not in self._known:
                name = self.name(field[:_MAX_NAME])
                near = difflib.get_close_matches(field[:_MAX_NAME], sorted(self._known), 1)
                hint = f"did you mean {near[0]}?" if near else None
                message = f"unknown field {name}"
                raise BadRequest(message, field=name, reason="unknown", hint=hint)


def shown(value: object) -> str:
    """A value as a message may repeat it: JSON, at most 60 characters. Pure."""
    if isinstance(value, str):
        words = json.dumps(value[: _MAX_SHOWN + 1], ensure_ascii=False)
    elif isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    elif isinstance(value, int) and abs(value) >= 10**_MAX_SHOWN:
        return "a huge number"
    else:
        words = json.dumps(value)
    return words if len(words) <= _MAX_SHOWN else words[: _MAX_SHOWN - 3] + "..."


def wrong(name: str, value: object, allowed: str) -> BadRequest:
    """The refusal of a value of the wrong kind or range. Pure."""
    return BadRequest(
        f"{name} is {shown(value)}, allowed is {allowed}", field=name, reason="value"
    )


def anything(value: object, _name: str) -> object:
    """Any JSON value. Pure."""
    return value


def boolean(value: object, name: str) -> bool:
    """True or false. Pure."""
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def integer(low: int, high: int) -> Check[int]:
    """Whole numbers in [low, high]. Pure."""

    def check(value: object, name: str) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole:
            raise wrong(name, value, "a whole number")
        whole = int(value)  # type: ignore[call-overload]  # an int, or a float without fraction
        if not low <= whole <= high:
            raise wrong(name, value, f"{low} to {high}")
        return int(whole)

    return check


def number(low: float, high: float) -> Check[float]:
    """Numbers in [low, high]. Pure."""

    def check(value: object, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(name, value, "a number")
        if not low <= value <= high:
            raise wrong(name, value, f"{low:g} to {high:g}")
        return float(value)

    return check


def text(value: object, name: str) -> str:
    """A string. Pure."""
    if not isinstance(value, str):
        raise wrong(name, value, "a string")
    return value


def short_text(value: object, name: str) -> str:
    """A string of at most 256 characters. Pure."""
    words = text(value, name)
    if len(words) > _MAX_SHORT:
        message = f"{name} has {len(words)} characters, the limit is {_MAX_SHORT}"
        raise BadRequest(message, field=name, reason="too_long")
    return words


def word(*allowed: str) -> Check[str]:
    """One of the words named. Pure."""

    def check(value: object, name: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise wrong(name, value, ", ".join(allowed))
        return value

    return check


def list_of(check: Check[T], *, most: int = 1 << 20) -> Check[tuple[T, ...]]:
    """Lists of at most `most` items, each passing `check`. Pure."""

    def check_all(value: object, name: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise wrong(name, value, "a list")
        if len(value) > most:
            raise wrong(name, value, f"a list of at most {most}")
        return tuple(check(item, f"{name}[{k}]") for k, item in enumerate(value))

    return check_all


def text_or_texts(value: object, name: str) -> tuple[str, ...]:
    """A string, or a list of at most 64 strings. Pure."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong(name, value, "a string or a list of strings")
    return list_of(text, most=64)(value, name)


def integers(low: int, high: int) -> Check[tuple[int, ...]]:
    """Lists of whole numbers in [low, high]. Pure."""
    return list_of(integer(low, high))
