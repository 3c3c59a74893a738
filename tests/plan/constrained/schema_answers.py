"""Answers under a schema: whether one may be written, and random ones under biases."""

from __future__ import annotations

import json
import random

import jsonschema
from plan.constrained.sampling import allowed_ids, matcher, tokenizer

from mmserve.core import Broken

BIASES = {
    "nothing": lambda piece: False,
    "whitespace": lambda piece: not piece.strip(),
    "digits": lambda piece: piece.isdigit(),
    "letters": lambda piece: piece.isalpha(),
    "quotes and escapes": lambda piece: b'"' in piece or b"\\" in piece,
    "numbers": lambda piece: not piece.strip(b"0123456789+-.eE"),
    "openings": lambda piece: piece[-1:] in (b"[", b"{"),
    "commas": lambda piece: b"," in piece,
    "other scripts": lambda piece: piece[0] > 127,
}
CLOSERS = (b"}", b"]", b'"', b"0", b"1", b"a")


def takes(schema, value):
    """Whether the value, written compactly, is an answer under the schema."""
    text = value if isinstance(value, bytes) else as_text(value)
    state = matcher("json_schema", schema, "bytes")
    tokens = tokenizer("bytes")
    for token_id in tokens.encode_inside(text.decode()):
        try:
            state.accept(token_id)
        except Broken:
            return False
    return tokens.eos_token_id in allowed_ids(state)


def as_text(value):
    """JSON as the engine writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def biased(state, rng, bias, *, max_tokens=160):
    """A random answer that leans towards some tokens, then towards its end; None if cut."""
    tokens = tokenizer()
    content = []
    for order in range(max_tokens):
        ids = allowed_ids(state)
        if tokens.eos_token_id in ids and (order > max_tokens // 2 or rng.random() < 0.2):
            return tokens.decode(content)
        pieces = {one: tokens.piece(one) for one in ids if one != tokens.eos_token_id}
        if not pieces:
            return tokens.decode(content)
        favoured = [one for one, piece in pieces.items() if BIASES[bias](piece)]
        if order > max_tokens // 2:
            favoured = [one for one, piece in pieces.items() if piece in CLOSERS]
        is_led = favoured and rng.random() < 0.7
        token_id = rng.choice(favoured if is_led else list(pieces))
        state.accept(token_id)
        content.append(token_id)
    return None


def validator_of(schema):
    """The independent validator of the schema's own draft, with its format checks."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def assert_valid(schema, *, seed, num_answers=3):
    """Random answers that end are valid; how many did end."""
    validator = validator_of(schema)
    rng = random.Random(seed)
    num_ended = 0
    for bias in rng.sample(sorted(BIASES), num_answers):
        answer = biased(matcher("json_schema", schema), rng, bias)
        if answer is not None:
            num_ended += 1
            errors = [error.message for error in validator.iter_errors(json.loads(answer))]
            assert not errors, (answer, errors, schema)
    return num_ended
