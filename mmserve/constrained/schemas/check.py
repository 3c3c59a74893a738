"""Whether every keyword of a schema has a value that it may have, before any is read.

Only places where a schema is expected are looked at; what an annotation holds is its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mmserve.constrained.schemas.dialects import (
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    SINGLE_SCHEMAS,
    is_known,
)
from mmserve.constrained.schemas.document import Place
from mmserve.constrained.schemas.refusal import refuse

__all__ = ["check_form"]

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_MAX_DEPTH = 200
_MAX_PLACES = 20_000
_DEFINITIONS = ("$defs", "definitions")


def check_form(root: Place, checked: set[str]) -> None:
    """Looks at a place and all below it.

    Args:
        root: where to begin.
        checked: paths that were looked at before.

    Raises:
        ConstraintRefused: a keyword has a value that it cannot have; fields: keyword, path.

    Changes: `checked`.
    """
    stack = [(root, 0)]
    while stack:
        place, depth = stack.pop()
        if place.path in checked:
            continue
        checked.add(place.path)
        if depth > _MAX_DEPTH or len(checked) > _MAX_PLACES:
            refuse("$schema", place.path, "is nested too deeply or too large", "too_large")
        schema = place.schema
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, Mapping):
            keyword = place.path.rsplit("/", 1)[-1]
            refuse(keyword, place.path, "must be a schema (object or boolean)", "type")
        for keyword, value in schema.items():
            if keyword in _DEFINITIONS or is_known(keyword, place.draft):
                stack += [(inner, depth + 1) for inner in _checked(place, keyword, value)]


def _checked(place: Place, keyword: str, value: Any) -> list[Place]:  # noqa: ANN401
    """Checks one keyword; the subschemas below it."""
    if keyword in SCHEMA_LISTS or (keyword == "items" and isinstance(value, list)):
        is_empty = keyword in ("anyOf", "oneOf") and not value
        if not isinstance(value, list) or is_empty:
            refuse(keyword, place.path, "must be a list of at least one schema", "type")
        return [place.below(keyword, order) for order in range(len(value))]
    if keyword in SINGLE_SCHEMAS:
        return [place.below(keyword)]
    if keyword in SCHEMA_MAPS or keyword in ("dependencies", "dependentRequired"):
        if not isinstance(value, Mapping):
            refuse(keyword, place.path, "must be an object of schemas", "type")
        return [
            place.below(keyword, name)
            for name, inner in value.items()
            if not (keyword.startswith("depend") and _is_names(inner))
        ]
    is_sound, wanted = _VALUES.get(keyword, _ANYTHING)
    if not is_sound(value):
        refuse(keyword, place.path, f"must be {wanted}", "type")
    return []


def _is_number(value: Any) -> bool:  # noqa: ANN401
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )


def _is_count(value: Any) -> bool:  # noqa: ANN401
    return _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str) and one in _TYPES for one in value)
    return isinstance(value, str) and value in _TYPES


def _is_names(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(one, str) for one in value)
    )


_Rule = tuple[Callable[[Any], bool], str]
_ANYTHING: _Rule = (lambda _: True, "anything")
_NUMBER: _Rule = (_is_number, "a number")
_COUNT: _Rule = (_is_count, "a whole number, 0 or more")
_TEXT: _Rule = (lambda value: isinstance(value, str), "a text")
_VALUES: dict[str, _Rule] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "required": (
        lambda value: isinstance(value, list) and _is_names(value),
        "a list of property names",
    ),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref", "$recursiveRef", "$dynamicRef"), _TEXT),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    ),
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        _COUNT,
    ),
}
