"""The matcher as a port: masks, forced tokens, going back, copies, and the cache."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.constrained.sampling import PADDING, allowed_ids, compiler, draw, matcher, tokenizer

from mmserve.constrained import GrammarCompiler
from mmserve.core import Broken, Constraint, ConstraintRefused, Jump

TOKENS = tokenizer()
END = TOKENS.eos_token_id


def test_mask_has_a_bit_for_every_row():
    """The mask is uint32 words over the model's rows, padding rows never allowed."""
    mask = matcher("regex", r"(?s).*").allowed()
    assert np.dtype(np.uint32) == mask.dtype
    assert -(-(TOKENS.vocab_size + PADDING) // 32) == len(mask)
    assert {one for one in range(TOKENS.vocab_size) if TOKENS.piece(one).isascii()} - (
        TOKENS.control_ids - {END}
    ) <= {*allowed_ids(matcher("regex", r"(?s).*"))}
    assert max(allowed_ids(matcher("regex", r"(?s).*"))) < TOKENS.vocab_size


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999))
def test_mask_is_brute_force(seed):
    """A token is allowed exactly if some full match begins with the text and it."""
    options = ["red", "red cubes", "the red", "re", "rot"]
    state = matcher("choices", options)
    text, _ = draw(matcher("choices", options), seed)
    ids = TOKENS.encode_plain(text)
    for taken in range(len(ids) + 1):
        prefix = b"".join(map(TOKENS.piece, ids[:taken]))
        expected = {
            one
            for one in range(TOKENS.vocab_size)
            if one not in TOKENS.control_ids
            and TOKENS.piece(one)
            and any(
                option.encode().startswith(prefix + TOKENS.piece(one)) for option in options
            )
        }
        expected |= {END} if prefix.decode() in options else set()
        assert expected == set(allowed_ids(state))
        if taken < len(ids):
            state.accept(ids[taken])


def test_end_tokens_come_exactly_when_the_grammar_may_end():
    """All end tokens, and only they, are allowed at a finished answer."""
    ends = (TOKENS.eos_token_id, TOKENS.token_id("<|im_end|>"))
    made = GrammarCompiler(
        TOKENS.pieces,
        eos_token_ids=ends,
        vocab_size=TOKENS.vocab_size,
        special_ids=TOKENS.special_ids,
    ).compile(Constraint("regex", "ab?"))()
    assert not {*ends} & {*allowed_ids(made)}
    made.accept(TOKENS.encode_plain("a")[0])
    assert {*ends} < {*allowed_ids(made)}
    assert not made.is_finished
    made.accept(TOKENS.encode_plain("b")[0])
    assert {*ends} == {*allowed_ids(made)}
    assert made.is_finished
    made.accept(ends[1])


def test_empty_answer_may_be_all():
    """A pattern that only the empty text matches allows end tokens alone."""
    assert allowed_ids(matcher("regex", "^$")) == [END]


def test_token_that_was_not_allowed_breaks():
    """Accepting what the mask forbids is our fault, and is said."""
    with pytest.raises(Broken, match="does not fit"):
        matcher("regex", "a").accept(TOKENS.encode_plain("b")[0])


def test_forced_text_is_canonical():
    """What is certain comes in the tokens that plain tokenizing gives."""
    made = matcher("regex", "How many red cubes are on the table")
    whole = TOKENS.encode_plain("How many red cubes are on the table")
    assert made.jump() == Jump(0, (*whole,), is_end=True)
    assert made.jump() == made.jump()


def test_nothing_is_forced_where_a_choice_is_open():
    """Forced tokens stop before the first open choice, also inside a token."""
    made = matcher("choices", ["the table", "the cube"])
    text = b"".join(map(TOKENS.piece, made.jump().token_ids)).decode()
    assert "the ".startswith(text)
    assert not made.jump().is_end
    assert matcher("regex", "[ab]c").jump() is None


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), back=st.integers(0, 6))
def test_going_back_restores_the_state(seed, back):
    """After rollback the masks are those of before, for JSON with its digit guard too."""
    schema = {"type": "array", "items": {"type": ["number", "string", "boolean"]}}
    text, _ = draw(matcher("json_schema", schema), seed, max_tokens=24)
    ids = TOKENS.encode_plain(text)
    state = matcher("json_schema", schema)
    masks = [state.allowed()]
    for token_id in ids:
        state.accept(token_id)
        masks.append(state.allowed())
    back = min(back, len(ids))
    state.rollback(back)
    assert masks[len(ids) - back].tolist() == state.allowed().tolist()
    for token_id in ids[len(ids) - back :]:
        state.accept(token_id)
    assert masks[-1].tolist() == state.allowed().tolist()


def test_copies_are_independent():
    """A fork goes its own way."""
    first = matcher("regex", "ab|cd")
    second = first.fork()
    first.accept(TOKENS.encode_plain("a")[0])
    second.accept(TOKENS.encode_plain("c")[0])
    assert allowed_ids(first) == TOKENS.encode_plain("b")
    assert allowed_ids(second) == TOKENS.encode_plain("d")


def test_grammars_of_both_notations_are_served():
    """GBNF and Lark grammars are enforced."""
    for grammar in ('root ::= "a" [0-9]+ | "b"', 'start: "a" /[0-9]/+ | "b"'):
        text, is_end = draw(matcher("ebnf", grammar), 3, favour=None)
        assert not is_end or text == "b" or (text[0] == "a" and text[1:].isdigit())


@pytest.mark.parametrize(
    "grammar", ["", "root ::= (", "start: nope", "root ::= missing", "\ud83d"]
)
def test_broken_grammar_is_refused(grammar):
    """A grammar that is none is refused."""
    with pytest.raises(ConstraintRefused):
        matcher("ebnf", grammar)


def test_grammar_cannot_ask_for_control_tokens():
    """Control tokens never come from a grammar, even if it names them."""
    with pytest.raises(ConstraintRefused):
        matcher("ebnf", f"start: <[{TOKENS.token_id('<image>')}]>")


def test_vocabulary_that_cannot_spell_the_text_is_a_clear_refusal():
    """Without a token for what must come, the refusal comes before anything runs."""
    made = GrammarCompiler([b"a", b"b", b""], eos_token_ids=[2], vocab_size=3)
    with pytest.raises(ConstraintRefused, match="nothing the model can write"):
        made.compile(Constraint("regex", "c"))


def test_equal_constraints_are_compiled_once():
    """The cache is by content, and stays within its bytes."""
    made = GrammarCompiler(
        TOKENS.pieces, eos_token_ids=[END], vocab_size=TOKENS.vocab_size, cache_bytes=100_000
    )
    assert made.cached(Constraint("regex", "ab")) is None
    made.compile(Constraint("regex", "ab"))
    assert made.cached(Constraint("regex", "ab")) is not None
    assert made.num_entries == 1
    for number in range(20):
        made.compile(Constraint("regex", f"a{number}"))
        assert made.used_bytes <= 100_000
    assert made.cached(Constraint("regex", "ab")) is None


def test_threads_may_compile_at_once():
    """Compiling from several threads gives independent, working matchers."""
    answers = []

    def work(number):
        answers.append(
            draw(compiler().compile(Constraint("choices", '["yes", "no"]'))(), number)[0]
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert {*answers} <= {"yes", "no"}
