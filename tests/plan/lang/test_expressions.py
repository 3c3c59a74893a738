"""Expressions: how they join, and what is refused when they are made."""

from __future__ import annotations

import inspect

import pytest

from mmserve.core import BadRequest, ConstraintRefused, RawPart, TextPart
from mmserve.lang import (
    REGEX_INT,
    assistant,
    gen,
    gen_int,
    gen_string,
    image,
    raw,
    select,
    user,
    video,
)
from mmserve.lang.ir import Gen, RoleBegin, RoleEnd, Select


def test_texts_and_expressions_join_in_order():
    """`+` keeps the order, whichever side the text stands on."""
    nodes = ("a" + raw("b") + "c").nodes

    assert nodes == (TextPart("a"), RawPart("b"), TextPart("c"))


def test_a_role_wraps_its_expression():
    """A turn is its begin, its content and its end."""
    assert user("hi").nodes == (RoleBegin("user"), TextPart("hi"), RoleEnd("user"))
    assert assistant().nodes == (RoleBegin("assistant"), RoleEnd("assistant"))


def test_a_number_cannot_be_joined():
    """Only texts and expressions are joined."""
    with pytest.raises(TypeError):
        gen("x") + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        1 + gen("x")  # type: ignore[operator]


def test_gen_takes_six_parameters_by_position_in_the_languages_order():
    """name, max_tokens, min_tokens, n, stop, stop_token_ids."""
    names = [
        name
        for name, parameter in inspect.signature(gen).parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]

    assert names == ["name", "max_tokens", "min_tokens", "n", "stop", "stop_token_ids"]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": 0},
        {"n": 0},
        {"n": True},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_tokens": "16"},
        {"frequency_penalty": 2.5},
        {"stop": [""]},
        {"stop": 3},
        {"stop_token_ids": ["a"]},
        {"timeout_s": 0},
        {"ignore_eos": 1},
        {"seed": 2**64},
    ],
)
def test_values_that_can_never_be_served_raise_in_gen(options):
    """A bad value raises where it is written, not later."""
    with pytest.raises(BadRequest):
        gen("x", **options)


def test_an_unknown_parameter_is_a_type_error():
    """A misspelt parameter is not swallowed."""
    with pytest.raises(TypeError):
        gen("x", max_token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "("},
        {"stop_regex": "("},
        {"regex": r"(?=a)b"},
        {"regex": r"(a)\1"},
        {"json_schema": "INVALID"},
        {"json_schema": 3},
        {"json_schema": {1, 2}},
        {"json_schema": {"minLength": -1}},
        {"regex": r"\bword"},
        {"ebnf": ""},
    ],
)
def test_constraints_that_cannot_be_enforced_raise_in_gen(options):
    """A malformed or unenforceable constraint raises where it is written."""
    with pytest.raises(ConstraintRefused):
        gen("x", **options)


def test_a_refused_regex_names_the_position():
    """The position of what cannot be enforced is a field."""
    with pytest.raises(ConstraintRefused) as caught:
        gen("x", regex=r"ab(?=c)")

    assert caught.value.fields["position"] == 2


@pytest.mark.parametrize("pattern", [r"[(?=]+", r"\(\?=", r"[]\]x](?:a|b)", r"a\\1"])
def test_what_only_looks_unenforceable_is_taken(pattern):
    """Character classes and escapes may spell what would be a lookahead or a backreference."""
    node = gen("x", regex=pattern).nodes[0]

    assert isinstance(node, Gen)
    assert node.constraint is not None
    assert node.constraint.value == pattern


@pytest.mark.parametrize(
    "make",
    [
        lambda half: "a" + gen("x") + half,
        lambda half: user(half),
        lambda half: raw(half),
        lambda half: gen("x", stop=half),
        lambda half: gen("x", stop=["a", half]),
        lambda half: select("x", ["a", half]),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(make):
    """No model can be asked with it, whatever the backend; a whole character is text."""
    with pytest.raises(BadRequest, match="half of a surrogate pair"):
        make("emoji \ud83d")
    assert make("emoji \U0001f600").nodes


def test_two_constraints_are_refused():
    """One constraint a gen; dtype and choices count."""
    with pytest.raises(BadRequest):
        gen("x", dtype=int, regex="a")
    with pytest.raises(BadRequest):
        gen("x", choices=["a"], regex="a")


@pytest.mark.parametrize("dtype", [int, "int"])
def test_dtype_int_is_its_pattern_and_two_stops(dtype):
    """Int adds a blank and a newline as stops."""
    node = gen("x", dtype=dtype).nodes[0]

    assert isinstance(node, Gen)
    assert node.constraint is not None
    assert node.constraint.value == REGEX_INT
    assert node.extra_stops == (" ", "\n")


def test_gen_int_and_gen_string_are_gens_with_a_dtype():
    """`gen_int(stop=...)` works, with the stop beside the type's own."""
    node = gen_int("x", stop="\n").nodes[0]

    assert node == gen("x", dtype=int, stop="\n").nodes[0]
    assert gen_string("y").nodes == gen("y", dtype=str).nodes


def test_a_schema_may_be_text_or_a_mapping_or_a_class_with_a_schema():
    """All three become one JSON text."""
    schema = {"type": "object"}

    class Model:
        @staticmethod
        def model_json_schema():
            return schema

        @staticmethod
        def model_validate_json(text):
            return text

    nodes = [
        gen("x", json_schema=form).nodes[0] for form in (schema, '{"type": "object"}', Model)
    ]

    assert {node.constraint.value for node in nodes} == {'{"type": "object"}'}


def test_gen_with_choices_is_a_select():
    """`choices` turns a gen into a select."""
    node = gen("x", choices=["a", "b"]).nodes[0]

    assert isinstance(node, Select)
    assert node.choices == ("a", "b")


@pytest.mark.parametrize("choices", [[], ["a", ""], "ab", ["a", 1]])
def test_a_select_without_good_options_raises(choices):
    """No options, an empty one, or one that is no text is an error at once."""
    with pytest.raises(BadRequest):
        select("x", choices)
    with pytest.raises(BadRequest):
        gen("x", choices=choices)


def test_a_select_with_a_temperature_raises():
    """A select is never drawn at random."""
    with pytest.raises(BadRequest):
        select("x", ["a"], temperature=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"num_frames": 0},
        {"fps": 0},
        {"start_s": -1},
        {"start_s": 2, "end_s": 2},
        {"max_pixels": 0},
    ],
)
def test_a_clip_with_an_impossible_window_raises(options):
    """Frames, rate and range are checked where they are written."""
    with pytest.raises(BadRequest):
        video("c.mp4", **options)


def test_image_does_not_read_before_the_append():
    """A missing file is no error until it is appended."""
    assert len(image("/no/such/picture.png").nodes) == 1
