"""Jumps: canonical tokens for the whole answer, nothing that may still change, nothing lost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan.constrained.sampling import allowed_ids, matcher, take_jump, tokenizer

from mmserve.constrained.jump import whole_characters
from mmserve.core import Jump

RECORD = (
    r'\{"name": "[\w ]{1,12}", "house": "(Gryffindor|Slytherin)", "age": [0-9]{1,2},'
    r' "wand": \{"wood": "[a-z ]{0,8}", "tags": \[("[^"]{0,5}", ){0,2}"end"\]\},'
    r' "né": "(日本|дом)"\}'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["big cat", "big dog", "bird", "日本語"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "inner": {
            "type": "object",
            "properties": {"flag": {"type": "boolean"}, "note": {"const": 'a "b" \\ c'}},
            "required": ["flag", "note"],
            "additionalProperties": False,
        },
    },
    "required": ["title", "kind", "sizes", "inner"],
    "additionalProperties": False,
}
CHOICES = ["the red cube", "the red cubes", "the table", "a table of cubes", "wooden"]


def answer(made, tokens, rng, *, max_tokens=400):
    """Random tokens with every jump taken; the tokens after each jump, and at the end."""
    content: list[int] = []
    seen: list[tuple[list[int], bool]] = []
    while len(content) < max_tokens:
        jump = take_jump(made, content)
        if jump is not None:
            seen.append((list(content), jump.is_end))
        if made.is_finished:
            break
        token_id = rng.choice(allowed_ids(made))
        if token_id == tokens.eos_token_id:
            break
        made.accept(token_id)
        content.append(token_id)
    return seen, content


def check(kind, value, name, seed):
    """Count jumps of one answer; each leaves canonical tokens."""
    tokens = tokenizer(name)
    seen, content = answer(matcher(kind, value, name), tokens, random.Random(seed))
    previous: list[int] = []
    for after, is_end in seen:
        text = b"".join(map(tokens.piece, after)).decode()
        assert after == tokens.encode_inside(text)
        assert after[: len(previous)] == previous
        assert not is_end or after == content
        previous = after
    return len(seen)


@pytest.mark.parametrize("kind", ["regex", "json_schema", "choices"])
@pytest.mark.parametrize("name", ["merges", "tabletop", "bytes"])
def test_tokens_are_canonical_after_every_jump(kind, name):
    """After a jump the tokens are those of the whole text, and the next one keeps them."""
    value = {"regex": RECORD, "json_schema": SCHEMA, "choices": CHOICES}[kind]
    num_jumps = sum(check(kind, value, name, seed) for seed in range(60))
    assert num_jumps >= 60


def test_a_jump_repairs_what_was_drawn():
    """Drawn tokens that are not canonical give way when the text after them is certain."""
    tokens = tokenizer()
    made = matcher("regex", "[a-z]+, on the table")
    whole = tokens.encode_plain("cubes, on the table")
    for letter in "cubes":
        made.accept(tokens.encode_plain(letter)[0])
    assert made.jump() is None
    made.accept(tokens.encode_plain(",")[0])
    jump = made.jump()
    drawn = [tokens.encode_plain(letter)[0] for letter in "cubes,"]
    assert whole == [*drawn[: 6 - jump.num_replaced], *jump.token_ids]
    assert jump.is_end
    assert made.jump(num_settled=6).num_replaced == 0


def test_a_jump_keeps_to_its_limit():
    """A shorter jump has the same first tokens, and does not end the answer."""
    made = matcher("regex", "How many red cubes are on the table")
    whole = made.jump()
    for most in range(1, len(whole.token_ids)):
        assert made.jump(0, most) == Jump(0, whole.token_ids[:most])
    assert made.jump(0, 0) is None
    assert made.jump(0, len(whole.token_ids)) == whole


def test_half_a_character_is_never_forced():
    """Choices that share the first byte of a character force nothing of it."""
    made = matcher("choices", ["дом", "ком"], "bytes")
    assert made.jump() is None
    made = matcher("choices", ["aд", "aк"], "bytes")
    assert made.jump() is None or made.jump().token_ids == (ord("a"),)


@given(st.text(max_size=6), st.integers(0, 3))
def test_whole_characters_are_what_decodes(text, cut):
    """The longest beginning in whole characters is what a strict decoder takes."""
    content = text.encode("utf-8", "ignore")
    content = content[: max(0, len(content) - cut)]
    size = whole_characters(content)
    content[:size].decode()
    assert len(content[:size].decode()) == len(content.decode(errors="ignore"))
