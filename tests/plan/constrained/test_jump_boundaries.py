"""Where forced text stops: what is settled stays canonical, whatever the model goes on with."""

import random

import pytest
from plan.constrained.sampling import allowed_ids, matcher, take_jump, tokenizer

import mmserve.constrained.vocabulary as room

WORDS = [
    *("the", "assistant", "is", "on", "red", "table", "in", "picture", "of", "an", "and"),
    *("international", "clarity", "essay", "about", "small", "cubes", "thankful", "answers"),
    *("left", "what", "there", "today"),
]


@pytest.mark.parametrize("name", ["merges", "tabletop"])
def test_what_is_settled_begins_every_option(name):
    """Tokens taken before options part are canonical for each of them, also amid words."""
    tokens, rng = tokenizer(name), random.Random(5)
    num_jumps = 0
    for _ in range(300):
        first = " ".join(rng.choices(WORDS, k=rng.randint(1, 4)))
        cut = rng.randrange(1, len(first) + 1)
        second = first[:cut] + rng.choice(["?", "s", "ed", " a", ", b", "er", "nt", '"', "\n"])
        if first == second:
            continue
        jump = matcher("choices", [first, second], name).jump()
        settled = [] if jump is None else [*jump.token_ids]
        num_jumps += jump is not None
        for option in (first, second):
            assert tokens.encode_inside(option)[: len(settled)] == settled
    assert num_jumps > 150


@pytest.mark.parametrize("name", ["merges", "tabletop"])
def test_text_behind_an_open_word_still_jumps(name):
    """Forced text after a word that was left open is jumped over."""
    tokens = tokenizer(name)
    made = matcher("regex", r"the essay abo[a-z]{0,3}, on the table [0-9]", name)
    content: list[int] = []
    take_jump(made, content)
    settled = len(content)
    for token_id in tokens.encode_inside("the essay about,")[settled:]:
        made.accept(token_id)
    jump = made.jump(settled)
    assert jump is not None
    assert jump.num_replaced == 0


def encoded_bytes(monkeypatch, pattern, num_tokens, avoid):
    """Bytes tokenised in the first and the last fourth of an answer that avoids its end."""
    tokens, made = tokenizer("tabletop"), matcher("regex", pattern, "tabletop")
    asked: list[int] = []
    plain = room.Vocabulary.encode
    monkeypatch.setattr(
        room.Vocabulary,
        "encode",
        lambda self, text: asked.append(len(text)) or plain(self, text),
    )
    content: list[int] = []
    settled, rng, sums = 0, random.Random(3), []
    while len(content) < num_tokens:
        asked.clear()
        jump = made.jump(settled)
        sums.append(sum(asked))
        if jump is not None:
            made.rollback(jump.num_replaced)
            del content[len(content) - jump.num_replaced :]
            for token_id in jump.token_ids:
                made.accept(token_id)
            content += jump.token_ids
            settled = len(content)
        ids = [one for one in allowed_ids(made) if one != tokens.eos_token_id]
        ids = [one for one in ids if not tokens.piece(one).startswith(avoid)] or ids
        made.accept(rng.choice(ids))
        content += made._token_ids[-1:]
    quarter = len(sums) // 4
    return sum(sums[:quarter]), sum(sums[-quarter:])


@pytest.mark.parametrize(
    ("pattern", "num_tokens", "avoid"),
    [
        ("([a-z] )+x", 800, b"x"),  # a blank is forced after each letter, and never certain
        (r"([a-z]{1,4}\d{2}: on the table\n)+end", 3000, b"e"),  # jumps cut words
    ],
)
def test_the_cost_of_jumps_does_not_grow(monkeypatch, pattern, num_tokens, avoid):
    """Late in a long answer no more is tokenised than early in it."""
    first, last = encoded_bytes(monkeypatch, pattern, num_tokens, avoid)
    assert last < 3 * first
