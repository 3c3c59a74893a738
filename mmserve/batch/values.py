"""Checks of single values of a row: each gives the value as a row holds it, or a fault."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from mmserve.core import ConstraintKind, SamplingParams

_Entry = TypeVar("_Entry")

__all__ = ["CHECKS", "CONSTRAINTS", "SAMPLING", "Fault", "check_text", "shown"]

CONSTRAINTS: tuple[ConstraintKind, ...] = ("regex", "choices", "json_schema", "ebnf")
"""Fields of which a row may have one."""

_MAX_SHOWN_CHARACTERS = 60


class Fault(ValueError):
    """What is wrong with one value, as the end of a sentence that begins with its name."""


def shown(value: object) -> str:
    """`value` as JSON, cut when long. Pure."""
    text = json.dumps(value)
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[:_MAX_SHOWN_CHARACTERS]}... ({len(text):,} characters)"


def check_text(value: object) -> str:
    """`value`, if it is a text that says something. Pure. Raises Fault."""
    if not isinstance(value, str):
        raise Fault(f"must be a text, not {shown(value)}")
    if not value.strip():
        raise Fault("is empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Fault(f"holds half of a surrogate pair at character {error.start + 1}") from None
    return value


def _place(value: object) -> str:
    text = check_text(value)
    if "\0" in text:
        raise Fault("holds a NUL character")
    return text


def _identity(value: object) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise Fault(f"must be a text or a whole number, not {shown(value)}")
    return check_text(value)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Fault(f"must be a whole number, not {shown(value)}")
    return value


def _count(value: object) -> int:
    count = _whole(value)
    if not 1 <= count < 2**31:
        raise Fault(f"is {shown(value)}, allowed is 1 to {2**31 - 1:,}")
    return count


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Fault(f"must be a number, not {shown(value)}")
    if not abs(value) < 1e12 or not math.isfinite(value):
        raise Fault(f"is {shown(value)}, allowed is up to 1e12")
    return float(value)


def _rate(value: object) -> float:
    rate = _number(value)
    if rate <= 0:
        raise Fault(f"is {shown(value)}, must be above 0")
    return rate


def _moment(value: object) -> float:
    moment = _number(value)
    if moment < 0:
        raise Fault(f"is {shown(value)}, must be 0 or more")
    return moment


_LIMITS = {
    spec.name: (spec.metadata["low"], spec.metadata["high"])
    for spec in fields(SamplingParams)
    if "low" in spec.metadata
}


def _within(name: str, check: Callable[[object], Any]) -> Callable[[object], Any]:
    """`check`, and then the limits that the engine has for the value `name`."""
    low, high = _LIMITS[name]

    def read(value: object) -> Any:  # noqa: ANN401
        number = check(value)
        if not low <= number <= high:
            raise Fault(f"is {shown(value)}, allowed is {low:g} to {high:g}")
        return number

    return read


def _seed(value: object) -> int:
    seed = _whole(value)
    if not -(2**63) <= seed < 2**64:
        raise Fault(f"is {shown(value)}, which does not fit in 64 bits")
    return seed


def _top_k(value: object) -> int:
    if value == 0:
        raise Fault("is 0, allowed is -1 (off) or 1 and more")
    return int(_within("top_k", _whole)(value))


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise Fault(f"must be true or false, not {shown(value)}")
    return value


def _list_of(check: Callable[[object], _Entry]) -> Callable[[object], tuple[_Entry, ...]]:
    def read(value: object) -> tuple[_Entry, ...]:
        if not isinstance(value, list):
            raise Fault(f"must be a list, not {shown(value)}")
        if not value:
            raise Fault("is an empty list")
        found = []
        for at, entry in enumerate(value):
            try:
                found.append(check(entry))
            except Fault as fault:
                raise Fault(f"entry {at} {fault}") from None
        return tuple(found)

    return read


_moments = _list_of(_moment)


def _options(value: object) -> tuple[str, ...]:
    options = _list_of(check_text)(value)
    if len(set(options)) < len(options):
        raise Fault("names an option twice")
    return options


def _schema(value: object) -> str:
    if not isinstance(value, dict):
        raise Fault(f"must be a JSON schema (an object), not {shown(value)}")
    return json.dumps(value, ensure_ascii=False)


SAMPLING = ("num_frames", "fps", "start_s", "end_s", "times_s", "key_frames")
"""Fields that say which frames of a clip are taken, as `VideoPart` has them."""

CHECKS: dict[str, Callable[[object], Any]] = {
    "id": _identity,
    "question": lambda value: (check_text(value),),
    "questions": _list_of(check_text),
    "turns": _list_of(check_text),
    "system": check_text,
    "video": _place,
    "images": _list_of(_place),
    "num_frames": _count,
    "fps": _rate,
    "start_s": _moment,
    "end_s": _rate,
    "times_s": _moments,
    "key_frames": _truth,
    "max_tokens": _count,
    "n": _within("n", _whole),
    "temperature": _within("temperature", _number),
    "top_p": _within("top_p", _number),
    "top_k": _top_k,
    "seed": _seed,
    "regex": check_text,
    "choices": _options,
    "json_schema": _schema,
    "ebnf": check_text,
}
