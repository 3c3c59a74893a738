"""Reads a JSON Schema before it is compiled: every keyword is known and sound, or refused.

A schema that gets through is enforced whole. Keywords that only describe (`title`, `default`)
are left out, patterns are rewritten so that validators of any dialect agree with them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from mmserve.constrained.finite import has_finite_value
from mmserve.constrained.regex_syntax import translate_search
from mmserve.core import ConstraintRefused

__all__ = ["read_schema"]

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_MAX_DEPTH = 200
_ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$id",
        "id",
        "$schema",
        "discriminator",
        "contentEncoding",
        "contentMediaType",
        "markdownDescription",
    ]
)
_SCHEMA = ("items", "additionalProperties")
_SCHEMA_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def read_schema(text: str) -> str:
    """The schema as canonical JSON text of what is to be enforced.

    Raises:
        ConstraintRefused: not JSON, not a schema, or with a keyword that is unknown; fields:
            keyword or position, path, reason.

    Pure.
    """
    try:
        schema = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ConstraintRefused(
            f"the JSON schema is not JSON: {error}",
            field="json_schema",
            reason="syntax",
            position=error.pos,
        ) from None
    except RecursionError:
        _refuse("$schema", "", "is nested too deeply", "too_large")
    if schema is True:
        schema = {}
    if schema is False:
        _refuse("false", "", "allows no value at all", "unsatisfiable")
    if not isinstance(schema, Mapping):
        kind = type(schema).__name__
        _refuse("$schema", "", f"must be an object or a boolean, got {kind}", "type")
    checked = _read(schema, "#", 0)
    if not has_finite_value(checked):
        _refuse("$ref", "", "leads in circles: no value ever ends", "unsatisfiable")
    text = json.dumps(checked, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse("$schema", "", "holds half of a surrogate pair", "surrogate")
    return text


def _refuse_constant(name: str) -> NoReturn:
    _refuse(name, "", "is not JSON", "syntax")


def _refuse(keyword: str, path: str, what: str, reason: str) -> NoReturn:
    where = f" at {path}" if path else ""
    raise ConstraintRefused(
        f"JSON schema: {keyword[:60]!r}{where[:120]} {what}",
        field="json_schema",
        reason=reason,
        keyword=keyword,
        path=path,
    )


def _read(schema: Any, path: str, depth: int) -> Any:  # noqa: ANN401 - parsed JSON
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        _refuse(path.rsplit("/", 1)[-1], path, "must be a schema (object or boolean)", "type")
    if depth > _MAX_DEPTH:
        _refuse("$schema", path, "is nested too deeply", "too_large")
    checked = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
            continue
        checked[keyword] = _read_keyword(keyword, value, path, depth)
    if checked.get("uniqueItems") is False:
        del checked["uniqueItems"]
    for keyword, inclusive, choose, sign in (
        ("exclusiveMinimum", "minimum", max, 1),
        ("exclusiveMaximum", "maximum", min, -1),
    ):
        if keyword in checked:
            bound = _just_inside(checked.pop(keyword), sign)
            checked[inclusive] = choose(bound, checked.get(inclusive, bound))
    return checked


def _just_inside(bound: float, sign: int) -> float:
    """An inclusive bound for an exclusive one: a little further in, less than 1.

    llguidance 1.9 lets the bound itself through in ranges shorter than 1. Numbers between the
    two bounds are lost, which no one will miss; whole numbers are not.
    """
    return bound + sign * (1e-9 if abs(bound) < 1e6 else 1e-3)


def _read_keyword(keyword: str, value: Any, path: str, depth: int) -> Any:  # noqa: ANN401
    below = f"{path}/{keyword}"
    if keyword in _SCHEMA:
        return _read(value, below, depth + 1)
    if keyword in _SCHEMA_LISTS:
        if not isinstance(value, list) or not value:
            _refuse(keyword, path, "must be a list of at least one schema", "type")
        return [_read(one, f"{below}/{order}", depth + 1) for order, one in enumerate(value)]
    if keyword in _SCHEMA_MAPS:
        if not isinstance(value, Mapping):
            _refuse(keyword, path, "must be an object of schemas", "type")
        is_pattern = keyword == "patternProperties"
        return {
            _anchored(name) if is_pattern else name: _read(one, f"{below}/{name}", depth + 1)
            for name, one in value.items()
        }
    rule = _VALUES.get(keyword)
    if rule is None:
        _refuse(keyword, path, "is a keyword that cannot be enforced", "unsupported")
    is_sound, wanted = rule
    if not is_sound(value):
        _refuse(keyword, path, f"must be {wanted}", "type")
    return _anchored(value) if keyword == "pattern" else value


def _anchored(pattern: str) -> str:
    return f"^(?:{translate_search(pattern)})$"


def _is_number(value: Any) -> bool:  # noqa: ANN401
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )


def _is_exact(value: Any) -> bool:  # noqa: ANN401
    """Whether every number in a JSON value is one that the grammar writes exactly."""
    if isinstance(value, Mapping):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    if isinstance(value, int):
        return abs(value) <= 2**53
    return not isinstance(value, float) or abs(value) <= 2**53


def _is_bound(value: Any) -> bool:  # noqa: ANN401
    return _is_number(value) and abs(value) < 2**53


def _is_open_bound(value: Any) -> bool:  # noqa: ANN401
    return _is_number(value) and abs(value) < 1e12


def _is_count(value: Any) -> bool:  # noqa: ANN401
    return _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str) and one in _TYPES for one in value)
    return isinstance(value, str) and value in _TYPES


def _is_names(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


_Rule = tuple[Callable[[Any], bool], str]
_BOUND: _Rule = (_is_bound, "a number below 2**53")
_OPEN_BOUND: _Rule = (_is_open_bound, "a number below 10**12")
_COUNT: _Rule = (_is_count, "a whole number, 0 or more")
_TEXT: _Rule = (lambda value: isinstance(value, str), "a text")
_VALUES: dict[str, _Rule] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
    "enum": (
        lambda value: isinstance(value, list) and bool(value) and _is_exact(value),
        "a list of values whose numbers are at most 2**53",
    ),
    "const": (_is_exact, "a value whose numbers are at most 2**53"),
    "required": (_is_names, "a list of property names"),
    "pattern": _TEXT,
    "format": _TEXT,
    "$ref": (
        lambda value: isinstance(value, str) and value.startswith("#"),
        "a reference inside the schema, beginning with #",
    ),
    "uniqueItems": (lambda value: value is False, "false; unique items cannot be enforced"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("minimum", "maximum"), _BOUND),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _OPEN_BOUND),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _COUNT,
    ),
}
