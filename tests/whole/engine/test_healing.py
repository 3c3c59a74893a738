"""Prompts that end inside a token: the answer goes on inside of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from whole.engine.test_sameness import picture

from mmserve.core import (
    BadRequest,
    Constraint,
    Request,
    SamplingParams,
    TextPart,
    TokensPart,
    Turn,
)
from mmserve.engine import collect

HEALED = SamplingParams(max_new_tokens=12, temperature=0.0, heal_prompt=True)


def ask(engine, parts, params):
    """The prompt's ids and the answer."""
    ticket = engine.submit(Request(request_id="h", parts=parts, sampling=params))
    return list(ticket.report().token_ids), collect(ticket.outputs())


@pytest.mark.parametrize("is_scored", [False, True])
def test_the_last_token_is_drawn_again(engine, is_scored):
    """The prompt is one token shorter; the answer's tokens spell it first, its text not."""
    params = replace(HEALED, return_logprobs=is_scored)
    whole, _ = ask(engine, (TextPart("the red ta"),), replace(params, heal_prompt=False))
    prompt, answer = ask(engine, (TextPart("the red ta"),), params)
    assert prompt == whole[:-1]
    spelt = engine.detokenize(answer.token_ids[0])
    assert spelt == engine.detokenize(whole[-1:]) + answer.text
    assert answer.usage.prompt_tokens == len(prompt)
    if is_scored:
        assert [one.token_id for one in answer.logprobs[0]] == [*answer.token_ids[0]]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("regex", "ble is (red|blue)", "ble is "),
        ("choices", '["ble", "bles"]', "ble"),
        ("json_schema", '{"const": {"a": "b"}}', '{"a":"b"}'),
    ],
)
def test_a_constraint_holds_for_the_answer_alone(engine, kind, value, text):
    """What is constrained is the text behind the prompt, also where a token reaches across."""
    params = replace(HEALED, max_new_tokens=40, constraint=Constraint(kind, value))
    turns = (
        Turn("user", (picture(1), TextPart("what?"))),
        Turn("assistant", (TextPart("the ta"),), is_open=True),
    )
    _, answer = ask(engine, turns, params)
    assert answer.text.startswith(text)
    assert answer.finishes[0].reason == "stop"


def test_only_a_caller_s_text_is_taken_back(engine):
    """Token ids, pictures and what a template writes stay as they are."""
    plain = replace(HEALED, heal_prompt=False)
    for parts in (
        (TokensPart((40, 41, 42)),),
        (TextPart("a"), picture(1)),
        (Turn("user", (TextPart("ab"),)), Turn("assistant", (), is_open=True)),
    ):
        assert ask(engine, parts, HEALED)[0] == ask(engine, parts, plain)[0]


def test_endless_free_answers_cannot_be_healed(engine):
    """`ignore_eos` without a constraint and `heal_prompt` exclude one another, and say so."""
    with pytest.raises(BadRequest, match="heal_prompt and ignore_eos"):
        ask(engine, (TextPart("the ta"),), replace(HEALED, ignore_eos=True))


def test_ids_of_a_free_answer_do_not_wait_for_its_end(engine):
    """Nothing can jump once the prompt's bytes are spelt, so ids come as they are drawn."""
    bias = tuple((one, -100.0) for one in engine.model.eos_token_ids)
    params = replace(HEALED, max_new_tokens=24, temperature=1.0, seed=2, logit_bias=bias)
    request = Request(request_id="h", parts=(TextPart("the red ta"),), sampling=params)
    counts = [len(output.token_ids) for output in engine.submit(request).outputs()]
    assert sum(counts[:-1]) > 8
