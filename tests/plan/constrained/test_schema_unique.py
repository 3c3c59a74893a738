"""Arrays of unique items: an item that stands in the array cannot be ended again."""

import json
import random

import pytest
from plan.constrained.sampling import allowed_ids, compiler, draw, matcher, tokenizer
from plan.constrained.schema_answers import assert_valid, takes

from mmserve.core import Constraint, ConstraintRefused

TEXTS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
NUMBERS = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
OBJECTS = {
    "type": "array",
    "items": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "uniqueItems": True,
}
INSIDE = {
    "type": "object",
    "properties": {"free": {"type": "array", "items": {"type": "string"}}, "tags": TEXTS},
    "additionalProperties": {"$ref": "#"},
}
EITHER = {"anyOf": [TEXTS, {"type": "object", "properties": {"k": NUMBERS}}, {"type": "null"}]}
SCHEMAS = {
    "texts": TEXTS,
    "numbers": NUMBERS,
    "objects": OBJECTS,
    "arrays": {"type": "array", "items": TEXTS, "uniqueItems": True, "minItems": 2},
    "patterns": {**TEXTS, "items": {"pattern": "^[ab]+$", "type": "string"}, "minItems": 3},
    "inside": INSIDE,
    "either": EITHER,
    "tuple": {**NUMBERS, "prefixItems": [{"type": "string"}, {"type": "integer"}]},
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_random_answers_are_valid(schema):
    """Random answers whose items are short and would often repeat are valid when they end."""
    assert assert_valid(schema, seed=2, num_answers=8)


@pytest.mark.parametrize(
    ("schema", "valid", "repeated"),
    [
        (TEXTS, ["a", "b", "ab", "a\n"], ["a", "b", "a"]),
        (TEXTS, ['"', "\\", "é,]"], ["é,]", "é,]"]),
        (NUMBERS, [0, 1, 10, -1], [10, 1, 10]),
        (OBJECTS, [{}, {"a": 1}, {"a": 2}, {"b": 1}], [{"a": 1}, {"a": 1}]),
        (OBJECTS, [{"x": 1, "y": 2}, {"x": 1}], [{"x": 1, "y": 2}, {"y": 2, "x": 1}]),
        (SCHEMAS["arrays"], [["a"], [], ["a", "b"]], [["a"], ["a"]]),
        (SCHEMAS["arrays"], [["a"], ["b"]], [["a", "a"], []]),
    ],
)
def test_what_may_be_written(schema, valid, repeated):
    """Items that differ may come, one that equals another may not, however it is written."""
    assert takes(schema, valid)
    assert not takes(schema, repeated)


def test_only_such_arrays_are_watched():
    """Arrays elsewhere in the schema may repeat their items."""
    assert takes(INSIDE, {"free": ["a", "a"], "tags": ["a"], "more": {"free": ["b", "b"]}})
    assert not takes(INSIDE, {"free": [], "more": {"tags": ["a", "a"]}})
    assert takes(EITHER, {"k": [1, 2], "other": [1, 1]})
    assert not takes(EITHER, {"k": [1, 1]})


def test_a_second_zero_does_not_begin():
    """What could only be a repeated item is not begun, since no digit follows a zero."""
    state = matcher("json_schema", NUMBERS, "bytes")
    tokens = tokenizer("bytes")
    for token_id in tokens.encode_inside("[0,"):
        state.accept(token_id)
    pieces = {tokens.piece(one) for one in allowed_ids(state)}
    assert b"0" not in pieces
    assert {b"-", b"1", b"9"} <= pieces


@pytest.mark.parametrize("schema", [TEXTS, OBJECTS, INSIDE])
def test_steps_back_and_copies_keep_the_place(schema):
    """After a rollback, and in a copy, the mask is the one of a fresh matcher at that place."""
    make = compiler().compile(Constraint("json_schema", json.dumps(schema)))
    rng = random.Random(4)
    state, content = make(), []
    for _ in range(60):
        ids = [one for one in allowed_ids(state) if one != tokenizer().eos_token_id]
        if ids:
            content.append(rng.choice(ids))
            state.accept(content[-1])
        if not ids or rng.random() < 0.3:
            count = rng.randrange(1, 1 + min(3, len(content)))
            state.rollback(count)
            del content[-count:]
        fresh = make()
        for one in content:
            fresh.accept(one)
        assert allowed_ids(state) == allowed_ids(state.fork()) == allowed_ids(fresh)


def test_jumps_do_not_repeat_items():
    """Text that the grammar forces is cut before it would repeat an item."""
    schema = {
        **TEXTS,
        "items": {"type": "string", "maxLength": 8},
        "minItems": 3,
        "maxItems": 3,
    }
    for seed in range(6):
        text, is_end = draw(matcher("json_schema", schema), seed, max_tokens=60)
        if is_end:
            assert len(set(json.loads(text))) == 3


@pytest.mark.parametrize(
    "items",
    [{}, {"type": "boolean"}, {"type": ["string", "null"]}, {"type": "string", "maxLength": 2}],
)
def test_items_that_run_out_are_refused(items):
    """Where an answer could get stuck for want of another value, the schema is refused."""
    with pytest.raises(ConstraintRefused) as caught:
        matcher("json_schema", {"type": "array", "items": items, "uniqueItems": True})
    assert caught.value.fields["keyword"] == "uniqueItems"
