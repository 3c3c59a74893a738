"""Forced text in a real engine: fewer steps, the same answer however it is asked and run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from whole.engine.test_sameness import engine_with, picture

from mmserve.core import (
    Constraint,
    Part,
    Request,
    SamplingParams,
    TextPart,
    TokensPart,
    Turn,
)
from mmserve.engine import Answer, Engine, EngineTicket, collect

RECORD = (
    r'\{"name": "[a-z]{1,6}", "colour": "(red|green|blue)", "size": [0-9]{1,2},'
    r' "place": "(on the table|on the red table)", "note": "[a-z ]{0,8}"\}'
)
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "a longer name": {"type": "string", "maxLength": 6},
        "place": {"const": "on the table"},
    },
    "required": ["colour", "a longer name", "place"],
    "additionalProperties": False,
}
SHAPES = {
    "regex": Constraint("regex", RECORD),
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "choices": Constraint(
        "choices", json.dumps(["on the red table", "on the red tables", "one"])
    ),
}
PLAIN = SamplingParams(max_new_tokens=120, temperature=0.0)


def parts_of(question: str, *pictures: Part) -> tuple[Part, ...]:
    """A conversation of one question."""
    user = Turn("user", (*pictures, TextPart(question)))
    return (user, Turn("assistant", (), is_open=True))


def submit(engine: Engine, params: SamplingParams, *pictures: Part) -> EngineTicket:
    """Ask one question."""
    parts = parts_of("which one?", *pictures)
    return engine.submit(Request(request_id="j", parts=parts, sampling=params))


def ask(engine: Engine, params: SamplingParams, *pictures: Part) -> Answer:
    """The whole answer to one question."""
    return collect(submit(engine, params, *pictures).outputs())


@pytest.fixture(scope="module")
def stepwise(tiny_directory) -> Iterator[Engine]:
    """An engine in which every forced token takes a step of its own; nothing is cached."""
    with engine_with(tiny_directory, jump_forward=False, radix_cache=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def narrow(tiny_directory) -> Iterator[Engine]:
    """Little room, small pages, rows of seven tokens: jumps are cut, sequences retracted."""
    with engine_with(
        tiny_directory, num_slots=230, page_tokens=2, chunk_tokens=7, max_step_tokens=24
    ) as engine:
        yield engine


@pytest.mark.parametrize("shape", [*SHAPES])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_pictures", [0, 1])
def test_jumps_change_no_token(engine, stepwise, shape, temperature, num_pictures):
    """With jumps and without the tokens are the same; with them there are fewer steps."""
    params = replace(
        PLAIN, constraint=SHAPES[shape], temperature=temperature, seed=3, ignore_eos=True
    )
    pictures = [picture(number) for number in range(num_pictures)]
    before = engine.counters()["steps_total"]
    mine = ask(engine, params, *pictures)
    num_steps = engine.counters()["steps_total"] - before
    other = ask(stepwise, params, *pictures)
    assert mine.token_ids == other.token_ids
    assert mine.finishes == other.finishes
    assert mine.usage.forced_tokens == other.usage.forced_tokens > 0
    assert num_steps <= len(mine.token_ids[0]) - mine.usage.forced_tokens + 1


@pytest.mark.parametrize("shape", [*SHAPES])
def test_scores_of_forced_tokens_are_the_model_s(engine, stepwise, shape):
    """Forced tokens are marked, and have the log-probability that scoring the answer gives."""
    params = replace(PLAIN, constraint=SHAPES[shape], return_logprobs=True, top_logprobs=2)
    ticket = submit(engine, params, picture(1))
    prompt_ids = ticket.report().token_ids
    mine = collect(ticket.outputs())
    entries = mine.logprobs[0]
    assert [entry.token_id for entry in entries] == [*mine.token_ids[0]]
    assert sum(entry.is_forced for entry in entries) >= mine.usage.forced_tokens
    assert len({entry.is_forced for entry in entries}) == 2
    unscored = ask(engine, replace(params, return_logprobs=False, top_logprobs=0), picture(1))
    assert unscored.token_ids == mine.token_ids
    other = ask(stepwise, params, picture(1)).logprobs[0]
    assert [one.is_forced for one in other] == [one.is_forced for one in entries]
    scoring = SamplingParams(
        max_new_tokens=0, return_logprobs=True, prompt_logprobs_from=len(prompt_ids)
    )
    parts = (*parts_of("which one?", picture(1)), TokensPart(mine.token_ids[0]))
    whole = collect(
        engine.submit(Request(request_id="w", parts=parts, sampling=scoring)).outputs()
    )
    expected = [entry.logprob for entry in whole.prompt_logprobs]
    assert [entry.logprob for entry in entries] == pytest.approx(expected, abs=1e-3)
    assert [entry.logprob for entry in other] == pytest.approx(expected, abs=1e-3)
    assert all(len(entry.top) == 2 for entry in entries)


def test_neighbours_and_little_room_change_nothing(engine, narrow):
    """Answers at once, some of them retracted, are those of an engine with room."""
    for _ in range(20):  # short answers, so that long ones are let in that do not fit
        ask(narrow, replace(PLAIN, constraint=SHAPES["choices"]))
    asks = [
        (replace(PLAIN, constraint=shape, temperature=1.0, seed=seed), picture(seed % 2))
        for seed in range(6)
        for shape in (SHAPES["regex"], SHAPES["schema"])
    ]
    tickets = [submit(narrow, *each) for each in asks]
    answers = [collect(ticket.outputs()) for ticket in tickets]
    for each, answer in zip(asks, answers, strict=True):
        assert answer.token_ids == ask(engine, *each).token_ids
    assert narrow.counters()["retractions_total"] > 0


@pytest.mark.parametrize("is_scored", [False, True])
def test_streamed_pieces_join_to_the_answer(engine, is_scored):
    """Text comes in whole pieces, token ids are never taken back, counts agree."""
    params = replace(
        PLAIN, constraint=SHAPES["regex"], temperature=1.0, seed=8, return_logprobs=is_scored
    )
    outputs = list(submit(engine, params).outputs())
    whole = collect(iter(outputs))
    text = "".join(output.text for output in outputs)
    assert re.fullmatch(RECORD, text)
    assert len(outputs) > 4
    ids = [token_id for output in outputs for token_id in output.token_ids]
    assert engine.detokenize(ids) == text
    assert len(ids) == whole.usage.completion_tokens
    assert len(whole.logprobs[0]) == (len(ids) if is_scored else 0)


@pytest.mark.parametrize("is_scored", [False, True])
@pytest.mark.parametrize("stop", ["colour", "r", "me", '": "'])
def test_a_stop_text_inside_forced_text_ends_the_answer(engine, stop, is_scored):
    """The answer ends before the stop text, with the tokens up to its end and their scores."""
    params = replace(PLAIN, constraint=SHAPES["regex"], stop=(stop,), return_logprobs=is_scored)
    answer = ask(engine, params)
    free = ask(engine, replace(params, stop=())).text
    assert answer.text == free[: free.index(stop)]
    assert answer.finishes[0].matched == stop
    spelt = engine.detokenize(answer.token_ids[0])
    assert spelt.startswith(answer.text + stop)
    assert len(answer.token_ids[0]) == answer.usage.completion_tokens
    if is_scored:
        assert all(entry.logprob is not None for entry in answer.logprobs[0])


def test_max_tokens_cuts_anywhere(engine):
    """However many tokens are asked for, so many come, and they begin the whole answer."""
    params = replace(PLAIN, constraint=SHAPES["regex"])
    whole = ask(engine, params)
    for most in range(1, len(whole.token_ids[0])):
        answer = ask(engine, replace(params, max_new_tokens=most))
        assert len(answer.token_ids[0]) == most == answer.usage.completion_tokens
        assert answer.finishes[0].reason == "length"
        assert whole.text.startswith(answer.text)


def test_samples_of_one_prompt_jump_alike(engine):
    """With n answers each is whole, and the forced beginning is computed once."""
    params = replace(PLAIN, constraint=SHAPES["regex"], n=3, temperature=1.0, seed=1)
    answer = ask(engine, params, picture(3))
    assert len({*answer.texts}) > 1
    assert all(re.fullmatch(RECORD, text) for text in answer.texts)


def test_an_answer_without_a_choice_draws_nothing(engine):
    """Where everything is certain the answer is there after the prompt's step."""
    before = engine.counters()["steps_total"]
    answer = ask(engine, replace(PLAIN, constraint=Constraint("regex", "on the red table")))
    assert answer.text == "on the red table"
    assert answer.finishes[0].reason == "stop"
    assert engine.counters()["steps_total"] - before == 1
