"""Pieces of JSON schema as parsers read bodies, and operations made of them.

closed({"prompt": text("..")}, need=("prompt",))    like `Body`: null counts as absent, and
                                                    a field that is not named is refused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "EVENTS",
    "JSON",
    "OFF",
    "Operation",
    "Schema",
    "Surface",
    "array",
    "closed",
    "either",
    "flag",
    "generating",
    "integer",
    "json_answer",
    "number",
    "only",
    "opened",
    "query",
    "schema_or_text",
    "text",
    "word",
]

Schema = dict[str, Any]
JSON = "application/json"
EVENTS = "text/event-stream"
_EVENT: Schema = {
    "type": "object",
    "properties": {"data": {"type": "string"}, "event": {"type": "string"}},
    "required": ["data"],
    "description": "One event; its data is a chunk of the answer in JSON, or [DONE].",
}
OFF: Schema = {
    "enum": [False, None],
    "description": "Not served, so it can only be switched off.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route by one method.

    Args:
        summary: what it does, in one sentence.
        answers: schema of what a success sends, by media type; several where the request says.
        body: schema of the JSON body it takes; one with a `title` stands in the document once,
            under that name.
        form: schema of the form it takes instead.
        parameters: those of path and query.
        refusals: words of `errors.ANSWERS`, beside those that every route may send.
        needs_key: whether it wants a key where one is configured; probes want none either.
    """

    summary: str
    answers: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    form: Schema | None = None
    parameters: tuple[Schema, ...] = ()
    refusals: tuple[str, ...] = ()
    needs_key: bool = True


Surface = Mapping[str, Mapping[str, Operation]]
"""Operations by path (as routes spell it), then by method in lower case."""


def generating(summary: str, body: Schema, answer: Schema) -> Operation:
    """A route that generates, whole or as a stream of events. Pure."""
    answers = {JSON: answer, EVENTS: _EVENT}
    refusals = ("bad", "absent", "left", "behind", "late")
    return Operation(summary=summary, body=body, answers=answers, refusals=refusals)


def json_answer(**properties: Schema) -> Mapping[str, Schema]:
    """A success in JSON that has at least these properties. Pure."""
    return {JSON: opened(properties)}


def _told(schema: Schema, doc: str) -> Schema:
    return schema | ({"description": doc} if doc else {})


def integer(low: int, high: int, doc: str = "") -> Schema:
    """Whole numbers in [low, high]. Pure."""
    return _told({"type": "integer", "minimum": low, "maximum": high}, doc)


def number(low: float, high: float, doc: str = "") -> Schema:
    """Numbers in [low, high]. Pure."""
    return _told({"type": "number", "minimum": low, "maximum": high}, doc)


def text(
    doc: str = "", *, least: int = 0, most: int | None = None, pattern: str | None = None
) -> Schema:
    """Strings, of `least` to `most` characters. Pure."""
    schema: Schema = {"type": "string"}
    if least:
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    if pattern is not None:
        schema["pattern"] = pattern
    return _told(schema, doc)


def flag(doc: str = "") -> Schema:
    """True or false. Pure."""
    return _told({"type": "boolean"}, doc)


def word(*allowed: str, doc: str = "") -> Schema:
    """One of the words. Pure."""
    return _told({"type": "string", "enum": list(allowed)}, doc)


def only(*allowed: object, doc: str = "") -> Schema:
    """A field without effect here: null, or one of these values. Pure."""
    words = doc or "Has no effect here; any other value is refused."
    return _told({"enum": [*allowed, None]}, words)


def array(items: Schema, doc: str = "", *, least: int = 0, most: int | None = None) -> Schema:
    """Lists of such items. Pure."""
    schema: Schema = {"type": "array", "items": items}
    if least:
        schema["minItems"] = least
    if most is not None:
        schema["maxItems"] = most
    return _told(schema, doc)


def either(*schemas: Schema, doc: str = "") -> Schema:
    """What fits one of the schemas. Pure."""
    return _told({"anyOf": list(schemas)}, doc)


def schema_or_text(doc: str) -> Schema:
    """A JSON schema, as a value or as text. Pure."""
    return _told({"type": ["object", "boolean", "string"]}, doc)


def closed(
    properties: Mapping[str, Schema], *, need: Sequence[str] = (), doc: str = ""
) -> Schema:
    """Objects of these fields alone; those not in `need` may be null or absent. Pure."""
    fields = {
        name: schema if name in need else _or_null(schema)
        for name, schema in properties.items()
    }
    schema: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
    if need:
        schema["required"] = list(need)
    return _told(schema, doc)


def opened(properties: Mapping[str, Schema]) -> Schema:
    """Objects that have at least these fields: what answers are. Pure."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
    }


def query(name: str, schema: Schema, *, place: str = "query") -> Schema:
    """A parameter of the query, or with `place` of the path. Pure."""
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _or_null(schema: Schema) -> Schema:
    kind = schema.get("type")
    if kind is None:
        alternatives = schema.get("anyOf")
        if alternatives is None:
            return schema  # any value, or words that hold null already
        return schema | {"anyOf": [*alternatives, {"type": "null"}]}
    kinds = kind if isinstance(kind, list) else [kind]
    found = schema | {"type": [*kinds, "null"]}
    if "enum" in schema:
        found["enum"] = [*schema["enum"], None]
    return found
