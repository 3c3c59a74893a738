"""Stop patterns in a text that grows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.constrained import compile_stops
from mmserve.core import ConstraintRefused

PIECES = st.sampled_from(["a", "b", "c", ".", "[ab]", r"\s", "[^a]", "^"])
PATTERNS = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)


def found(patterns, text):
    """(start, end, pattern) of the first match, or None."""
    search = compile_stops(patterns).search()
    for end, character in enumerate(text, 1):
        match = search.feed(character)
        if match is not None:
            return match[0], end, match[1]
    return None


def found_by_hand(pattern, text):
    """The same, by trying every start at every end."""
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if compiled.fullmatch(text[:end], start):
                return start, end, pattern
    return None


@settings(max_examples=600, deadline=None)
@given(pattern=PATTERNS, text=st.text("ab c\n", max_size=9))
def test_the_first_match_is_the_leftmost_that_is_complete_first(pattern, text):
    """Every pattern finds what trying all starts at all ends finds."""
    try:
        compile_stops([pattern])
    except ConstraintRefused as error:
        assert error.fields["reason"] == "unsupported"
        return
    assert found([pattern], text) == found_by_hand(pattern, text)


@pytest.mark.parametrize(
    ("patterns", "text", "expected"),
    [
        (["and|or"], "for all", (1, 3, "and|or")),
        ([r"[.!?]\s*$"], "Well. So", (4, 5, r"[.!?]\s*$")),
        (["bc", "ab?c"], "xabc", (1, 4, "ab?c")),
        (["^b"], "abb", None),
        (["^b|bb"], "abb", (1, 3, "^b|bb")),
        (["(?i)STOP"], "a stop", (2, 6, "(?i)STOP")),
        (["x*"], "abc", None),
        ([r"\d{3}"], "12 ١٢٣", (3, 6, r"\d{3}")),
    ],
)
def test_examples(patterns, text, expected):
    """Of several patterns the leftmost match counts; empty matches do not."""
    assert found(patterns, text) == expected


def test_what_may_become_a_match_is_known():
    """The start of the leftmost match in progress bounds what may be shown."""
    search = compile_stops(["abc", "bx"]).search()
    starts = []
    for character in "zabz":
        search.feed(character)
        starts.append(search.start)
    assert starts == [None, 1, 1, None]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "syntax"),
        ("", "empty"),
        (r"(a)\1", "unsupported"),
        ("a(?=b)", "unsupported"),
        (r"\bword", "unsupported"),
        ("(?m)^a", "unsupported"),
        ("a{501}", "too_large"),
        ("(?:a?){400}", "too_large"),
        ("(" * 500 + "a" + ")" * 500, "too_large"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(pattern, reason):
    """A pattern that no automaton holds, or too large a one, is refused by name."""
    with pytest.raises(ConstraintRefused) as caught:
        compile_stops([pattern])
    assert (caught.value.fields["field"], caught.value.fields["reason"]) == (
        "stop_regex",
        reason,
    )


def test_a_treacherous_pattern_takes_no_more_turns():
    """Nested repeats keep a handful of live positions however long the text is."""
    search = compile_stops(["(a+)+b"]).search()
    for _ in range(5000):
        assert search.feed("a") is None
    assert search.start == 0
    assert search.feed("b") == (0, "(a+)+b")
