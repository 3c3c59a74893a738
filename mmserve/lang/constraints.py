"""What `dtype`, `regex`, `json_schema` and `ebnf` become: one constraint and a converter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmserve.core import BadRequest, Constraint, ConstraintRefused
from mmserve.lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

__all__ = ["Shape", "answer_shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an answer must match, stops that go with it, and how its text becomes a value.

    `dtype` is the name of the type, if one was asked for.
    """

    constraint: Constraint | None = None
    extra_stops: tuple[str, ...] = ()
    convert: Callable[[str], object] | None = None
    dtype: str | None = None


def _unquoted(text: str) -> str:
    return text.strip()[1:-1]


def _truth(text: str) -> bool:
    return text.strip() == "True"


_BLANKS = (" ", "\n")
_TYPES: dict[str, tuple[str, tuple[str, ...], Callable[[str], object]]] = {
    "int": (REGEX_INT, _BLANKS, int),
    "float": (REGEX_FLOAT, _BLANKS, float),
    "str": (REGEX_STR, (), _unquoted),
    "bool": (REGEX_BOOL, (), _truth),
}


def answer_shape(dtype: object, regex: object, json_schema: object, ebnf: object) -> Shape:
    """The shape that at most one of these asks for.

    Raises BadRequest for two at once and ConstraintRefused for one that is malformed or that no
    engine can enforce. Pure.
    """
    given = {
        name: value
        for name, value in (
            ("dtype", dtype),
            ("regex", regex),
            ("json_schema", json_schema),
            ("ebnf", ebnf),
        )
        if value is not None
    }
    if len(given) > 1:
        message = f"{' and '.join(given)} are given, a gen takes one constraint"
        raise BadRequest(message, field=list(given)[1], reason="exclusive")
    for name, value in given.items():
        return _SHAPES[name](value)
    return Shape()


def _typed(value: object) -> Shape:
    name = value.__name__ if isinstance(value, type) else value
    if not isinstance(name, str) or name not in _TYPES:
        message = f"dtype is {value!r}, allowed are {', '.join(_TYPES)}"
        raise BadRequest(message, field="dtype", reason="unknown")
    pattern, stops, convert = _TYPES[name]
    return Shape(Constraint("regex", pattern), stops, convert, name)


def _pattern(value: object) -> Shape:
    if not isinstance(value, str):
        message = f"regex is of type {type(value).__name__}, allowed is a text"
        raise BadRequest(message, field="regex", reason="type")
    from mmserve.constrained.regex_tree import read_pattern  # noqa: PLC0415  slow to import

    read_pattern(value)
    return Shape(Constraint("regex", value))


def _schema(value: Any) -> Shape:  # noqa: ANN401  a text, a mapping, or a class with a schema of its own
    convert: Callable[[str], object] = json.loads
    if hasattr(value, "model_json_schema"):
        convert = value.model_validate_json
        value = value.model_json_schema()
    text = value if isinstance(value, str) else _schema_text(value)
    from mmserve.constrained.schemas import read_schema  # noqa: PLC0415  slow to import

    read_schema(text)
    return Shape(Constraint("json_schema", text), convert=convert)


def _schema_text(value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        message = f"json_schema is of type {type(value).__name__}, allowed is a JSON object"
        raise ConstraintRefused(message, position=0, reason="type") from error


def _grammar(value: object) -> Shape:
    if not isinstance(value, str) or not value.strip():
        message = "ebnf is empty or not a text"
        raise ConstraintRefused(message, position=0, reason="empty")
    return Shape(Constraint("ebnf", value))


_SHAPES: dict[str, Callable[[object], Shape]] = {
    "dtype": _typed,
    "regex": _pattern,
    "json_schema": _schema,
    "ebnf": _grammar,
}
