"""Counts of answers that end early."""

import json
from dataclasses import replace

import pytest
from plan.sched.driver import Driver, ListMatcher, prompt
from whole.engine.test_jumps import PLAIN, ask, submit

from mmserve.core import Constraint, EngineConfig, SchedConfig
from mmserve.engine import Engine


@pytest.fixture(scope="module")
def small():
    """The embedded model, with small steps."""
    config = EngineConfig(
        model="tabletop", threads=1, num_slots=2048, sched=SchedConfig(chunk_tokens=8)
    )
    with Engine.from_config(config) as engine:
        yield engine


def test_forced_tokens_behind_a_stop_text_are_not_counted(small):
    """An answer cut by a stop text has no more forced tokens than tokens."""
    constraint = Constraint("regex", "the red cube is on the table and the blue ball is left")
    answer = ask(small, replace(PLAIN, constraint=constraint, stop=("cube",)))
    assert answer.usage.completion_tokens == len(answer.token_ids[0])
    assert answer.usage.forced_tokens <= answer.usage.completion_tokens


def test_abort_before_the_opening_is_told():
    """Tokens that nobody was told are not counted."""
    driver = Driver(chunk_tokens=2)
    matcher = ListMatcher([40], [41], [42], [43, 44])
    sequence_id = driver.add(prompt([1, 2, 3, 4, 5, 6]), matcher=matcher, max_new_tokens=9)
    driver.land(driver.plan())
    update = driver.sched.abort(sequence_id)
    driver.take([update])
    assert update.usage.completion_tokens == len(driver.answers[sequence_id].tokens)


def test_abort_amid_forced_tokens_without_scores(small):
    """An aborted answer counts the tokens it told."""
    constraint = Constraint(
        "regex",
        "[a-z]{1,3}(, the red cube is on the table and the ball is left [0-9]{1,3}){30}",
    )
    params = replace(PLAIN, constraint=constraint, return_logprobs=True, max_new_tokens=400)
    for most in range(1, 12):
        ticket = submit(small, params)
        outputs = []
        for output in ticket.outputs():
            outputs.append(output)
            if len(outputs) == most:
                ticket.cancel()
        ids = [token_id for output in outputs for token_id in output.token_ids]
        assert outputs[-1].usage.completion_tokens == len(ids)


def test_an_empty_answer_with_min_new_tokens(small):
    """A grammar that is at its end ends the answer, whatever `min_new_tokens` says."""
    constraint = Constraint("choices", json.dumps([""]))
    answer = ask(small, replace(PLAIN, constraint=constraint, min_new_tokens=1))
    assert answer.text == ""
