"""What passes as a JSON body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.core import BadRequest
from mmserve.server.body import parse_json

WHOLE = st.characters(exclude_categories=["Cs"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(WHOLE, max_size=9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(WHOLE, max_size=9), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=40)
@given(VALUES, st.booleans())
def test_valid_json_is_read_as_it_is(value: object, is_ascii: bool) -> None:
    """Any value of whole characters comes back equal, escaped or not."""
    assert parse_json(json.dumps(value, ensure_ascii=is_ascii).encode()) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b"[" * 257 + b"]" * 257,
        b'{"a":' * 257 + b"1" + b"}" * 257,
        b" ",
        b"1" * 5000,
        b'{"a": "emoji \\ud83d"}',
        b'{"a": ["x \\ude00 y"]}',
        b'{"\\uD83d": 1}',
    ],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    """Broken text, huge numbers, names twice, and halves of characters are refused."""
    with pytest.raises(BadRequest):
        parse_json(raw)


def test_deep_values_pass_as_far_as_they_can_be_written_again() -> None:
    """256 deep, numbers in the innermost list not counted."""
    raw = b"[" * 256 + b"1, 2" + b"]" * 256
    assert json.dumps(parse_json(raw)).encode() == raw


def test_whole_pairs_are_characters() -> None:
    """A proper pair of escapes is one character, and NUL is text."""
    assert parse_json(b'"\\ud83d\\ude00\\u0000"') == "\U0001f600\0"
