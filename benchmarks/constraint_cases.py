"""Constraints that costs are measured on: patterns, lists of options and JSON schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.character import REGEX, SCHEMA
from mmserve.core import Constraint

__all__ = ["Case", "mask_cases", "own_schemas", "read_schemas"]

_SYLLABLES = ("ka", "lo", "mi", "ren", "tar", "vel", "os", "un", "dri", "shan", "be", "fol")

_PATTERNS = {
    "date": r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "address": r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
    "mail": r"[a-z0-9._%+-]{1,32}@[a-z0-9-]{1,32}(\.[a-z]{2,8}){1,3}",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "phone": r"\+?[1-9]\d{0,3}[ -]?(\(\d{1,4}\)[ -]?)?\d{3,4}([ -]?\d{2,4}){1,3}",
    "words": r"([A-Z][a-z]+ ){2,5}(of|in|at|the) [A-Z][a-z]+",
    "numbers": r"\[(-?\d{1,6}(\.\d{1,3})?)(, -?\d{1,6}(\.\d{1,3})?){0,15}\]",
    "line": r"[^\n]{1,200}",
    "unicode_words": r"(\w{1,12}[ .,;]){4,30}",
    "anything": r"[\w\W]*",
    "fenced": r"```(python|json|bash)\n([^`]|`[^`]|``[^`])*\n```",
    "character": REGEX,
}

_NAME = {"type": "string", "minLength": 1, "maxLength": 40}
_POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "character": SCHEMA,
    "person": {
        "type": "object",
        "properties": {
            "name": _NAME,
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "mail": {"type": "string", "pattern": r"^[a-z0-9.]{1,20}@[a-z]{1,20}\.(com|org)$"},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "points": {"type": "array", "items": _POINT, "minItems": 1, "maxItems": 8},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2},
    "free_text": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "body": {"type": "string"}},
        "required": ["title", "body"],
        "additionalProperties": False,
    },
    "optional": {
        "type": "object",
        "properties": {f"field_{k}": {"type": "boolean"} for k in range(8)},
        "additionalProperties": False,
    },
    "either": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
                "required": ["kind", "radius"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
                "required": ["kind", "side"],
                "additionalProperties": False,
            },
        ]
    },
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "ranges": {
        "type": "object",
        "properties": {
            "percent": {"type": "number", "minimum": 0, "maximum": 100},
            "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        },
        "required": ["percent", "year"],
        "additionalProperties": False,
    },
    "nullable": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "when": {"type": ["string", "null"], "format": "date-time"},
        },
        "required": ["id", "when"],
        "additionalProperties": False,
    },
    "call": {
        "type": "object",
        "properties": {
            "name": {"enum": ["search", "open", "click", "scroll", "type"]},
            "arguments": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["query"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class Case:
    """A constraint under a name."""

    name: str
    constraint: Constraint


def mask_cases() -> list[Case]:
    """Constraints of all kinds, those of one kind side by side. Pure."""
    chance = Random(0)
    options = {
        "yes_no": ["yes", "no"],
        "labels": ["positive", "negative", "neutral", "not sure"],
        "100_names": [_made_up_name(chance) for _ in range(100)],
        "2000_names": [_made_up_name(chance) for _ in range(2000)],
    }
    return [
        *(Case(name, Constraint("regex", text)) for name, text in _PATTERNS.items()),
        *(
            Case(name, Constraint("choices", json.dumps(many)))
            for name, many in options.items()
        ),
        *own_schemas(),
    ]


def _made_up_name(chance: Random) -> str:
    words = ("".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4))) for _ in range(2))
    return " ".join(word.capitalize() for word in words)


def own_schemas() -> list[Case]:
    """A dozen schemas. Pure."""
    return [_schema_case(name, schema) for name, schema in _SCHEMAS.items()]


def read_schemas(path: Path, every: int = 1) -> list[Case]:
    """Each `every`-th schema of a file of JSON lines with `id` and `schema`, shuffled."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    cases = [_schema_case(line["id"], line["schema"]) for line in lines[::every]]
    Random(0).shuffle(cases)
    return cases


def _schema_case(name: str, schema: object) -> Case:
    return Case(name, Constraint("json_schema", json.dumps(schema)))
