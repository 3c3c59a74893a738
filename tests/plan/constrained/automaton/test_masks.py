"""Which tokens may come: masks bit for bit, how they are remembered, and one answer's place."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.constrained.automaton.patterns import (
    PATTERNS,
    all_states,
    bytes_vocabulary,
    mask_by_hand,
    same,
    tabletop_vocabulary,
)

from mmserve.constrained.automaton import (
    AutomatonParser,
    compile_choices,
    compile_regex,
    slices,
)
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import Broken

pytestmark = pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")

RECORD = r'\{"name": "[\w\d ]{1,20}", "age": [1-9]\d?, "kind": "(?:cat|dog|[^"\\]{3,5})"\}'


@settings(max_examples=60)
@given(pattern=PATTERNS)
def test_masks_over_512_tokens(pattern):
    """In every state of a random pattern the mask is what trying each token gives."""
    automaton = compile_regex(pattern, tabletop_vocabulary())
    for state in all_states(automaton, most=120):
        assert same(automaton.allowed(state), mask_by_hand(automaton, state))


@settings(max_examples=40)
@given(pattern=PATTERNS)
def test_masks_over_bytes_and_halves(pattern):
    """So it is over tokens that begin or end inside of characters, or are no text at all."""
    automaton = compile_regex(pattern, bytes_vocabulary())
    for state in all_states(automaton, most=120):
        assert same(automaton.allowed(state), mask_by_hand(automaton, state))


@settings(max_examples=60)
@given(pattern=PATTERNS)
def test_masks_by_slices(pattern):
    """Telling tokens of one class by their length alone gives the same masks."""
    patch = pytest.MonkeyPatch()
    patch.setattr(slices, "_MIN_TOKENS", 1)
    try:
        automaton = compile_regex(pattern, tabletop_vocabulary())
    finally:
        patch.undo()
    for state in all_states(automaton, most=120):
        assert same(automaton.allowed(state), mask_by_hand(automaton, state))


def large_vocabulary():
    """Nine thousand tokens of letters, digits, blanks and marks, some very long."""
    rng = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = {" " * length for length in range(1, 90)} | {"-" * k for k in (3, 300)}
    while len(words) < 9000:
        word = "".join(rng.choice(letters) for _ in range(rng.randrange(1, 7)))
        before, after = (
            rng.choice(["", "", " "]),
            rng.choice(["", "", "", '"', '",', ".", "é7"]),
        )
        words.add(before + word + after)
    pieces = [one.encode() for one in sorted(words)] + [b"\xc3", b"a\xc3", b"\xa9x", b"<end>"]
    return Vocabulary(pieces, eos_token_ids=[len(pieces) - 1], vocab_size=len(pieces))


def test_masks_over_many_tokens():
    """Where slices are used because the vocabulary is large, masks are right as well."""
    vocabulary = large_vocabulary()
    for pattern in [RECORD, r"[^\"]{0,50}", r"[a-z ]{1,80}!?", ".*", r"(?:[a-m]+|[k-z]+) \w*"]:
        automaton = compile_regex(pattern, vocabulary)
        states = sorted(all_states(automaton, most=150))
        for state in random.Random(0).sample(states, min(len(states), 12)):
            assert same(automaton.allowed(state), mask_by_hand(automaton, state))
        assert automaton.machine.is_sliced


def test_masks_are_remembered_within_a_bound():
    """Asking again gives the same array; past the bound the least recently used one is gone."""
    vocabulary = tabletop_vocabulary()
    num_bytes = vocabulary.text_mask.nbytes
    automaton = compile_regex("abcdef", vocabulary, mask_bytes=2 * num_bytes)
    base = automaton.num_bytes
    first = automaton.allowed(automaton.start)
    assert automaton.allowed(automaton.start) is first
    states = [automaton.after(automaton.start, b"abc"[:length]) for length in range(4)]
    for state in states[1:]:
        automaton.allowed(state)
    again = automaton.allowed(automaton.start)
    assert again is not first
    assert same(again, first)
    assert automaton.num_bytes == base + num_bytes
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_two_automata_share_the_tokens():
    """The trie of a vocabulary is built once, and goes with it."""
    from mmserve.constrained.automaton.tokens import token_trie  # noqa: PLC0415  its own test

    vocabulary = Vocabulary([b"a", b"b"], eos_token_ids=[5], vocab_size=4)
    assert token_trie(vocabulary) is token_trie(vocabulary)


def test_a_vocabulary_without_text():
    """Where no token is a text nothing may come, and no compiler minds."""
    vocabulary = Vocabulary([b"", b"</s>"], eos_token_ids=[1], vocab_size=40)
    for automaton in (compile_regex("a*", vocabulary), compile_choices(["a", ""], vocabulary)):
        assert automaton.allowed(automaton.start).tolist() == [0, 0]
        assert automaton.next_bytes(automaton.start) == b"a"


@settings(max_examples=60)
@given(pattern=PATTERNS, seed=st.integers(0, 10**6))
def test_a_parser_goes_where_its_tokens_lead(pattern, seed):
    """Consuming, refusing, taking back and forking leave a parser where its text is."""
    vocabulary, rng = bytes_vocabulary(), random.Random(seed)
    automaton = compile_regex(pattern, vocabulary)
    parser = AutomatonParser(automaton)
    taken: list[int] = []
    for _ in range(12):
        ids = np.flatnonzero(np.unpackbits(parser.allowed().view(np.uint8), bitorder="little"))
        token_id = rng.choice([*ids.tolist(), rng.randrange(vocabulary.size)])
        other = parser.fork()
        fits = parser.consume(token_id)
        assert fits == (token_id in ids)
        taken += [token_id] * fits
        if taken and rng.random() < 0.3:
            num_back = rng.randrange(len(taken) + 1)
            parser.rollback(num_back)
            del taken[len(taken) - num_back :]
        content = b"".join(vocabulary.text_pieces[one] for one in taken)
        assert parser.state == automaton.after(automaton.start, content)
        assert parser.forced() == automaton.forced(parser.state)
        assert parser.follow() == automaton.next_bytes(parser.state)
        assert parser.is_accepting == automaton.is_accepting(parser.state)
        assert parser.is_final == automaton.is_final(parser.state)
        assert other.consume(token_id) == fits


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_a_parser_refuses_ids_of_no_token(token_id):
    """Ids outside of the vocabulary, and tokens that are no text, do not fit."""
    vocabulary = bytes_vocabulary()
    parser = AutomatonParser(compile_regex(".*", vocabulary))
    assert not parser.consume(token_id)
    assert not parser.consume(vocabulary.eos_token_ids[0])
    assert not parser.consume(vocabulary.size - 1)


def test_more_tokens_than_were_consumed_cannot_be_taken_back():
    """The parser says so and stays where it is."""
    parser = AutomatonParser(compile_choices(["ab"], bytes_vocabulary()))
    assert parser.consume(ord("a"))
    with pytest.raises(Broken):
        parser.rollback(2)
    assert parser.forced() == b"b"
