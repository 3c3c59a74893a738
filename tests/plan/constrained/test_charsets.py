"""Sets of characters: Python's classes, and what ignoring case adds."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.constrained.charsets import (
    as_class,
    category,
    complement,
    has_case,
    ignoring_case,
    merge,
)

IS_CHARACTER = np.ones(0x110000, dtype=np.bool_)
IS_CHARACTER[0xD800:0xE000] = False
ALL = np.arange(0x110000, dtype="<u4")[IS_CHARACTER].tobytes().decode("utf-32-le")
RANGES = st.lists(
    st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 3000)).map(
        lambda two: (two[0], min(two[0] + two[1], 0x10FFFF))
    ),
    min_size=1,
    max_size=4,
)


def members(ranges):
    """Whether each code point is in a set."""
    found = np.zeros(0x110000, dtype=np.bool_)
    for low, high in ranges:
        found[low : high + 1] = True
    return found


def members_in_re(class_text, flags):
    """The same, as `re` says."""
    found = np.zeros(len(ALL), dtype=np.bool_)
    for match in re.finditer(f"{class_text}+", ALL, flags):
        found[match.start() : match.end()] = True
    spread = np.zeros(0x110000, dtype=np.bool_)
    spread[IS_CHARACTER] = found
    return spread


@settings(max_examples=60)
@given(ranges=RANGES)
def test_unions_and_opposites(ranges):
    """A union has each character once and no surrogate; its opposite has all the others."""
    merged = merge(ranges)
    wanted = members(ranges) & IS_CHARACTER
    assert np.array_equal(members(merged), wanted)
    assert list(merged) == sorted(merged)
    assert sum(high - low + 1 for low, high in merged) == wanted.sum()
    assert np.array_equal(members(complement(merged)), IS_CHARACTER & ~wanted)
    assert complement(complement(merged)) == merged


@pytest.mark.parametrize("letter", "dswDSW")
@pytest.mark.parametrize("is_ascii", [False, True])
def test_categories_are_those_of_re(letter, is_ascii):
    """Each character is in a category exactly if `re` says so."""
    found = members_in_re(rf"\{letter}", re.ASCII if is_ascii else 0)
    assert np.array_equal(members(category(letter, is_ascii=is_ascii)), found)


@pytest.mark.parametrize("is_ascii", [False, True])
def test_each_letter_without_case(is_ascii):
    """A letter matches, ignoring case, the characters that `re` matches it with."""
    flags = re.IGNORECASE | (re.ASCII if is_ascii else 0)
    text = "".join(one for one in ALL if has_case(ord(one)))
    assert 2_500 < len(text) < 4_000
    for one in text[::12] + "kK\u017fs\u0130\u0131iI\u00df\u1e9e\u00b5\u0345":
        found = {(ord(other), ord(other)) for other in re.findall(re.escape(one), text, flags)}
        assert ignoring_case(((ord(one), None),), is_ascii=is_ascii) == merge(found)


def test_only_letters_with_case_have_other_forms():
    """Ignoring case changes nothing for characters that are said to have none."""
    for one in ALL:
        if not has_case(ord(one)):
            assert one.lower() == one.upper() == one


ITEMS = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from([0x4B, 0x73, 0xDF, 0x130, 0x3B1, 0x1E9E, 0x2C00, 0x10400, 0x1E900]),
            st.integers(0, 0x10FFFF),
        ),
        st.one_of(st.none(), st.integers(0, 300), st.integers(0, 70_000)),
    ).map(lambda two: (two[0], None if two[1] is None else min(sum(two), 0x10FFFF))),
    min_size=1,
    max_size=4,
).map(tuple)


@settings(max_examples=40)
@given(items=ITEMS, is_ascii=st.booleans())
def test_classes_without_case(items, is_ascii):
    """A class matches, ignoring case, exactly what it matches in `re`."""
    inside = "".join(
        rf"\U{low:08x}" if high is None else rf"\U{low:08x}-\U{high:08x}" for low, high in items
    )
    flags = re.IGNORECASE | (re.ASCII if is_ascii else 0)
    found = members(ignoring_case(items, is_ascii=is_ascii))
    assert np.array_equal(found, members_in_re(f"[{inside}]", flags))


@pytest.mark.parametrize(
    ("ranges", "written"),
    [
        (((97, 97),), r"\x{61}"),
        (((97, 98), (0x1F600, 0x1F600)), r"[\x{61}-\x{62}\x{1f600}]"),
    ],
)
def test_classes_are_written_for_rust(ranges, written):
    """One character stands alone, more stand in brackets."""
    assert as_class(ranges) == written
