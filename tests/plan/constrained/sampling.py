"""Draws answers under a matcher, the way an engine does."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

from plan.prompt.vocabularies import NAMED, byte_level

import mmserve
from mmserve.constrained import GrammarCompiler
from mmserve.core import Constraint
from mmserve.prompt import Tokenizer, load_tokenizer
from mmserve.testing.byte_tokenizer import byte_tokenizer

PADDING = 37


@functools.cache
def tokenizer(name="merges"):
    """A byte vocabulary, one with a few merges, or that of an embedded model."""
    if name == "bytes":
        return byte_tokenizer()
    if name == "merges":
        return Tokenizer(byte_level(), special_tokens=NAMED)
    return load_tokenizer(Path(mmserve.__file__).parent / "assets" / name)


@functools.cache
def compiler(name="merges"):
    """A compiler for that vocabulary; the model has more rows than there are tokens."""
    tokens = tokenizer(name)
    return GrammarCompiler(
        tokens.pieces,
        eos_token_ids=[tokens.eos_token_id],
        vocab_size=tokens.vocab_size + PADDING,
        special_ids=tokens.control_ids,
        encode=tokens.encode_onward,
    )


def matcher(kind, value, name="merges"):
    """A fresh matcher; values that are no text are written as JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return compiler(name).compile(Constraint(kind, text))()


def allowed_ids(matcher):
    """Token ids of the mask."""
    mask = matcher.allowed()
    return [one for one in range(32 * len(mask)) if int(mask[one // 32]) >> (one % 32) & 1]


def draw(matcher, seed=0, *, max_tokens=200, favour=None, name="merges", jump=True):
    """An answer as text, and whether it ended; `favour(piece)` are taken first, if allowed."""
    rng = random.Random(seed)
    tokens = tokenizer(name)
    content: list[int] = []
    while len(content) < max_tokens:
        if jump and rng.random() < 0.5:
            take_jump(matcher, content)
        ids = allowed_ids(matcher)
        if favour is not None:
            ids = [one for one in ids if favour(tokens.piece(one))] or ids
        token_id = rng.choice(ids)
        if token_id == tokens.eos_token_id:
            return tokens.decode(content), True
        matcher.accept(token_id)
        content.append(token_id)
    return tokens.decode(content), False


def take_jump(matcher, content):
    """Take the jump there is, in the matcher and the tokens; None if there is none."""
    jump = matcher.jump()
    if jump is None:
        return None
    matcher.rollback(jump.num_replaced)
    del content[len(content) - jump.num_replaced :]
    for token_id in jump.token_ids:
        matcher.accept(token_id)
    content += jump.token_ids
    return jump
