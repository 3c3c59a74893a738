"""Answers that begin inside the prompt's last token."""

import random
import re

import pytest
from plan.constrained.sampling import allowed_ids, compiler, take_jump, tokenizer

from mmserve.core import Constraint

SCHEMA = """{"type": "object", "properties": {"the cube": {"type": "boolean"}},
"required": ["the cube"], "additionalProperties": false}"""


def healed(prefix, kind=None, value=""):
    """A matcher for a prefix and an answer behind it."""
    constraint = None if kind is None else Constraint(kind, value)
    return compiler().healing(constraint, prefix.encode())()


def spelt(token_id):
    """Bytes of a token."""
    return tokenizer().piece(token_id)


@pytest.mark.parametrize("prefix", ["t", "th", " re", " ", "How", "日", "zq"])
def test_first_token_begins_the_prefix_or_goes_on_behind_it(prefix):
    """Without a constraint every token that fits the prefix may come first, and no other."""
    tokens = tokenizer()
    want = prefix.encode()
    expected = {
        one
        for one in range(tokens.vocab_size)
        if one not in tokens.control_ids
        and spelt(one)
        and (spelt(one).startswith(want) or want.startswith(spelt(one)))
    }
    assert {*allowed_ids(healed(prefix))} == expected


@pytest.mark.parametrize(
    ("prefix", "kind", "value", "pattern"),
    [
        ("th", "regex", "e (red|blue) cubes?", "the (red|blue) cubes?"),
        (" r", "choices", '["ed cube", "ed", "ound"]', " r(ed cube|ed|ound)"),
        ("{", "regex", '"a": [0-9]{1,3}}', '{"a": [0-9]{1,3}}'),
        (" the", "json_schema", SCHEMA, r' the\{"the cube":(true|false)\}'),
    ],
)
def test_prefix_and_answer_together_fit(prefix, kind, value, pattern):
    """Whatever is drawn, prefix and constrained answer stand behind each other."""
    tokens = tokenizer()
    texts = set()
    for seed in range(60):
        rng = random.Random(seed)
        made = healed(prefix, kind, value)
        content: list[int] = []
        while not made.is_finished:
            if rng.random() < 0.5:
                take_jump(made, content)
            if made.is_finished:
                break
            token_id = rng.choice(allowed_ids(made))
            if token_id == tokens.eos_token_id:
                break
            made.accept(token_id)
            content.append(token_id)
        texts.add(tokens.decode(content))
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(texts) > 1


def test_tokens_that_cross_the_border_are_found():
    """A token of which the prefix is only the beginning may come, and goes back as one."""
    made = healed(" cu", "regex", "bes red|t")
    token_id = tokenizer().encode_plain(" cubes")[0]
    assert spelt(token_id) == b" cubes"
    before = allowed_ids(made)
    assert token_id in before
    made.accept(token_id)
    assert {spelt(one)[:1] for one in allowed_ids(made)} == {b" "}
    made.rollback(1)
    assert allowed_ids(made) == before


def test_an_answer_may_end_only_behind_the_prefix():
    """The end of the answer is not allowed while some of the prefix is left."""
    end = tokenizer().eos_token_id
    made = healed("zq")
    assert end not in allowed_ids(made)
    for token_id in tokenizer().encode_plain("zq"):
        made.accept(token_id)
    assert end in allowed_ids(made)
    assert not made.is_finished
