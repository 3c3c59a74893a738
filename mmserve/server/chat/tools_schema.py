"""JSON schemas of answers that call tools.

    a function    its parameters
    required      {"name": "weather", "arguments": <its parameters>}, or so of another tool

Each tool's parameters stay a schema of their own, with an `$id`: references inside lead from
their own root, and their draft is their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["call_schema", "rooted"]


def call_schema(
    tools: Sequence[tuple[str, Mapping[str, Any]]], other: object = None
) -> dict[str, Any]:
    """The schema of one call of any of the tools.

    Args:
        tools: name, and schema of the arguments, of each.
        other: schema of an answer that is no call, if that is allowed, too.

    Pure.
    """
    defined: dict[str, Any] = {f"tool{k}": schema for k, (_, schema) in enumerate(tools)}
    answers: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{place}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, (name, _) in zip(defined, tools, strict=True)
    ]
    if other is not None:
        defined["other"] = other
        answers.insert(0, {"$ref": "#/$defs/other"})
    taken: set[str] = set()
    for place, schema in defined.items():
        defined[place] = _own_document(schema, place, taken)
    whole = answers[0] if len(answers) == 1 else {"anyOf": answers}
    return {**whole, "$defs": defined}


def rooted(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without a reference at its root, where older drafts see nothing else. Pure."""
    more = schema.get("allOf", [])
    if "$ref" not in schema or not isinstance(more, list):
        return schema
    others = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
    return {**others, "allOf": [{"$ref": schema["$ref"]}, *more]}


def _own_document(schema: object, place: str, taken: set[str]) -> object:
    """The schema under an id that no other has. Changes: `taken`."""
    if not isinstance(schema, Mapping):
        return schema
    draft = schema.get("$schema")
    word = "id" if isinstance(draft, str) and "draft-04" in draft else "$id"
    own = schema.get(word)
    if not isinstance(own, str) or own.startswith("#") or own in {"", *taken}:
        own = f"call:{place}"
    taken.add(own)
    return {**rooted(schema), word: own}
