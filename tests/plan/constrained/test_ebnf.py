"""Grammars mean what their notation says, and none is too deep for the library."""

from __future__ import annotations

import pytest

from mmserve.constrained import GrammarCompiler
from mmserve.core import Constraint, ConstraintRefused

END = 256
COMPILER = GrammarCompiler(
    [*(bytes([byte]) for byte in range(256)), b""],
    eos_token_ids=[END],
    vocab_size=257,
    encode=lambda text: list(text.encode()),
)


def first_bytes(grammar: str) -> set[str]:
    """The ASCII characters that an answer may begin with."""
    words = COMPILER.compile(Constraint("ebnf", grammar))().allowed()
    bits = int.from_bytes(words.tobytes(), "little")
    return {chr(byte) for byte in range(128) if bits >> byte & 1}


def accepts(grammar: str, text: str) -> bool:
    """Whether the text is a whole answer."""
    matcher = COMPILER.compile(Constraint("ebnf", grammar))()
    for token_id in (*text.encode(), END):
        bits = int.from_bytes(matcher.allowed().tobytes(), "little")
        if not bits >> token_id & 1:
            return False
        matcher.accept(token_id)
    return True


def refusal(grammar: str) -> ConstraintRefused:
    """How it is refused."""
    with pytest.raises(ConstraintRefused) as caught:
        COMPILER.compile(Constraint("ebnf", grammar))
    assert caught.value.fields["field"] == "ebnf"
    return caught.value


CLASSES = [
    ("[a-c&&b]", "abc&"),
    ("[+--/]", "+,-/"),
    ("[a~~b]", "ab~"),
    ("[[a]", "[a"),
    (r"[\]\\a]", "]\\a"),
    ("[ab-]", "ab-"),
    ("[-ab]", "-ab"),
    ("[a^]", "a^"),
    ("[/#\"']", "/#\"'"),
    (r"[\x41\u0042]", "AB"),
    (r"[\\w]", "\\w"),
    (r"[\t\n]", "\t\n"),
]


@pytest.mark.parametrize(("written", "characters"), CLASSES)
def test_a_class_holds_what_it_lists(written: str, characters: str) -> None:
    """No character of it has the meaning that it has in regular expressions, negated or not."""
    everything = {chr(byte) for byte in range(128)}
    assert first_bytes(f"root ::= {written}") == set(characters)
    negated = written.replace("[", "[^", 1)
    assert first_bytes(f"root ::= {negated}") == everything - set(characters)


TEXTS = [
    (r'root ::= "\u0041\x42\U00000043"', "ABC"),
    (r'root ::= "\u00e9\U0001F600"', "é😀"),
    (r"root ::= [\u0430-\u044f]{3}", "где"),
    (r'root ::= "\"\\\n"', '"\\\n'),
    ('root ::= "# no comment [ ::= "', "# no comment [ ::= "),
    ('root ::= "a" # a comment "\n  \n# one more\n', "a"),
    ("\n" * 200_000 + ' root ::=\n \n\t"a" \n' + " \n" * 200_000, "a"),
    ("\n" * 200_000 + ' start: "a" \n' + " \n" * 200_000, "a"),
    ('root ::= start\nstart ::= "a"', "a"),
    ('root ::= one-two\none-two ::= "(" ("a" | "b")+ ")"', "(ab)"),
]


@pytest.mark.parametrize(("grammar", "text"), TEXTS, ids=range(len(TEXTS)))
def test_texts_are_as_they_are_spelt(grammar: str, text: str) -> None:
    """Escapes, comments and names are read as in GBNF."""
    assert accepts(grammar, text)
    assert not accepts(grammar, text + "x")


BROKEN = [
    ('root ::= "a"\nroot ::= "b"', "twice", 13),
    ("root ::= []", "without characters", 9),
    ("root ::= [z-a]", "ends before it begins", 10),
    ('root ::= "a', "does not end", 9),
    ("root ::= [a", "does not end", 9),
    (r'root ::= "\q"', "bad escape", 10),
    (r'root ::= "\u12"', "bad escape", 10),
    (r'root ::= "\ud800"', "no character", 10),
    (r"root ::= [\U00110000]", "no character", 10),
]


@pytest.mark.parametrize(("grammar", "words", "position"), BROKEN)
def test_what_is_broken_is_refused_by_position(grammar: str, words: str, position: int) -> None:
    """Message and field tell the character."""
    error = refusal(grammar)
    assert words in error.message
    assert error.fields["position"] == position


def chain(num_rules: int, *, is_lark: bool, body: str = "{}") -> str:
    """Rules of which each refers to the next."""
    sign, first = (":", "start") if is_lark else (" ::=", "root")
    rules = [f"{first}{sign} r0"]
    rules += [f"r{one}{sign} " + body.format(f"r{one + 1}") for one in range(num_rules)]
    return "\n".join([*rules, f'r{num_rules}{sign} "a"'])


@pytest.mark.parametrize("is_lark", [False, True])
@pytest.mark.parametrize("body", ["{}", '("x" {} "y")*'])
def test_deep_grammars_are_refused_and_long_ones_served(body: str, is_lark: bool) -> None:
    """Thousands of rules in a chain would exhaust the library's stack."""
    assert first_bytes(chain(400, is_lark=is_lark, body=body)) in ({"a"}, {"x"})
    assert refusal(chain(20_000, is_lark=is_lark, body=body)).fields["reason"] == "too_large"


def test_groups_may_not_be_nested_too_deeply() -> None:
    """A hundred are read."""
    assert accepts("root ::= " + "(" * 100 + '"a"' + ")" * 100, "a")
    error = refusal("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000)
    assert "100 groups" in error.message


def test_few_terminals_may_be_joined() -> None:
    """The library's work doubles with each, so that twenty would take all memory."""
    terms = [f"/.*[a-z]x{one}.*/" for one in range(20)]
    assert accepts("start: A\nA: /[a-z]+/ & /.*x/", "ax")
    assert "&" in refusal("start: A\nA: " + " & ".join(terms)).message


def test_a_schema_inside_a_grammar_is_refused() -> None:
    """The library would read it with blanks without end, and enforce less of it."""
    assert "%json" in refusal('start: "a" %json {"type": "null"}').message
