"""Patterns that would take for ever: within counted limits, or refused by the limit's name."""

from __future__ import annotations

import random
import re
import tracemalloc

import pytest
from plan.constrained.automaton.patterns import accepts, bytes_vocabulary

from mmserve.constrained.automaton import compile_regex
from mmserve.constrained.charsets import category
from mmserve.core import ConstraintRefused


def han(number, count):
    """Random characters of a large alphabet."""
    rng = random.Random(number)
    return "".join(chr(0x4E00 + rng.randrange(20_000)) for _ in range(count))


COMPILED = [
    ("(a|aa)+$", "a" * 50, 2),
    ("(a+)+$", "a" * 50, 2),
    ("(x+x+)+y", "xxxxy", 4),
    ("(.*a){30}", "ba" * 30, 31),
    ("(a?){500}a{500}", "a" * 700, 1001),
    ("(a?){5000}", "a" * 5000, 5001),
    (".*.{300}", "b" * 300, 301),
    ("((a*b*)*c*)*", "abcab", 1),
    ("[ab]*a[ab]{11}", "a" * 12, 4096),
    (r"[\w\s]{1,5000}", "a b" * 100, 5001),
    (r"(?:\w{1,500},)*", "ab,c,", 501),
    ("a{20000}", "a" * 20_000, 20_001),
    ("[" + "".join(chr(0x4E00 + 2 * k) for k in range(10_000)) + "]{1,50}", "\u4e00\u4e02", 51),
    (han(1, 1000), han(1, 1000), 1001),
    ("(" * 100 + "a" + "|b)*" * 100, "abba", 1),
    ("|".join(f"word{k}x" for k in range(2000)), "word1999x", None),
]


@pytest.mark.parametrize(("pattern", "text", "num_states"), COMPILED)
def test_hard_patterns_that_are_small_compile(pattern, text, num_states):
    """What looks explosive but has a small automaton gets it."""
    automaton = compile_regex(pattern, bytes_vocabulary())
    assert num_states in (None, automaton.machine.num_states)
    assert accepts(automaton, text)
    assert not accepts(automaton, f"{text}\n!")


REFUSED = [
    ("(a{1,1000}){1,1000}", "20000 characters"),
    ("a" * 30_000, "20000 characters"),
    ("a" * 33_000, "limit 32768"),
    ("(" * 101 + ")" * 101, "limit 100 groups"),
    ("(" * 5000 + "a" + ")" * 5000, "limit 100 groups"),
    (r"(?:(?:\w{1,9}){1,9}){1,999}", "20000 characters"),
    ("".join(chr(97 + k % 26) + "?" for k in range(3000)), "300,000 links"),
    (".{0,100}" * 100, "300,000 links"),
    ("[ab]*a[ab]{20}", "24,000 states"),
    ("(a?){5000}a{5000}", "1,000,000 steps"),
    ("([ab]{1,50}|[bc]{1,60}|[cd]{1,70}){1,20}", "1,000,000 steps"),
    ("".join(f"[^{chr(0x4E00 + k)}]" for k in range(2000)), "500,000 pairs of a class"),
    ("".join(rf"[\w{chr(0x2190 + k)}]" for k in range(700)), "500,000 pairs of a class"),
    (han(2, 15_000), "8,192 kinds"),
    (han(3, 3000), "3,000,000 pairs of a state"),
    ("(?i)" + "".join(f"[A-{chr(0x100 + k)}]" for k in range(3000)), "limit 1000"),
    ("(?i)" + "".join(f"[{chr(97 + k)}-\uffff]" for k in range(500)), "limit 1000"),
]


@pytest.mark.parametrize(("pattern", "limit"), REFUSED)
def test_what_is_too_large_is_refused(pattern, limit):
    """The refusal names the limit, and is the same each time."""
    with pytest.raises(ConstraintRefused) as caught:
        compile_regex(pattern, bytes_vocabulary())
    assert caught.value.fields["reason"] == "too_large"
    assert caught.value.fields["field"] == "regex"
    assert limit in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "pattern",
    [
        "".join(rf"[\w{chr(0x2190 + k)}]" for k in range(200)),
        "".join(chr(97 + k % 26) + "?" for k in range(700)),
        "(a?){5000}a{5000}",
        "[ab]*a[ab]{20}",
        han(3, 3000),
    ],
)
def test_no_pattern_takes_more_than_50_mb(pattern):
    """The most memory held at once, compiled or refused, is below 50 MB."""
    bytes_vocabulary()
    category("w", is_ascii=False)
    tracemalloc.start()
    try:
        compile_regex(pattern, bytes_vocabulary())
    except ConstraintRefused:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 50 << 20


def test_random_texts_of_many_words():
    """An alternation of many words takes each of them and nothing near."""
    rng = random.Random(5)
    words = {"".join(rng.choice("abcde") for _ in range(6)) for _ in range(1500)}
    automaton = compile_regex("|".join(sorted(words)), bytes_vocabulary())
    compiled = re.compile("|".join(sorted(words)))
    for _ in range(1500):
        text = "".join(rng.choice("abcde") for _ in range(6))
        assert accepts(automaton, text) == bool(compiled.fullmatch(text))
