"""Every step keeps its budgets and tells the runner all it needs."""

import numpy as np
import pytest
from plan.sched.driver import EOS, Driver, ListMatcher, prompt

from mmserve.core import LedgerBroken, SampledTokens


def test_nothing_to_do_is_no_plan():
    """An idle scheduler plans nothing."""
    assert Driver().plan() is None


def test_a_long_prompt_is_computed_in_pieces():
    """Pieces are as long as the settings say, and only the last one draws a token."""
    driver = Driver(chunk_tokens=8, max_step_tokens=64)
    driver.add(prompt(range(1, 21)), max_new_tokens=1)
    driver.run()
    rows = [plan.rows[0] for plan in driver.plans]
    assert [(row.start, len(row.token_ids)) for row in rows] == [(0, 8), (8, 8), (16, 4)]
    assert [row.sampling is not None for row in rows] == [False, False, True]


def test_a_prompt_above_the_step_budget_does_not_block_others():
    """A prompt longer than a step is served in pieces, and the small one behind it too."""
    driver = Driver(max_step_tokens=16)
    driver.add(prompt([7] * 100))
    driver.add(prompt([1, 2, 3]))
    driver.run()
    assert max(plan.num_tokens for plan in driver.plans) <= 16


def test_running_answers_come_before_prompts():
    """Sequences that lack one token have their row first, so that they never pause."""
    driver = Driver(max_step_tokens=8)
    driver.add(prompt([1, 2, 3]), max_new_tokens=20)
    driver.step()
    driver.add(prompt([9] * 50))
    for _ in range(4):
        rows = driver.plan().rows
        assert [row.sequence_id for row in rows] == [0, 1]
        assert [len(row.token_ids) for row in rows] == [1, 7]
        driver.land(driver.plans[-1])


def test_no_more_run_than_allowed():
    """`max_running` bounds the rows of a step."""
    driver = Driver(max_running=2)
    for n in range(5):
        driver.add(prompt([n + 1]))
    driver.run()
    assert max(len(plan.rows) for plan in driver.plans) == 2


def test_a_row_has_a_slot_for_every_token():
    """Slots reach from token 0 to the last one computed, and no slot comes twice."""
    driver = Driver(chunk_tokens=3)
    driver.add(prompt(range(1, 11)))
    driver.run()
    for plan in driver.plans:
        row = plan.rows[0]
        assert len(row.slots) == row.start + len(row.token_ids) == len(np.unique(row.slots))


def test_slots_of_an_answer_are_contiguous():
    """With room in the pool, two answers that grow together have one run of slots each."""
    driver = Driver()
    for first in (1, 2):
        driver.add(prompt([first] * 6), max_new_tokens=20)
    driver.run()
    for row in driver.plans[-1].rows:
        assert (np.diff(row.slots) == 1).all()


def test_plans_handed_out_do_not_change():
    """Arrays of a plan stay as they were while the sequence goes on."""
    driver = Driver(chunk_tokens=4)
    driver.add(prompt(range(1, 11)), max_new_tokens=50)
    driver.add(prompt(range(1, 11)), max_new_tokens=50)
    seen = []
    while driver.unfinished:
        driver.step()
        for row in driver.plans[-1].rows:
            arrays = [row.slots, row.token_ids]
            arrays += [row.sampling.output_ids] if row.sampling else []
            seen += [(array, array.tolist()) for array in arrays]
    assert all(array.tolist() == values for array, values in seen)


def test_sampling_knows_what_came_before():
    """Seed, position and the answer so far go with every row that draws."""
    driver = Driver()
    driver.add(prompt([1, 2, 3]), seed=77, max_new_tokens=3)
    driver.run()
    drawn = [plan.rows[0].sampling for plan in driver.plans]
    assert [sampling.position for sampling in drawn] == [0, 1, 2]
    assert {sampling.seed for sampling in drawn} == {77}
    assert drawn[2].output_ids.tolist() == driver.answers[0].tokens[:2]
    assert drawn[0].prompt_ids is None


def test_the_prompt_goes_along_only_for_the_repetition_penalty():
    """Prompt ids are given if the repetition penalty needs them."""
    driver = Driver()
    driver.add(prompt([1, 2, 3]), repetition_penalty=1.5)
    assert driver.plan().rows[0].sampling.prompt_ids.tolist() == [1, 2, 3]


def test_a_grammar_masks_the_row():
    """The mask of a sequence's own grammar is for its row and nobody else's."""
    driver = Driver()
    driver.add(prompt([2]))
    driver.add(prompt([1]), matcher=ListMatcher([40, 41], [41, 42]))
    plan = driver.plan()
    assert [row.sampling.allowed for row in plan.rows] == [None, None]
    assert {place: mask.tolist() for place, mask in plan.masks.fill().items()} == {
        1: [0, 3 << 8, 0, 0]
    }


def test_end_tokens_are_banned_until_enough_tokens():
    """Before `min_new_tokens` no end token may come."""
    driver = Driver(eos=EOS, rule=lambda tokens: EOS)
    driver.add(prompt([1]), min_new_tokens=2, stop_token_ids=(9,), max_new_tokens=8)
    driver.run()
    banned = [plan.rows[0].sampling.banned_ids for plan in driver.plans]
    assert banned == [(9, EOS), (9, EOS), ()]
    assert driver.answers[0].tokens[2:] == [EOS]


def test_one_plan_at_a_time():
    """Planning before the last step is back is an error."""
    driver = Driver()
    driver.add(prompt([1]))
    driver.plan()
    with pytest.raises(LedgerBroken):
        driver.sched.plan()


def test_a_result_of_another_step_is_an_error():
    """Only the step that is out can come back."""
    driver = Driver()
    with pytest.raises(LedgerBroken):
        driver.sched.commit(SampledTokens(1, ()))


def test_times_of_the_stages_are_told():
    """Queue time is the wait for the first step; forward and encode times add up by step."""
    driver = Driver(chunk_tokens=5)
    driver.add(prompt([1], ("A", 8), [2]), max_new_tokens=2)
    driver.clock.now_s = 0.25
    driver.run()
    last = driver.answers[0].last
    assert (last.queue_ms, last.prefill_ms, last.encode_ms) == (250.0, 2.0, 1.0)
