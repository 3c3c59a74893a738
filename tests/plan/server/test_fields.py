"""Reading objects field by field."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import BadRequest
from mmserve.server.fields import Body, boolean, integer, list_of, number, shown, text, word


def refusal(body: Body) -> BadRequest:
    """What `finish` raises."""
    with pytest.raises(BadRequest) as caught:
        body.finish()
    return caught.value


def test_null_is_absent() -> None:
    """A null field gives the default and counts as known."""
    body = Body({"n": None})
    assert body.take("n", integer(1, 9), 3) == 3
    body.finish()


def test_unknown_fields_are_refused_by_name() -> None:
    """The refusal names the field with its place, and the field that was meant."""
    body = Body({"temprature": 1}, "options")
    body.take("temperature", number(0, 1), None)
    error = refusal(body)
    assert error.param == "options.temprature"
    assert error.hint == "did you mean temperature?"


def test_needed_fields_must_be_there() -> None:
    """A missing and a null field are both missing."""
    for given_fields in ({}, {"a": None}):
        with pytest.raises(BadRequest, match="a is missing"):
            Body(given_fields).need("a", text)


def test_neutral_values_pass_and_others_do_not() -> None:
    """False is not 0, and a list is compared as a whole."""
    body = Body({"store": False, "tools": [], "zero": 0})
    body.neutral("store", allowed=(False,))
    body.neutral("tools", allowed=([],))
    with pytest.raises(BadRequest):
        body.neutral("zero", allowed=(False,))


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (boolean, 1),
        (boolean, "true"),
        (integer(0, 9), True),
        (integer(0, 9), 1.5),
        (integer(0, 9), "1"),
        (integer(0, 9), 10),
        (integer(0, 9), 10**400),
        (number(0, 1), True),
        (number(0, 1), "0.5"),
        (number(0, 1), -0.1),
        (text, 5),
        (word("a", "b"), "c"),
        (word("a", "b"), ["a"]),
        (list_of(text), "a"),
        (list_of(text), ["a", 1]),
        (list_of(text, most=1), ["a", "b"]),
    ],
)
def test_wrong_kinds_and_ranges_are_refused(check, value: object) -> None:
    """Nothing is converted: a word is no number, a truth value no integer."""
    with pytest.raises(BadRequest) as caught:
        check(value, "field")
    assert caught.value.param.startswith("field")


def test_whole_floats_are_integers() -> None:
    """JSON does not tell 2.0 from 2."""
    assert integer(0, 9)(2.0, "n") == 2


@settings(deadline=None, max_examples=40)
@given(st.text() | st.integers() | st.lists(st.text()) | st.floats(allow_nan=False))
def test_shown_values_are_short(value: object) -> None:
    """Whatever it is, a message repeats at most 60 characters of it."""
    assert len(shown(value)) <= 60
