"""JSON of every kind: bounds, general schemas, the order of keys, references in circles."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.constrained import (
    Refusal,
    Say,
    begins_json,
    canary,
    check_all,
    over_http,
    tokens_of,
)
from support.oracle import Asker

# O-CON-08


def whole_number(**bounds: Any) -> dict[str, Any]:
    """A schema of integers."""
    return {"type": "integer", **bounds}


NUMBERS = [
    whole_number(minimum=0, maximum=20_000_000_000),
    whole_number(minimum=-(2**63), maximum=0),
    whole_number(minimum=0, maximum=1e3),
    whole_number(exclusiveMinimum=0, exclusiveMaximum=2),
    whole_number(multipleOf=5, minimum=-50, maximum=50),
    {"type": "number", "minimum": 0.5, "maximum": 0.75},
    {"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.75},
]


@pytest.mark.parametrize("schema", NUMBERS)
def test_bounds_of_numbers_hold_exactly(say: Say, schema: dict[str, Any]) -> None:
    """Every answer keeps them, without needless zeros; only a bound too far may be refused."""
    try:
        answers = say(json_schema=schema, n=8)
    except Refusal as refusal:
        assert schema["minimum"] == -(2**63)
        assert "imum" in refusal.message
        return
    check_all(answers, schema)
    if schema["type"] == "integer":
        assert all(re.fullmatch("-?(0|[1-9][0-9]*)", answer.text) for answer in answers)


def test_digits_that_are_wanted_keep_the_bounds(chat: Say, ask: Asker) -> None:
    """Nines are what the model would write for ever."""
    schema = whole_number(minimum=0, maximum=20_000_000_000)
    answers = chat(json_schema=schema, logit_bias=tokens_of(ask, "9"), n=2)
    check_all(answers, schema)


def test_bounds_that_nothing_meets_are_refused(say: Say, ask: Asker) -> None:
    """A minimum above the maximum is a refusal, and the server goes on."""
    with pytest.raises(Refusal, match=r"imum|nothing|no value"):
        say(json_schema=whole_number(minimum=2, maximum=1))
    canary(ask)


# O-CON-09


GENERAL: list[Any] = [
    {"type": "object"},
    {},
    True,
    {"type": ["string", "null"]},
    {"type": "array"},
]


@pytest.mark.parametrize("schema", GENERAL)
def test_general_schemas_are_served(say: Say, schema: Any) -> None:
    """What ends is valid, what is cut begins JSON."""
    answers = say(json_schema=schema, n=4, max_tokens=64)
    check_all([answer for answer in answers if answer.is_whole], schema)
    assert all(begins_json(answer.text) for answer in answers)


@pytest.mark.parametrize("stream", [False, True])
def test_any_object(ask: Asker, stream: bool) -> None:
    """`json_object` is an object."""
    form = {"type": "json_object"}
    answers = over_http(ask, stream=stream)(response_format=form, n=6, max_tokens=64)
    check_all([answer for answer in answers if answer.is_whole], {"type": "object"})
    assert all(begins_json(answer.text) and answer.text[0] == "{" for answer in answers)


def test_digits_end_by_themselves(chat: Say, ask: Asker) -> None:
    """A model that wants nothing but digits ends a value of any kind within its budget."""
    answers = chat(json_schema={}, logit_bias=tokens_of(ask, "0123456789"), max_tokens=64, n=3)
    check_all(answers, {"type": "number"})


# O-CON-10


def test_keys_come_in_the_order_of_properties(say: Say) -> None:
    """Optional ones may be left out, none repeats, and required ones are there."""
    flag = {"enum": [0, 1]}
    schema = {
        "type": "object",
        "properties": {"a": flag, "b": flag, "c": flag},
        "required": ["a"],
        "additionalProperties": False,
    }
    answers = say(json_schema=schema, n=20)
    check_all(answers, schema)
    assert all(list(answer.value) == sorted(answer.value) for answer in answers)
    assert len({tuple(answer.value) for answer in answers}) > 1


def test_the_order_of_required_does_not_matter(say: Say) -> None:
    """Keys come as `properties` has them."""
    flag = {"enum": [0, 1]}
    schema = {
        "type": "object",
        "properties": {"z": flag, "a": flag},
        "required": ["a", "z"],
        "additionalProperties": False,
    }
    answers = say(json_schema=schema, n=4)
    check_all(answers, schema)
    assert all(list(answer.value) == ["z", "a"] for answer in answers)


def test_a_required_key_may_have_no_schema(say: Say) -> None:
    """Its value is any, or the schema is refused by that word."""
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [0, 1]}},
        "required": ["b", "a"],
    }
    try:
        answers = say(json_schema=schema, n=6, max_tokens=120)
    except Refusal as refusal:
        assert "required" in refusal.message
        return
    check_all([answer for answer in answers if answer.is_whole], schema)
    assert all(begins_json(answer.text) for answer in answers)


# O-CON-11


TREE = {
    "definitions": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"enum": [1, 2]},
                "kids": {"$ref": "#/definitions/nodes"},
            },
            "required": ["v"],
            "additionalProperties": False,
        },
        "nodes": {"type": "array", "items": {"$ref": "#/definitions/node"}},
    },
    "$ref": "#/definitions/node",
}
ITSELF = {
    "type": "object",
    "properties": {"v": {"type": "boolean"}, "next": {"$ref": "#"}},
    "required": ["v"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("schema", [TREE, ITSELF])
def test_schemas_may_refer_in_circles(say: Say, schema: dict[str, Any]) -> None:
    """Trees are valid where they end."""
    answers = say(json_schema=schema, n=8)
    whole = [answer for answer in answers if answer.is_whole]
    check_all(whole, schema)
    assert whole
    assert all(begins_json(answer.text) for answer in answers)


def test_a_circle_of_nothing_is_refused(say: Say, ask: Asker) -> None:
    """References that lead only to each other have no value; the server goes on."""
    loop = {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    }
    with pytest.raises(Refusal, match=r"\$ref|circle"):
        say(json_schema=loop)
    canary(ask)
