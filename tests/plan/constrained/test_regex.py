"""Regex and choices: what they mean, and what is refused."""

import json
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.constrained.sampling import draw, matcher

from mmserve.constrained.regex_syntax import translate_search, write_tree
from mmserve.constrained.regex_tree import read_pattern
from mmserve.core import ConstraintRefused

HONOURED = [
    "^abc$",
    "(?i)abc",
    "(?i)[^k]x?",
    "(?i:straße|k)",
    r"[\x00-\u2e7f]{1,4}",
    ".{2}",
    "(?s).{2}",
    "a|",
    "a|abc|ab",
    "[\u0430-\u044f]{3}",
    r"\d{2}\s\w\D\S\W",
    r"(?a)\d\w",
    r"[^\d\s]{2}",
    r"(?:ab?)*c{,2}",
    "a*?b+?",
    "(?P<x>a)b",
    "^a|b$",
    "(^a|^b)c",
    "(?x) a b # c",
    r"\Aab\Z",
    r"[[&~]a",
    r"\{\"x\": \"[ABCD][+-]?\"\}",
    r"[-+]?[0-9]*\.?[0-9]+[ \n]*",
    r"\"[\w\d\s]*\"",
    "(True|False)",
    "日本語|\U0001f469‍\U0001f466|e\u0301",
    r"[\w\d\s.]{1,80}",
]


@pytest.mark.parametrize("pattern", HONOURED)
def test_answers_match_the_whole_pattern(pattern):
    """Whatever is drawn and ends is what re.fullmatch accepts."""
    ended = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        compiled = re.compile(pattern)
    for seed in range(4):
        text, is_end = draw(matcher("regex", pattern), seed)
        ended += is_end
        assert not is_end or compiled.fullmatch(text), text
    assert ended


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("[a-", 0),
        ("(", 0),
        ("*a", 0),
        ("a{3,1}", 2),
        ("", 0),
        ("(?=a)a", 0),
        ("x(?<!a)b", 1),
        (r"(a)\1", 3),
        (r"(?P<x>a)(?P=x)", 8),
        (r"\bword\b", 0),
        (r"\p{L}+", 0),
        ("(a)?(?(1)b|c)", 4),
        ("a(?>b)", 1),
        ("[](?=]x(?=a)", 7),
        (r"[^]\](?=]\(?=(?!a)", 13),
        ("a*+", 1),
        ("a^b", 1),
        ("a$b", 1),
        ("(?:^a)*", 3),
        ("(a{1000}){1000}", 0),
        ("a{99999999999}", 0),
        (r"[^\x00-\U0010ffff]", 0),
        ("(" * 5000 + ")" * 5000, 100),
        ("a" * 40_000, 0),
        ("\ud83d", 0),
    ],
)
def test_what_no_automaton_does_is_refused(pattern, position):
    """Broken and unenforceable patterns are refused at their position."""
    with pytest.raises(ConstraintRefused) as caught:
        matcher("regex", pattern)
    assert position == caught.value.fields["position"]
    assert caught.value.param == "regex"
    assert len(str(caught.value)) < 300


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "é",
        "[a-c]",
        "[^a]",
        ".",
        r"\d",
        r"\w",
        "a?",
        "b*",
        "(a|bé)",
        "(?:ab){1,2}",
        "|",
    ]
)


@settings(deadline=None, max_examples=60)
@given(pattern=st.lists(PIECES, min_size=1, max_size=5).map("".join), seed=st.integers(0, 9))
def test_any_pattern_of_simple_pieces_is_kept(pattern, seed):
    """Random patterns: every end that the mask allows is a full match."""
    text, is_end = draw(matcher("regex", pattern, "bytes"), seed, max_tokens=40, name="bytes")
    assert not is_end or re.fullmatch(pattern, text)


@settings(deadline=None, max_examples=30)
@given(
    pattern=st.lists(PIECES, min_size=1, max_size=4).map("".join),
    text=st.text("abcé1", max_size=5),
)
def test_rewritten_pattern_means_the_same(pattern, text):
    """The pattern written anew accepts the same texts."""
    written = re.sub(
        r"\\x\{([0-9a-f]+)\}",
        lambda hit: rf"\U{int(hit[1], 16):08x}",
        write_tree(read_pattern(pattern)),
    )
    assert bool(re.fullmatch(pattern, text)) == bool(re.fullmatch(written, text))


@settings(deadline=None, max_examples=30)
@given(
    pattern=st.tuples(
        st.sampled_from(["", "^"]),
        st.lists(PIECES, max_size=3).map("".join),
        st.sampled_from(["", "$"]),
    ).map("".join),
    text=st.text("abcé1", max_size=5),
)
def test_search_pattern_finds_what_search_finds(pattern, text):
    """A schema's pattern, rewritten for whole strings, accepts what ASCII re.search does."""
    written = re.sub(
        r"\\x\{([0-9a-f]+)\}",
        lambda hit: rf"\U{int(hit[1], 16):08x}",
        translate_search(pattern),
    )
    assert bool(re.search(pattern, text, re.ASCII)) == bool(
        re.fullmatch(f"(?:{written})", text)
    )


@pytest.mark.parametrize(
    "options",
    [
        ["yes", "no"],
        ["北京", "東京"],
        ["a", "ab", "abc"],
        ["", "x"],
        [" leading", "a\n"],
        ["a", "a"],
    ],
)
def test_answers_are_choices(options):
    """Every answer is one of the options, and every option is found."""
    found = {draw(matcher("choices", options), seed)[0] for seed in range(40)}
    assert {*options} == found


@pytest.mark.parametrize("value", ["[]", "", "5", '["a", 1]', '{"a": "b"}', r'["\ud83d"]'])
def test_unusable_choices_are_refused(value):
    """Choices must be a JSON list of at least one text."""
    with pytest.raises(ConstraintRefused) as caught:
        matcher("choices", value)
    assert caught.value.param == "choices"


def test_many_choices():
    """A thousand options compile and are told apart."""
    options = [f"option {number} of the list" for number in range(1000)]
    assert draw(matcher("choices", json.dumps(options)))[0] in options
