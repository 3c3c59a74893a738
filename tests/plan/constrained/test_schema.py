"""JSON Schema: valid means valid."""

import json
import re
import time

import jsonschema
import pytest
from plan.constrained.sampling import draw, matcher

from mmserve.core import ConstraintRefused

STEP = {
    "type": "object",
    "properties": {
        "e": {"enum": ["x", "y"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["e", "n"],
    "additionalProperties": False,
}
NAMES = ["a(b)c", "x.y", "[0]", 'a"b', "back\\slash", "", "with space", "tab\t", "$ref"]
LETTERS = {"type": "string", "pattern": "^[a-z]+$"}

ENFORCED = {
    "pydantic": {
        "$defs": {"Step": STEP},
        "type": "object",
        "properties": {
            "steps": {
                "type": "array",
                "items": {"$ref": "#/$defs/Step"},
                "minItems": 1,
                "maxItems": 2,
            },
            "final": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Step"}]},
        },
        "required": ["steps", "final"],
    },
    "root reference": {"$defs": {"Step": STEP}, "$ref": "#/$defs/Step"},
    "pattern and maxLength": {**LETTERS, "maxLength": 3},
    "pattern and minLength": {**LETTERS, "minLength": 5, "maxLength": 9},
    "format and maxLength": {"type": "string", "format": "email", "maxLength": 10},
    "strings in arrays": {
        "type": "array",
        "items": {**LETTERS, "maxLength": 2},
        "minItems": 1,
        "maxItems": 3,
    },
    "unanchored pattern": {"type": "string", "pattern": "a[0-9]|^b", "maxLength": 6},
    "classes": {"type": "string", "pattern": r"^\d\w\D\W$"},
    "characters are counted": {"type": "string", "minLength": 3, "maxLength": 3},
    "other letters": {
        "type": "object",
        "properties": {"心情": {"enum": ["开心", "难过", "😀"]}},
        "required": ["心情"],
    },
    "odd names": {
        "type": "object",
        "properties": {name: {"enum": ["v"]} for name in NAMES},
        "required": NAMES,
        "additionalProperties": False,
    },
    "large bound": {"type": "integer", "minimum": 0, "maximum": 20000000000},
    "fractional maximum": {"type": "integer", "maximum": 1e3, "minimum": -5},
    "exclusive": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2},
    "multiples": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 40},
    "number range": {"type": "number", "minimum": 0.5, "maximum": 0.75},
    "types": {"type": ["string", "null"], "maxLength": 4},
    "optional keys": {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in "abc"},
        "required": ["c", "a"],
        "additionalProperties": False,
    },
    "required without schema": {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["z"],
        "additionalProperties": {"type": "integer"},
    },
    "tree": {
        "definitions": {
            "nodes": {"type": "array", "maxItems": 1, "items": {"$ref": "#/definitions/node"}},
            "node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "kids": {"$ref": "#/definitions/nodes"},
                },
                "required": ["v"],
                "additionalProperties": False,
            },
        },
        "$ref": "#/definitions/node",
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"const": {"a": [1, "b"]}}],
        "items": False,
        "minItems": 2,
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "boolean"}}},
            {"required": ["a"]},
        ],
        "additionalProperties": False,
        "properties": {"a": True},
    },
    "described": {
        "title": "T",
        "description": "d",
        "default": 3,
        "examples": [1],
        "x-order": 1,
        "type": "boolean",
    },
}


@pytest.mark.parametrize("schema", ENFORCED.values(), ids=ENFORCED)
def test_answers_are_valid(schema):
    """Answers that end parse and satisfy the whole schema, by an independent validator."""
    jsonschema.Draft202012Validator.check_schema(schema)
    ended = 0
    for seed in range(6):
        text, is_end = draw(matcher("json_schema", schema), seed, max_tokens=300)
        ended += is_end
        if is_end:
            answer = json.loads(text, object_pairs_hook=without_repeats)
            jsonschema.validate(answer, schema)
    assert ended


def without_repeats(pairs):
    """A dictionary; no key may come twice."""
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def test_other_letters_are_not_escaped():
    """Non-ASCII values are written as they are."""
    text, _ = draw(matcher("json_schema", ENFORCED["other letters"]))
    assert "\\u" not in text
    assert "心情" in text


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ("5", "$schema"),
        ("false", "false"),
        ({"type": "objekt"}, "type"),
        ({"type": 7}, "type"),
        ({"properties": []}, "properties"),
        ({"properties": {"a": 5}}, "a"),
        ({"enum": []}, "enum"),
        ({"minimum": "a"}, "minimum"),
        ({"minLength": -1}, "minLength"),
        ({"anyOf": []}, "anyOf"),
        ({"required": "a"}, "required"),
        ({"$ref": "http://x/y"}, "$ref"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "number", "multipleOf": 0.01}, "multipleOf"),
        ({"items": [5]}, "0"),
        ({"items": [{}], "additionalItems": 5}, "additionalItems"),
        ({"divisibleBy": 2}, "divisibleBy"),
        ({"required": True}, "required"),
        ({"dependencies": {"a": 5}}, "a"),
        ({"$defs": {"a": {"type": "objekt"}}}, "type"),
        ({"maximum": 1e999}, "Infinity"),
    ],
)
def test_broken_keyword_is_named(schema, keyword):
    """A schema that is none, or holds a keyword that cannot be enforced, is refused by name."""
    with pytest.raises(ConstraintRefused) as caught:
        matcher("json_schema", schema)
    assert keyword == caught.value.fields["keyword"]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        '"',
        {"$ref": "#/nope"},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"not": {}},
        {"type": "string", "not": {"pattern": "^a"}},
        {"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
        {"type": "object", "minProperties": 2},
        {"type": "array", "contains": {}, "minContains": 2, "maxContains": 1},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"enum": ["a", 1], "type": "null"},
        {"enum": ["\u0001"]},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "string",
            "minimum": "a",
        },
        {"properties": {"a": {"$ref": "#/file"}}, "file": {"pattern": True}},
        {"enum": [{"a": number} for number in range(20_000)]},
        {"properties": {f"p{number}": {"type": "null"} for number in range(4000)}},
        {"patternProperties": {"^a": {}, "b$": {"type": "null"}}, "type": "object"},
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        {"type": "string", "pattern": "["},
        {"type": "string", "pattern": "(?=a)"},
        {"type": "string", "minLength": 10**9},
        {"type": "integer", "multipleOf": 999_983},
        {"type": "integer", "minimum": 10**17},
        {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            "$ref": "#/$defs/a",
        },
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#/anyOf/0"}]}]},
        r'{"enum": ["\ud83d"]}',
        "[" * 100_000,
    ],
)
def test_unenforceable_is_refused_at_once(schema):
    """Everything else that cannot be enforced or satisfied is refused within two seconds."""
    started = time.thread_time()
    with pytest.raises(ConstraintRefused) as caught:
        matcher("json_schema", schema)
    assert time.thread_time() - started < 2
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "kind_and_schema",
    [
        ("json_object", ""),
        ("json_schema", {}),
        ("json_schema", "true"),
        ("json_schema", {"type": "object"}),
        ("json_schema", {"type": "array"}),
    ],
)
def test_general_schemas_give_json(kind_and_schema):
    """Open schemas are served; what ends parses."""
    for seed in range(5):
        text, is_end = draw(matcher(*kind_and_schema), seed, max_tokens=400)
        if is_end:
            json.loads(text)


def test_blanks_do_not_eat_the_budget():
    """A model that loves whitespace still ends: none is allowed outside of strings."""
    schema = ENFORCED["optional keys"]
    for seed in range(3):
        text, is_end = draw(
            matcher("json_schema", schema), seed, favour=lambda piece: not piece.strip()
        )
        assert is_end
        assert not re.search(r"\s", text)


@pytest.mark.parametrize(
    "schema", [{}, {"type": "number"}, {"type": "integer"}, ENFORCED["number range"]]
)
def test_digits_do_not_run_on(schema):
    """A model that loves digits ends a number by itself within 64 tokens."""
    for seed in range(3):
        text, is_end = draw(
            matcher("json_schema", schema, "bytes"),
            seed,
            max_tokens=64,
            favour=lambda piece: piece.isdigit(),
            name="bytes",
        )
        assert is_end
        json.loads(text)


def test_digits_in_strings_are_free():
    """Only numbers are kept short."""
    schema = {"type": "string", "minLength": 40, "maxLength": 40, "pattern": "^[0-9]+$"}
    text, is_end = draw(matcher("json_schema", schema))
    assert is_end
    assert len(text) == 42


def test_long_numbers_that_must_be_are_written():
    """A number above the limit of digits that must come does; inexact ones are refused."""
    schema = {"type": "number", "const": 1.23456789e-25}
    text, is_end = draw(matcher("json_schema", schema))
    assert (json.loads(text), is_end) == (1.23456789e-25, True)
    for inexact in ({"const": 10**30}, {"enum": [[10**30]]}, {"const": 1e30}):
        with pytest.raises(ConstraintRefused):
            matcher("json_schema", inexact)


@pytest.mark.parametrize("text", ["null", "3", "[]", '"x"'])
def test_what_is_no_schema_is_refused_in_words_of_json(text: str) -> None:
    """The refusal names no type of Python."""
    with pytest.raises(ConstraintRefused, match=r"must be an object or a boolean$"):
        matcher("json_schema", text)
