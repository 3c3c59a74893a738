"""Each keyword of JSON Schema: what may be written, and what may not."""

import pytest
from plan.constrained.schema_answers import assert_valid, takes, validator_of

D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
TEXT = {"type": "string"}
A_OR_B = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}

KINDS = {
    "annotations": (
        {"title": "t", "options": [1], "x-order": 2, "widget": {"type": 5}, "type": "null"},
        [None],
        [1],
    ),
    "unknown format": ({"type": "string", "format": "color-name"}, ["any"], [1]),
    "draft 4 exclusive": (
        {**D4, "type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 2},
        [1, 2],
        [0, 3],
    ),
    "draft 4 knows no const": ({**D4, "type": "integer", "const": 5}, [5, 6], ["5"]),
    "undeclared exclusive": (
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
        [1],
        [0],
    ),
    "siblings of a reference, ignored": (
        {**D7, "definitions": {"a": {"type": "integer"}}, "$ref": "#/definitions/a", "not": {}},
        [1],
        ["a"],
    ),
    "siblings of a reference, kept": (
        {**D2019, "$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "minimum": 3},
        [3],
        [2],
    ),
    "reference to an id": (
        {
            "$id": "http://example.com/root.json",
            "anyOf": [{"$ref": "a.json"}, {"$ref": "#b"}, {"$ref": "root.json#/$defs/c~1d"}],
            "$defs": {
                "a": {"$id": "a.json", "type": "null"},
                "b": {"$anchor": "b", "const": 1},
                "c/d": {"const": "c"},
            },
        },
        [None, 1, "c"],
        [2, "b"],
    ),
    "recursive reference": (
        {**D2019, "type": "array", "items": {"$recursiveRef": "#"}},
        [[], [[], [[]]]],
        [1, [1]],
    ),
    "tuple": (
        {**D7, "type": "array", "items": [TEXT, {"type": "null"}], "additionalItems": False},
        [[], ["a"], ["a", None]],
        [["a", "b"], ["a", None, 1]],
    ),
    "additional items beside a schema": (
        {**D4, "type": "array", "items": TEXT, "additionalItems": False},
        [["a", "b", "c"]],
        [[1]],
    ),
    "enum with type": ({"type": "string", "enum": ["a", 1, None]}, ["a"], [1, None]),
    "enum with bounds": ({"enum": [1, 5, 9], "minimum": 4}, [5, 9], [1]),
    "objects in enum": (
        {"enum": [{"a": [1, "ü"]}, 1.5], "required": ["a"]},
        [{"a": [1, "ü"]}, 1.5],
        [{"a": [1]}],
    ),
    "one of types": ({"oneOf": [TEXT, {"type": "null"}]}, ["a", None], [1]),
    "one of required": (
        {**A_OR_B, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": ""}, {"b": ""}],
        [{}, {"a": "", "b": ""}],
    ),
    "one of kinds": (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"enum": [kind]}, kind: {"type": "integer"}},
                    "required": ["kind", kind],
                }
                for kind in ("x", "y")
            ]
        },
        [{"kind": "x", "x": 1}, {"kind": "y", "y": 2}],
        [{"kind": "x"}, {"kind": "y", "x": 1}],
    ),
    "one of overlapping enums": (
        {"oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]},
        ["a", "c"],
        ["b"],
    ),
    "one of a pattern and values": (
        {"type": "string", "oneOf": [{"pattern": "^[0-9]+$"}, {"enum": ["new", "7"]}]},
        ["12", "new"],
        ["7", "old"],
    ),
    "one of itself twice": ({"oneOf": [TEXT, {"type": ["string", "null"]}]}, [None], ["a"]),
    "all of": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}},
                {"properties": {"a": {"maximum": 3}, "b": TEXT}, "required": ["b"]},
            ]
        },
        [{"b": ""}, {"a": 3, "b": ""}],
        [{}, {"a": 4, "b": ""}],
    ),
    "not a value": ({"type": "string", "not": {"enum": ["ab", ""]}}, ["a", "abc"], ["ab", ""]),
    "not these numbers": (
        {"type": "integer", "minimum": 0, "maximum": 4, "not": {"enum": [1, 4]}},
        [0, 2, 3],
        [1, 4],
    ),
    "not whole": ({"minimum": 0, "maximum": 2, "not": {"type": "integer"}}, [0.5], [0, 1, 2]),
    "not both": (
        {**A_OR_B, "not": {"required": ["a", "b"]}},
        [{}, {"a": ""}, {"b": ""}],
        [{"a": "", "b": ""}],
    ),
    "not that kind": (
        {
            "type": "object",
            "properties": {"kind": TEXT},
            "not": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
        },
        [{}, {"kind": "y"}],
        [{"kind": "x"}],
    ),
    "nothing": (
        {"type": "object", "properties": {"a": {"not": {}}, "b": TEXT}},
        [{}, {"b": ""}],
        [{"a": 1}],
    ),
    "if then else": (
        {
            **D7,
            **A_OR_B,
            "if": {"properties": {"a": {"const": "x"}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"properties": {"b": False}},
        },
        [{}, {"a": "x", "b": ""}, {"a": "y"}],
        [{"a": "x"}, {"a": "y", "b": ""}],
    ),
    "dependencies": (
        {**D7, **A_OR_B, "dependencies": {"a": ["b"]}},
        [{}, {"b": ""}, {"a": "", "b": ""}],
        [{"a": ""}],
    ),
    "dependent schemas": (
        {**D2019, **A_OR_B, "dependentSchemas": {"b": {"properties": {"a": {"const": "1"}}}}},
        [{"a": "2"}, {"b": ""}, {"a": "1", "b": ""}],
        [{"a": "2", "b": ""}],
    ),
    "pattern properties": (
        {
            "type": "object",
            "patternProperties": {"^x-": {"type": "integer"}, "^(p|q)$": False},
            "properties": {"x-a": {"minimum": 3}},
            "additionalProperties": TEXT,
        },
        [{"x-a": 3}, {"x-b": 1, "c": "d"}],
        [{"x-a": 2}, {"x-b": "s"}, {"p": "s"}, {"c": 1}],
    ),
    "property names": (
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "properties": {"B": {}}},
        [{}, {"a": 1}],
        [{"B": 1}, {"a1": 1}],
    ),
    "only the empty name": (
        {"type": "object", "propertyNames": {"pattern": "^$"}},
        [{}, {"": 1}],
        [{"a": 1}],
    ),
    "patterns that part names": (
        {
            "type": "object",
            "patternProperties": {".": {"type": "null"}, "^$": {"type": "integer"}},
        },
        [{"": 1, "a": None}],
        [{"": None}, {"a": 1}],
    ),
    "patterns for the same": (
        {
            "$defs": {"a": {"type": "null"}},
            "type": "object",
            "patternProperties": {"^a": {"$ref": "#/$defs/a"}, "b$": {"$ref": "#/$defs/a"}},
            "additionalProperties": False,
        },
        [{"a": None, "ab": None, "cb": None}],
        [{"a": 1}, {"c": None}],
    ),
    "names that are out": (
        {
            "type": "object",
            "propertyNames": {"not": {"enum": ["a"]}},
            "properties": {"b": TEXT},
        },
        [{"b": ""}, {"c": 1}],
        [{"a": 1}, {"b": 1}],
    ),
    "at least one property": (
        {**A_OR_B, "minProperties": 1, "additionalProperties": False},
        [{"a": ""}, {"a": "", "b": ""}, {"b": ""}],
        [{}],
    ),
    "at least one of any": ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    "at most one property": (
        {**A_OR_B, "maxProperties": 1},
        [{}, {"a": ""}, {"b": ""}, {"c": 1}],
        [{"a": "", "b": ""}, {"a": "", "c": 1}],
    ),
    "no property": ({"type": "object", "maxProperties": 0}, [{}], [{"a": 1}]),
    "contains": (
        {"type": "array", "contains": {"const": 1}, "maxItems": 3},
        [[1], [1, 2, 1]],
        [[], [2]],
    ),
    "contains at most": (
        {
            "type": "array",
            "items": {"enum": [1, 2]},
            "contains": {"const": 1},
            "maxContains": 1,
        },
        [[1], [1, 2, 2]],
        [[], [1, 1]],
    ),
    "unique values": (
        {
            "type": "array",
            "items": {"enum": ["a", "b", "c"]},
            "uniqueItems": True,
            "minItems": 1,
        },
        [["a"], ["a", "c"], ["b", "c"]],
        [[], ["a", "a"]],
    ),
    "unique alone": (
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        [[], [5]],
        [[5, 5]],
    ),
    "unevaluated properties": (
        {
            "allOf": [{"properties": {"a": TEXT}}],
            "properties": {"b": TEXT},
            "type": "object",
            "unevaluatedProperties": False,
        },
        [{}, {"a": "", "b": ""}],
        [{"c": 1}],
    ),
    "unevaluated items": (
        {"type": "array", "prefixItems": [TEXT], "unevaluatedItems": {"type": "null"}},
        [[], ["a", None]],
        [["a", 1]],
    ),
    "steps": (
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 1},
        [0.25, 0.75, 1],
        [0.1, 0.3, 1.25],
    ),
    "whole numbers over a step": ({"type": "integer", "multipleOf": 0.01}, [7, -3], [0.5]),
    "required out of order": (
        {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "required": ["z", "b"]},
        [{"b": "", "z": 1}, {"a": "", "b": "", "z": [1]}],
        [{"b": ""}, {"z": 1}],
    ),
    "large counts": (
        {"type": "array", "items": {"type": "string", "maxLength": 10**9}, "maxItems": 10**9},
        [[], ["a", "b"]],
        [[1]],
    ),
}


@pytest.mark.parametrize(("schema", "valid", "invalid"), KINDS.values(), ids=KINDS)
def test_what_may_be_written(schema, valid, invalid):
    """The validator and the engine agree about examples of either kind."""
    validator = validator_of(schema)
    kind = type(validator)
    if "exclusiveMinimum" not in schema or schema["exclusiveMinimum"] is not True:
        kind.check_schema(schema)
        assert all(map(validator.is_valid, valid))
        assert not any(map(validator.is_valid, invalid))
    assert [value for value in valid if not takes(schema, value)] == []
    assert [value for value in invalid if takes(schema, value)] == []


@pytest.mark.parametrize(
    "schema",
    [one for one, _, _ in KINDS.values() if one.get("exclusiveMinimum") is not True],
    ids=[
        name for name, (one, _, _) in KINDS.items() if one.get("exclusiveMinimum") is not True
    ],
)
def test_random_answers_are_valid(schema):
    """Random answers under biases that provoke failure are valid whenever they end."""
    assert assert_valid(schema, seed=5, num_answers=4)


@pytest.mark.parametrize(
    "name",
    [
        "date",
        "time",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    ],
)
@pytest.mark.parametrize("more", [{}, {"maxLength": 40}])
def test_formats_are_enforced(name, more):
    """Texts of a format pass the validator's check of it."""
    schema = {**D2019, "type": "string", "format": name, **more}
    assert assert_valid(schema, seed=3, num_answers=6)
    assert not takes(schema, "no such text")


def test_text_is_written_in_one_way():
    r"""No name passes for another one by an escape; control characters are not written."""
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    assert takes(schema, b'{"a":null,"b":1}')
    assert not takes(schema, rb'{"\u0061":1}')
    assert not takes({"type": "string"}, rb'"\u00e9"')
    assert takes({"type": "string"}, '"é\\n"'.encode())


def test_names_are_kept_apart_as_validators_do():
    """A name that some validators match with a pattern, and some not, is not written."""
    schema = {"type": "object", "patternProperties": {r"^\w+$": {"type": "null"}}}
    assert takes(schema, {"a": None, "-": 1})
    assert not takes(schema, {"é": 1})
    schema = {"type": "object", "patternProperties": {"^a$": {"type": "null"}}}
    assert takes(schema, {"a": None, "é": 1})
    assert not takes(schema, {"a\n": 1})
