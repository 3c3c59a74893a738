"""Tokens on their way out: never taken back, in order, with all of their text, told once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.core import Jump
from mmserve.engine.answer_tokens import AnswerToken, AnswerTokens

PIECES = {letter + 1: bytes((97 + letter,)) for letter in range(3)}
PIECES |= {10 + letter: bytes((97 + letter,)) * 2 for letter in range(3)}


def split(text: bytes, cuts: list[bool]) -> list[int]:
    """Tokens that spell a text: two equal letters are one token where a cut says so."""
    ids, at = [], 0
    for cut in cuts * len(text):
        if at >= len(text):
            break
        is_double = cut and text[at : at + 1] == text[at + 1 : at + 2]
        ids.append(text[at] - 97 + (10 if is_double else 1))
        at += 2 if is_double else 1
    return ids


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 3), min_size=1, max_size=4),
            st.text("abc", min_size=1, max_size=4),
            st.lists(st.booleans(), min_size=1, max_size=5),
            st.integers(0, 3),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_what_comes_out_is_the_answer(rounds, is_scored):
    """Whatever jumps replace, tokens and text come out whole, in order, and once."""
    tokens = AnswerTokens(PIECES.__getitem__, may_jump=True, is_scored=is_scored)
    answer: list[int] = []
    out: list[AnswerToken] = []
    told = b""
    settled = 0
    unscored: list[int] = []
    for drawn, forced, cuts, num_drawn in rounds:
        for position in unscored:
            tokens.score(position, -1.0, ())
        unscored = []
        for token_id in drawn[: num_drawn + 1]:
            tokens.draw(AnswerToken(token_id, PIECES[token_id], -2.0))
            answer.append(token_id)
            told += b"".join(text for _, text in tokens.tell())
            out += tokens.take()
        free = answer[settled:]
        new = split(b"".join(map(PIECES.__getitem__, free)) + forced.encode(), cuts)
        tokens.jump(Jump(len(free), (*new,)))
        answer[settled:] = new
        if is_scored:
            unscored = [*range(settled, len(answer))]
        settled = len(answer)
        told += b"".join(text for _, text in tokens.tell())
        out += tokens.take()
    for position in unscored:
        tokens.score(position, -1.0, ())
    told += b"".join(text for _, text in tokens.tell())
    out += tokens.take(is_last=True)
    assert [token.token_id for token in out] == answer
    assert told == b"".join(map(PIECES.__getitem__, answer))
    assert all(token.logprob is not None for token in out if is_scored or not token.is_forced)


def test_without_a_grammar_tokens_leave_at_once():
    """Tokens that no jump can replace do not wait."""
    tokens = AnswerTokens(PIECES.__getitem__, may_jump=False, is_scored=True)
    tokens.draw(AnswerToken(1, b"a", -1.0))
    assert [*tokens.tell()] == [(0, b"a")]
    assert [token.token_id for token in tokens.take()] == [1]


def test_drawn_tokens_wait_for_the_next_jump():
    """A token that a jump may still replace is told as text, and kept as a token."""
    tokens = AnswerTokens(PIECES.__getitem__, may_jump=True, is_scored=False)
    tokens.draw(AnswerToken(1, b"a"))
    assert [*tokens.tell()] == [(0, b"a")]
    assert tokens.take() == []
    tokens.jump(Jump(1, (10, 2)))
    assert [text for _, text in tokens.tell()] == [b"a", b"b"]
    assert [token.token_id for token in tokens.take()] == [10, 2]
