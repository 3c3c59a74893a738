"""The step after the one that is out is guessed right, and guessing changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sched.driver import Driver, ListMatcher, prompt

from mmserve.core import UNDRAWN
from mmserve.sched import is_foreseen


def _play(driver: Driver, *, foresees: bool) -> list[tuple[bool, bool]]:
    """Run to the end; for every step but the first, whether it was foreseen, and rightly."""
    told = []
    plan = driver.plan()
    while plan is not None:
        foreseen = driver.sched.foresee() if foresees else None
        driver.land(plan)
        plan = driver.plan()
        if plan is not None:
            told.append(
                (foreseen is not None, foreseen is not None and is_foreseen(foreseen, plan))
            )
    return told


def test_steady_answers_are_foreseen():
    """While nobody comes, every next token of answers under way is foreseen rightly."""
    driver = Driver()
    for n in range(1, 5):
        driver.add(prompt(range(n, n + 20)), max_new_tokens=30)
    told = _play(driver, foresees=True)
    assert told == [(True, True)] * 29


def test_an_answer_that_ends_by_length_is_left_out():
    """Answers of different lengths end one after the other, and all steps stay foreseen."""
    driver = Driver()
    for n in (5, 9, 14):
        driver.add(prompt(range(n, n + 20)), max_new_tokens=n)
    assert all(is_right for _, is_right in _play(driver, foresees=True))


def test_the_token_under_way_is_not_known():
    """A foreseen row has one token that is still to be drawn, and a slot of its own for it."""
    driver = Driver()
    driver.add(prompt(range(1, 20)), max_new_tokens=3)
    plan = driver.plan()
    row = driver.sched.foresee().rows[0]
    assert row.token_ids.tolist() == [UNDRAWN]
    assert (row.start, len(row.slots)) == (19, 20)
    assert np.array_equal(row.slots[:19], plan.rows[0].slots)


def test_nothing_is_foreseen_when_somebody_waits_for_a_place():
    """A newcomer that may start makes the next step another one."""
    driver = Driver()
    driver.add(prompt(range(1, 20)), max_new_tokens=9)
    driver.plan()
    driver.add(prompt(range(30, 50)))
    assert driver.sched.foresee() is None


def test_a_full_house_is_foreseen():
    """Who waits while no place is free does not hinder."""
    driver = Driver(max_running=1)
    driver.add(prompt(range(1, 20)), max_new_tokens=9)
    driver.add(prompt(range(30, 50)))
    driver.plan()
    assert driver.sched.foresee() is not None


def test_answers_that_a_grammar_may_lengthen_are_not_foreseen():
    """Forced text makes more than one token of the next."""
    driver = Driver()
    driver.add(prompt(range(1, 20)), matcher=ListMatcher([5], [6], [7]), max_new_tokens=9)
    driver.plan()
    assert driver.sched.foresee() is None


def test_a_step_that_encodes_was_not_foreseen():
    """A plan with a picture to encode is never taken for one that was begun."""
    driver = Driver()
    driver.add(prompt(range(1, 20)), max_new_tokens=9)
    plan = driver.plan()
    foreseen = driver.sched.foresee()
    driver.add(prompt([1], ("a", 4)))
    driver.land(plan)
    assert not is_foreseen(foreseen, driver.plan())


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 4]), st.sampled_from([40, 512]))
@settings(max_examples=60, deadline=None)
def test_foreseeing_changes_nothing(seed: int, page_tokens: int, num_slots: int) -> None:
    """With and without guesses, the same plans are made and the same tokens come."""
    runs = []
    for foresees in (False, True):
        random = np.random.default_rng(seed)
        driver = Driver(num_slots=num_slots, context=36, page_tokens=page_tokens, eos=5)
        for _ in range(random.integers(1, 8)):
            length = int(random.integers(1, 20))
            driver.add(
                prompt(random.integers(1, 9, length).tolist()),
                max_new_tokens=int(random.integers(1, 16)),
            )
        _play(driver, foresees=foresees)
        plans = [
            [(row.sequence_id, row.slots.tolist()) for row in p.rows] for p in driver.plans
        ]
        runs.append((plans, driver.tokens()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("page_tokens", [1, 4])
def test_the_foreseen_slot_is_the_one_that_comes(page_tokens: int) -> None:
    """Where a next slot is told, the pool hands out just that one."""
    driver = Driver(page_tokens=page_tokens)
    for n in range(1, 4):
        driver.add(prompt(range(n, n + 10)), max_new_tokens=40)
    told = _play(driver, foresees=True)
    assert told == [(True, True)] * 39
