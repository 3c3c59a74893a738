"""Random patterns, texts that match them or nearly do, and an automaton said in full."""

from __future__ import annotations

import functools
import re
from importlib.resources import files

import numpy as np
from hypothesis import strategies as st

from mmserve.constrained.vocabulary import Vocabulary
from mmserve.prompt import load_tokenizer

ALPHABET = (
    'abcABkK\u017f019 _.-"\\\n\té\u0130ß\u0430\u042f日٣\u212a'
    "\U0001f600\u0301\x00\U00010400\U00010428"
)
LEAVES = [
    *(re.escape(one) for one in "ab1é日-"),
    *(".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\x41", r"\u0430", r"\n", r"\.", " "),
    *(
        "[a-c]",
        "[^a]",
        r"[\d_]",
        r"[^\W\d]",
        "[\u0410-\u044f]",
        r"[\x00-\u2e7f]",
        "[^\\x00-\\x7f]",
    ),
    *("[ak]", "[^k]", "[é日]", r"[\s.]", "[]a]", "[^]a]", "[a-]", "k", "K", "ß"),
    *("\u0130", "\u017f"),
    *(
        "[\U0001f600-\U0001f6ff]",
        "[\U00010400-\U00010450]",
        "[\U00010400x]",
        r"[^\"\\]",
        "ab",
        "aba",
        "",
    ),
]
COUNTS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{,2}", "{1,3}", "{2,}", "{0,2}?", "{3,4}"]
GROUPS = ["(?:%s)", "(%s)", "(?i:%s)", "(?s:%s)", "(?a:%s)", "(?is:%s)", "(?x: %s )"]
FLAGS = ["", "", "", "(?i)", "(?s)", "(?a)", "(?ai)", "(?m)", "(?x)"]
ENDS = [("", ""), ("", ""), ("^", "$"), ("\\A", "\\Z"), ("^", ""), ("", "$")]


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.tuples(inner, st.sampled_from(COUNTS)).map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(st.sampled_from(GROUPS), inner).map(lambda two: two[0] % two[1]),
    )


PATTERNS = (
    st.tuples(
        st.sampled_from(FLAGS),
        st.sampled_from(ENDS),
        st.recursive(st.sampled_from(LEAVES), _larger, max_leaves=7),
    )
    .map(lambda parts: f"{parts[0]}{parts[1][0]}{parts[2]}{parts[1][1]}")
    .filter(bool)
)


@functools.cache
def bytes_vocabulary() -> Vocabulary:
    """Each byte, some texts that cross borders of characters and patterns, and an end."""
    texts = ["ab", "aba", "a b", "1.", "éé", "日a", "  ", "\n\n", "Ab", '",', "0190", "kK"]
    halves = ["é".encode()[1:] + b"a", "日".encode()[:2], "a日".encode()[:2], b"\xff\xfe"]
    pieces = [bytes((one,)) for one in range(256)]
    pieces += [one.encode() for one in texts] + halves + [b"ab", b"</s>", b""]
    end = len(pieces) - 2
    return Vocabulary(pieces, eos_token_ids=[end], vocab_size=len(pieces) + 7)


@functools.cache
def tabletop_vocabulary() -> Vocabulary:
    """The 512 tokens of the model that ships with the package."""
    tokens = load_tokenizer(files("mmserve") / "assets" / "tabletop")
    return Vocabulary(
        tokens.pieces,
        eos_token_ids=[tokens.eos_token_id],
        vocab_size=tokens.vocab_size,
        special_ids=tokens.control_ids,
    )


def accepts(automaton, text: str) -> bool:
    """Whether the automaton takes the text and may end there."""
    state = automaton.after(automaton.start, text.encode())
    return state is not None and automaton.is_accepting(state)


def sample(automaton, rng, most=12):
    """A text that the automaton takes, of characters of the alphabet, or None."""
    state, text = automaton.start, ""
    for _ in range(most):
        if automaton.is_accepting(state) and rng.random() < 0.3:
            return text
        ways = [
            (one, goal)
            for one in ALPHABET
            if (goal := automaton.after(state, one.encode())) is not None
        ]
        if not ways:
            break
        character, state = rng.choice(ways)
        text += character
    return text if automaton.is_accepting(state) else None


def changed(text, rng):
    """The text with one character more, less, or other."""
    place, one = rng.randrange(len(text) + 1), rng.choice(ALPHABET)
    return rng.choice(
        [
            text[:place] + one + text[place:],
            text[:place] + text[place + 1 :],
            text[:place] + one + text[place + 1 :],
        ]
    )


def all_states(automaton, most=10**6):
    """Every state that is reached byte by byte, with the state after each byte."""
    found = {automaton.start: {}}
    todo = [automaton.start]
    for state in todo:
        for byte in automaton.next_bytes(state):
            goal = automaton.after(state, bytes((byte,)))
            found[state][byte] = goal
            if goal not in found and len(found) < most:
                found[goal] = {}
                todo.append(goal)
    return found


def mask_by_hand(automaton, state):
    """The mask by trying each token."""
    vocabulary = automaton.vocabulary
    return vocabulary.mask(
        number
        for number, piece in enumerate(vocabulary.text_pieces)
        if piece and automaton.after(state, piece) is not None
    )


def same(one, two) -> bool:
    """Whether two masks are bit for bit the same."""
    return one.dtype == two.dtype and bool(np.array_equal(one, two))
