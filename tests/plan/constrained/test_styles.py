"""Vocabularies with a blank put before every text, or without some bytes."""

import json

import pytest
from plan.constrained.sampling import allowed_ids
from plan.prompt.vocabularies import NAMED, legacy, metaspace, unigram

from mmserve.constrained import GrammarCompiler
from mmserve.core import Constraint, ConstraintRefused
from mmserve.prompt import Tokenizer


def made(backend, kind, value):
    """A fresh matcher of a vocabulary."""
    tokens = Tokenizer(backend, special_tokens=NAMED)
    compiler = GrammarCompiler(
        tokens.pieces,
        eos_token_ids=[tokens.eos_token_id],
        vocab_size=tokens.vocab_size,
        special_ids=tokens.control_ids,
        encode=tokens.encode_onward,
    )
    return compiler.compile(Constraint(kind, value))()


@pytest.mark.parametrize("backend", [legacy, lambda: metaspace("always")])
def test_forced_text_jumps_in_sentencepiece_styles(backend):
    """The older Llama files put a blank before every run; forced text is free there too."""
    assert made(backend(), "regex", "red cubes on the table [0-9]").jump() is not None


def test_a_mask_holds_only_tokens_that_are_accepted():
    """A vocabulary that cannot spell a quote: the schema is refused, or the mask is right."""
    try:
        matcher = made(unigram(), "json_schema", json.dumps({"enum": ["the", "red"]}))
        ids = allowed_ids(matcher)
    except ConstraintRefused:
        return
    for token_id in ids:
        matcher.fork().accept(token_id)
