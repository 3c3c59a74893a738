"""Which keywords each draft of JSON Schema knows.

A schema that names its draft in `$schema` is read by that draft alone; what it does not know is
an annotation. One that names none is read by all of them at once.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["SCHEMA_LISTS", "SCHEMA_MAPS", "SINGLE_SCHEMAS", "Draft", "draft_of", "is_known"]


class Draft(IntEnum):
    """A draft; OPEN if the schema names none, or one that nobody knows."""

    D4 = 4
    D6 = 6
    D7 = 7
    D2019 = 8
    D2020 = 9
    OPEN = 10


_URIS = {
    "http://json-schema.org/draft-04/schema": Draft.D4,
    "http://json-schema.org/draft-06/schema": Draft.D6,
    "http://json-schema.org/draft-07/schema": Draft.D7,
    "https://json-schema.org/draft/2019-09/schema": Draft.D2019,
    "https://json-schema.org/draft/2020-12/schema": Draft.D2020,
}
_SINCE = {
    **dict.fromkeys(("const", "contains", "propertyNames"), Draft.D6),
    **dict.fromkeys(("if", "then", "else"), Draft.D7),
    **dict.fromkeys(
        (
            "dependentRequired",
            "dependentSchemas",
            "minContains",
            "maxContains",
            "unevaluatedItems",
            "unevaluatedProperties",
            "$recursiveRef",
        ),
        Draft.D2019,
    ),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), Draft.D2020),
}
_UNTIL = {
    "dependencies": Draft.D7,
    "additionalItems": Draft.D2019,
    "$recursiveRef": Draft.D2019,
}
_ALWAYS = frozenset(
    (
        *("type", "enum", "allOf", "anyOf", "oneOf", "not", "$ref"),
        *("properties", "patternProperties", "additionalProperties"),
        *("required", "minProperties", "maxProperties"),
        *("items", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)
_OLD = frozenset(("divisibleBy", "disallow", "extends"))

SINGLE_SCHEMAS = frozenset(
    (
        *("items", "additionalItems", "contains", "unevaluatedItems"),
        *("additionalProperties", "propertyNames", "unevaluatedProperties"),
        *("not", "if", "then", "else"),
    )
)
SCHEMA_LISTS = frozenset(("prefixItems", "anyOf", "oneOf", "allOf"))
SCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
)


def draft_of(uri: object) -> Draft | None:
    """The draft that a `$schema` names. Pure."""
    return _URIS.get(uri.rstrip("#")) if isinstance(uri, str) else None


def is_known(keyword: str, draft: Draft) -> bool:
    """Whether the keyword says something about values in this draft. Pure."""
    if draft is Draft.OPEN:
        return keyword in _ALWAYS or keyword in _SINCE or keyword in _UNTIL or keyword in _OLD
    if keyword in _ALWAYS:
        return True
    if keyword not in _SINCE and keyword not in _UNTIL:
        return False
    return _SINCE.get(keyword, Draft.D4) <= draft <= _UNTIL.get(keyword, Draft.D2020)
