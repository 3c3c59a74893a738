"""JSON schemas of answers that call tools.

    a function    its parameters
    required      {"name": "weather", "arguments": <its parameters>}, or so of another tool

References inside of parameters lead from their own root, so they are moved along:

    {"$ref": "#/$defs/City"}  ->  {"$ref": "#/$defs/tool0/$defs/City"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["call_schema", "moved"]

_SCHEMAS = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_LISTS = frozenset(["allOf", "anyOf", "items", "oneOf", "prefixItems"])
_MAPS = frozenset(
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"]
)


def call_schema(
    tools: Sequence[tuple[str, Mapping[str, Any]]], other: object = None
) -> dict[str, Any]:
    """The schema of one call of any of the tools.

    Args:
        tools: name, and schema of the arguments, of each.
        other: schema of an answer that is no call, if that is allowed, too.

    Pure.
    """
    places = {f"tool{number}": schema for number, (_, schema) in enumerate(tools)}
    answers: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{place}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, (name, _) in zip(places, tools, strict=True)
    ]
    defined: dict[str, Any] = dict(places)
    if other is not None:
        defined["other"] = other
        answers.insert(0, {"$ref": "#/$defs/other"})
    whole = answers[0] if len(answers) == 1 else {"anyOf": answers}
    moves = {place: moved(schema, f"#/$defs/{place}") for place, schema in defined.items()}
    return {**whole, "$defs": moves}


def moved(schema: Any, root: str) -> Any:  # noqa: ANN401 - parsed JSON
    """The schema with references for its new place, whose pointer is `root`. Pure."""
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[keyword] = root + value[1:]
        elif keyword in _MAPS and isinstance(value, Mapping):
            found[keyword] = {name: moved(one, root) for name, one in value.items()}
        elif keyword in _LISTS and isinstance(value, list):
            found[keyword] = [moved(one, root) for one in value]
        elif keyword in _SCHEMAS:
            found[keyword] = moved(value, root)
        else:
            found[keyword] = value
    return found
