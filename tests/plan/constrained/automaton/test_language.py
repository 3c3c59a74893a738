"""Which texts an automaton takes: those of `re.fullmatch`, and those llguidance takes."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from plan.constrained.automaton.patterns import (
    ALPHABET,
    PATTERNS,
    accepts,
    all_states,
    bytes_vocabulary,
    changed,
    sample,
)

from mmserve.constrained.automaton import byte_table, compile_regex
from mmserve.constrained.regex_syntax import write_tree
from mmserve.constrained.regex_tree import read_pattern
from mmserve.core import ConstraintRefused

pytestmark = pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")


def texts_near(automaton, rng, num_turns):
    """Texts of the pattern, texts that differ by a character, and random ones."""
    for _ in range(num_turns):
        yield "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(4)))
        text = sample(automaton, rng)
        if text is not None:
            yield from (text, changed(text, rng), changed(text, rng))


@settings(max_examples=400)
@given(pattern=PATTERNS, seed=st.integers(0, 10**6))
def test_takes_what_fullmatch_takes(pattern, seed):
    """On dozens of texts for each random pattern, the automaton and Python's `re` agree."""
    automaton = compile_regex(pattern, bytes_vocabulary())
    compiled = re.compile(pattern)
    for text in texts_near(automaton, random.Random(seed), 8):
        assert accepts(automaton, text) == bool(compiled.fullmatch(text)), text


class _Bytes(TokenizerWrapper):
    """A byte for each token, and an end."""

    def __init__(self):
        self.is_tokenizer_wrapper = True
        self.bos_token_id, self.eos_token_id = None, 256
        self.special_token_ids = [256]
        self.tokens = [*(bytes((one,)) for one in range(256)), b"\xff<end>"]

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


@pytest.fixture(scope="module")
def outside():
    """Llguidance over single bytes."""
    return LLTokenizer(_Bytes(), n_vocab=257, eos_token=256)


@settings(max_examples=150)
@given(pattern=PATTERNS, seed=st.integers(0, 10**6))
def test_takes_what_llguidance_takes(outside, pattern, seed):
    """Llguidance on the translated pattern takes the same texts, and stops at the same byte."""
    automaton = compile_regex(pattern, bytes_vocabulary())
    grammar = LLMatcher.grammar_from_regex(write_tree(read_pattern(pattern)))
    matcher = LLMatcher(outside, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    for text in texts_near(automaton, random.Random(seed), 4):
        content = text.encode()
        num_taken = next(
            (
                length
                for length in range(len(content), 0, -1)
                if automaton.after(0, content[:length]) is not None
            ),
            0,
        )
        other = matcher.deep_copy()
        assert other.validate_tokens(list(content)) == num_taken
        other.consume_tokens(list(content[:num_taken]))
        state = automaton.after(automaton.start, content[:num_taken])
        assert other.is_accepting() == automaton.is_accepting(state)


def num_distinct(table, is_end):
    """How many states texts can tell apart, by refining all states until nothing changes."""
    block = np.unique(is_end, return_inverse=True)[1]
    while True:
        ahead = np.append(block, -1)[table]
        rows = np.concatenate((block[:, None], ahead), axis=1)
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        if finer.max() == block.max():
            return int(finer.max()) + 1
        block = finer.ravel()


@settings(max_examples=80)
@given(pattern=PATTERNS)
def test_is_minimal(pattern):
    """No two states of the table over bytes are alike, and the text can end from each."""
    found = byte_table(compile_regex(pattern, bytes_vocabulary()))
    assert num_distinct(found.table, found.is_end) == found.num_states
    alive, num_alive = found.is_end, 0
    while alive.sum() > num_alive:
        num_alive = alive.sum()
        alive = alive | (alive[found.table] & (found.table >= 0)).any(axis=1)
    assert alive.all()


@settings(max_examples=80)
@given(pattern=PATTERNS)
def test_next_bytes_forced_bytes_and_ends(pattern):
    """What may and what must come, in every state, are what trying all bytes finds."""
    automaton = compile_regex(pattern, bytes_vocabulary())
    states = all_states(automaton, most=200)
    for state, ways in states.items():
        tried = [b for b in range(256) if automaton.after(state, bytes((b,))) is not None]
        assert tried == list(automaton.next_bytes(state))
        is_last = automaton.is_accepting(state) and not tried
        assert automaton.is_final(state) == is_last
        forced, place = b"", state
        while len(automaton.next_bytes(place)) == 1 and not automaton.is_accepting(place):
            forced += automaton.next_bytes(place)
            place = automaton.after(place, forced[-1:])
        assert automaton.forced(state) == forced[:1024]
        assert ways.keys() <= set(tried)


def test_forced_text_is_bounded():
    """Of a long forced text the next 1,024 bytes are known, and no more at a time."""
    automaton = compile_regex("x{5000}", bytes_vocabulary())
    assert automaton.forced(automaton.start) == b"x" * 1024


def test_half_characters():
    """Bytes that all ways share are forced even inside of a character."""
    automaton = compile_regex("[\u0430-\u043f]!", bytes_vocabulary())
    assert automaton.forced(automaton.start) == b"\xd0"
    inside = automaton.after(automaton.start, b"\xd0")
    assert automaton.next_bytes(inside) == bytes(range(0xB0, 0xC0))
    assert automaton.forced(automaton.after(inside, b"\xb0")) == b"!"
    assert automaton.after(automaton.start, b"\xd1") is None


@pytest.mark.parametrize(
    "piece", [b"\xed\xa0\x80", b"\xc0\x80", b"\xe0\x80", b"\xf4\x90", b"\xff"]
)
def test_bytes_of_no_character_never_fit(piece):
    """Surrogates, overlong forms and codes past the last are not taken for any character."""
    automaton = compile_regex(r"[\x00-\U0010ffff]*", bytes_vocabulary())
    assert automaton.after(automaton.start, piece) is None


@pytest.mark.parametrize(
    ("pattern", "num_states"),
    [
        ("abc", 4),
        ("(a|aa)+$", 2),
        ("(x+x+)+y", 4),
        ("(?:cat|bat|rat)s?", 5),
        ("(a?){500}a{500}", 1001),
        ("[\u0430-\u044f]{2}", 7),
        (".", 9),
        ("", None),
    ],
)
def test_number_of_states(pattern, num_states):
    """Known patterns have as few states over bytes as there can be."""
    if num_states is None:
        with pytest.raises(ConstraintRefused):
            compile_regex(pattern, bytes_vocabulary())
        return
    assert byte_table(compile_regex(pattern, bytes_vocabulary())).num_states == num_states


def test_chains_are_compressed():
    """States with a single way on vanish into edges; with several bytes on it they stay."""
    found = byte_table(compile_regex('{"a": "[xyz]", "b": "[xy]"}', bytes_vocabulary()))
    assert (found.num_states, found.num_edges) == (21, 20)
    assert found.num_kept == (4, 3)


def test_large_automata_are_not_said_in_full():
    """Past the number of states asked for there is no table."""
    assert byte_table(compile_regex("a{50}", bytes_vocabulary()), max_states=50) is None


def test_edges_for_drawings():
    """From state to state along edges, all of an answer's text is told in words."""
    automaton = compile_regex(r'\{"grade": "[A-D][+-]?"\}', bytes_vocabulary())
    told, state = [], automaton.start
    while not automaton.is_final(state):
        edges = automaton.edges(state)
        told.append([edge.label for edge in edges])
        state = edges[0].target
    assert told == [['"{"grade": ""'], ["[A-D]"], ['"""', "[+-]"], ['"}"']]
