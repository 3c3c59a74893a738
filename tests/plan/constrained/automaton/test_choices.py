"""Choices: an automaton of exactly the options."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.constrained.automaton.patterns import (
    accepts,
    all_states,
    bytes_vocabulary,
    mask_by_hand,
    same,
    tabletop_vocabulary,
)

from mmserve.constrained.automaton import byte_table, compile_choices, compile_regex

OPTIONS = st.lists(st.text("abé日😀 \x00", max_size=5), min_size=1, max_size=8)


@settings(max_examples=200)
@given(options=OPTIONS, others=st.lists(st.text("abé日😀 \x00", max_size=5), max_size=8))
def test_takes_the_options_and_nothing_else(options, others):
    """Options that repeat, are empty, or begin one another are taken, other texts are not."""
    automaton = compile_choices(options, bytes_vocabulary())
    for text in {*options, *others}:
        assert accepts(automaton, text) == (text in options)


@settings(max_examples=150)
@given(options=OPTIONS)
def test_states_are_what_trying_bytes_finds(options):
    """In every state next bytes, forced bytes, ends and masks are those of what is left."""
    automaton = compile_choices(options, bytes_vocabulary())
    contents = {one.encode() for one in options}
    texts = {automaton.start: b""}
    for state, ways in all_states(automaton).items():
        read = texts[state]
        left = {one[len(read) :] for one in contents if one.startswith(read)}
        assert list(ways) == sorted({one[0] for one in left if one})
        assert automaton.is_accepting(state) == (b"" in left)
        assert automaton.is_final(state) == (left == {b""})
        shared = min(left, key=len)
        while not all(one.startswith(shared) for one in left):
            shared = shared[:-1]
        assert automaton.forced(state) == shared
        assert same(automaton.allowed(state), mask_by_hand(automaton, state))
        for byte, goal in ways.items():
            texts[goal] = read + bytes((byte,))


@settings(max_examples=60)
@given(options=OPTIONS)
def test_the_same_as_an_alternation(options):
    """The smallest automaton over bytes is that of the options as a pattern."""
    vocabulary = bytes_vocabulary()
    pattern = "|".join("".join(rf"\U{ord(c):08x}" for c in one) for one in options)
    one = byte_table(compile_choices(options, vocabulary))
    other = byte_table(compile_regex(f"(?:{pattern})", vocabulary))
    assert (one.num_states, one.num_edges) == (other.num_states, other.num_edges)


def test_masks_over_512_tokens():
    """Masks of a few hundred options over the shipped vocabulary are bit for bit right."""
    rng = random.Random(1)
    options = ["".join(rng.choice("the cat is on") for _ in range(9)) for _ in range(300)]
    automaton = compile_choices(options, tabletop_vocabulary())
    for state in rng.sample(sorted(all_states(automaton)), 80):
        assert same(automaton.allowed(state), mask_by_hand(automaton, state))


def test_forced_text_is_bounded():
    """Of a long option the next 1,024 bytes are known, and no more at a time."""
    automaton = compile_choices(["x" * 5000], bytes_vocabulary())
    assert automaton.forced(automaton.start) == b"x" * 1024


@pytest.mark.parametrize("piece", [b"", b"ca", b"cart", b"cat"])
def test_states_are_canonical(piece):
    """A state does not depend on the pieces that led to it."""
    automaton = compile_choices(["cart", "dog", "car", "cat"], bytes_vocabulary())
    state = automaton.start
    for byte in piece:
        state = automaton.after(state, bytes((byte,)))
    assert state == automaton.after(automaton.start, piece)


def test_edges_for_drawings():
    """Each way out is told with the text that is certain after it."""
    automaton = compile_choices(["north", "north-east", "south"], bytes_vocabulary())
    edges = automaton.edges(automaton.start)
    assert [(edge.label, edge.num_characters) for edge in edges] == [
        ('"north"', 5),
        ('"south"', 5),
    ]
    (more,) = automaton.edges(edges[0].target)
    assert more.label == '"-east"'
    assert automaton.is_final(more.target)
    assert automaton.edges(more.target) == ()


def test_ten_thousand_options():
    """Many options are told apart, and the first mask is there once they are compiled."""
    rng = random.Random(0)
    options = ["".join(rng.choice("abcdefgh ") for _ in range(20)) for _ in range(10_000)]
    automaton = compile_choices(options, bytes_vocabulary())
    assert all(accepts(automaton, one) for one in options)
    assert not accepts(automaton, options[0][:-1])
    assert automaton.num_bytes < 2 << 20
