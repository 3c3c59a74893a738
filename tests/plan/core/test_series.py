"""Names of counters and gauges, with labels of any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.core import parse_series, series_key

NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)


def test_names_may_carry_labels():
    """Name and labels come apart."""
    assert parse_series('a_total{b="c",d="e"}') == ("a_total", {"b": "c", "d": "e"})
    assert parse_series("a") == ("a", {})


def test_labels_stand_in_alphabetic_order():
    """So that one series has one key."""
    assert series_key("a", z=1, b="x") == series_key("a", b="x", z=1) == 'a{b="x",z="1"}'


@given(NAMES, st.dictionaries(NAMES, st.text(max_size=12), max_size=3))
def test_any_text_is_a_label(name, labels):
    """Quotes, backslashes, commas, braces and line ends come back as they were."""
    assert parse_series(series_key(name, **labels)) == (name, labels)


@pytest.mark.parametrize("key", ["a b", "", "a{b=c}", 'a{b="c"', 'a{b="c" d="e"}', 'a{b="\\"}'])
def test_what_is_no_series_is_an_error(key):
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="names no series"):
        parse_series(key)
