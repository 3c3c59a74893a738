"""Tokens to text that can no longer change."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.prompt.vocabularies import NAMED, VOCABULARIES

from mmserve.constrained import compile_stops
from mmserve.prompt import Detokenizer, Tokenizer
from mmserve.testing.byte_tokenizer import byte_tokenizer

BYTES = byte_tokenizer()
OURS = {name: Tokenizer(make(), special_tokens=NAMED) for name, make in VOCABULARIES.items()}


def stream(detokenizer, token_ids):
    """Pieces as they come, the last one from flush."""
    return [*(detokenizer.push(one) for one in token_ids), detokenizer.flush()]


def cut_by_hand(text, stops):
    """The text up to the stop that is complete first, found character by character."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], max(done, key=len)
    return text, None


@settings(deadline=None, max_examples=200)
@given(content=st.binary(max_size=12), stops=st.lists(st.text("abé", min_size=1, max_size=3)))
def test_joined_pieces_are_the_whole_text(content, stops):
    """For any bytes and stop texts the joined stream is the text cut at the first stop."""
    detokenizer = Detokenizer(BYTES, stops)
    pieces = stream(detokenizer, content)
    expected = cut_by_hand(content.decode(errors="replace"), stops)
    assert expected == ("".join(pieces), detokenizer.match)


@settings(deadline=None, max_examples=200)
@given(
    text=st.text("ab c", max_size=12),
    stops=st.lists(st.text("ab c", min_size=1, max_size=4), max_size=3),
)
def test_stops_are_found_wherever_they_lie(text, stops):
    """Stop texts across tokens are found, and no piece holds text beyond one."""
    detokenizer = Detokenizer(OURS["byte_level"], stops)
    pieces = stream(detokenizer, OURS["byte_level"].encode_plain(text))
    assert cut_by_hand(text, stops) == ("".join(pieces), detokenizer.match)


def test_match_comes_with_the_token_that_completes_it():
    """The match is known at the very token, so later tokens need not be made."""
    detokenizer = Detokenizer(BYTES, ["END"])
    pieces = [detokenizer.push(one) for one in b"xEN"]
    assert (pieces, detokenizer.match) == (["x", "", ""], None)
    assert (detokenizer.push(ord("D")), detokenizer.match) == ("", "END")


def test_no_piece_holds_half_a_character():
    """Bytes of one character wait for each other."""
    text = "日\U0001f469‍e\u0301"
    pieces = stream(Detokenizer(BYTES), text.encode())
    assert text == "".join(pieces)
    assert "�" not in "".join(pieces[:-1])
    assert pieces[:3] == ["", "", "日"]


def test_half_a_character_at_the_end_is_marked():
    """What is no character at the end becomes U+FFFD, and not before."""
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(one) for one in "日".encode()[:2]] == ["", ""]
    assert detokenizer.flush() == "�"


def test_stop_text_is_kept_if_asked():
    """no_stop_trim leaves the stop text in the answer."""
    detokenizer = Detokenizer(BYTES, ["b"], no_stop_trim=True)
    assert stream(detokenizer, b"abc") == ["a", "b", "", ""]


def test_stop_complete_before_the_minimum_does_not_count():
    """Stops complete while stopping is not allowed are text; later ones end the answer."""
    detokenizer = Detokenizer(BYTES, ["b"])
    pieces = [detokenizer.push(one, may_stop=order > 1) for order, one in enumerate(b"abab")]
    assert (pieces, detokenizer.match) == (["a", "b", "a", ""], "b")


@pytest.mark.parametrize(("skip", "expected"), [(True, "ab"), (False, "a<|end|>b")])
def test_special_tokens_follow_the_setting(skip, expected):
    """Control tokens are shown only if asked."""
    ids = BYTES.encode_template("a<|end|>b")
    assert expected == "".join(stream(Detokenizer(BYTES, skip_special_tokens=skip), ids))


@pytest.mark.parametrize("name", ["byte_level", "metaspace", "legacy"])
@pytest.mark.parametrize("text", [" leading", "  two", "a  b", "word word", "\n x"])
def test_blanks_survive_streaming(name, text):
    """Leading and double blanks of an answer are released byte for byte."""
    tokenizer = OURS[name]
    ids = [one for one in range(tokenizer.vocab_size) if len(tokenizer.piece(one)) == 1]
    by_byte = {tokenizer.piece(one): one for one in ids}
    tokens = [by_byte[bytes([byte])] for byte in text.encode()]
    assert text == "".join(stream(Detokenizer(tokenizer), tokens)) == tokenizer.decode(tokens)


def cut_at_patterns(text, patterns, stops):
    """The text up to the stop or match complete first, found character by character."""
    for end in range(1, len(text) + 1):
        starts = [
            (start, pattern)
            for pattern in patterns
            for start in range(end)
            if re.compile(pattern).fullmatch(text[:end], start)
        ]
        starts += [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            start, name = min(starts)
            return text[:start], name
    return text, None


@settings(deadline=None, max_examples=200)
@given(
    text=st.text("ab c.", max_size=14),
    pattern=st.sampled_from(["a+b", r"[.c]\s*$", "b.*c", "^ab|cc", "a{2,3}|c b"]),
    stops=st.lists(st.text("ab c", min_size=1, max_size=3), max_size=2),
)
def test_patterns_end_the_text_like_stop_texts(text, pattern, stops):
    """Joined pieces are the text up to the first stop or match, wherever tokens end."""
    search = compile_stops([pattern]).search()
    detokenizer = Detokenizer(OURS["byte_level"], stops, search=search)
    pieces = stream(detokenizer, OURS["byte_level"].encode_plain(text))
    assert cut_at_patterns(text, [pattern], stops) == ("".join(pieces), detokenizer.match)


def test_text_before_a_match_in_progress_is_released():
    """Only what a match may begin with is held back, and released once it cannot."""
    detokenizer = Detokenizer(BYTES, search=compile_stops(["and|or"]).search())
    assert stream(detokenizer, b"an ox and") == ["", "", "an ", "", "ox", " ", "", "", "", ""]
    assert detokenizer.match == "and|or"


def test_a_match_before_the_least_number_of_tokens_does_not_count():
    """With `may_stop` False a pattern complete now is text."""
    detokenizer = Detokenizer(BYTES, search=compile_stops(["b"]).search())
    pieces = [detokenizer.push(ord("b"), may_stop=False), detokenizer.push(ord("b"))]
    assert ("".join(pieces), detokenizer.match) == ("b", "b")
