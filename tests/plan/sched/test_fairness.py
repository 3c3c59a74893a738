"""The order of the waiting: prefix first, but nobody is overtaken without end."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sched.driver import Driver, prompt

WARM = list(range(1, 41))


def warm_driver(**config):
    """A driver whose tree holds the warm prefix."""
    driver = Driver(**config)
    driver.add(prompt(WARM), max_new_tokens=1)
    driver.run()
    driver.started.clear()
    return driver


def test_longer_cached_prefixes_go_first():
    """In a static line those with more cached tokens start first, ties by arrival."""
    driver = warm_driver(max_running=1)
    cold = driver.add(prompt([99] * 5))
    some = driver.add(prompt(WARM[:10], [99]))
    most = driver.add(prompt(WARM[:30], [99]))
    also = driver.add(prompt(WARM[:10], [98]))
    driver.run()
    assert driver.started == [most, some, also, cold]


def test_fcfs_takes_them_as_they_come():
    """Policy fcfs goes by arrival."""
    driver = warm_driver(max_running=1, policy="fcfs")
    ids = [driver.add(prompt([99] * 5)), driver.add(prompt(WARM[:30], [99]))]
    driver.run()
    assert driver.started == ids


@pytest.mark.parametrize("policy", ["fcfs", "longest-prefix"])
def test_priority_goes_before_the_prefix(policy):
    """Higher priority starts first under both policies."""
    driver = warm_driver(max_running=1, policy=policy)
    low = driver.add(prompt(WARM, [99]))
    high = driver.add(prompt([99] * 5), priority=1)
    driver.run()
    assert driver.started == [high, low]


@pytest.mark.parametrize("bound", [0, 1, 5, 16])
def test_a_cold_request_is_not_starved(bound):
    """Against an endless flow of warm ones a cold one starts after `bound` later arrivals."""
    driver = warm_driver(max_running=2, max_wait_overtakes=bound)
    last = itertools.count()
    for _ in range(6):
        driver.add(prompt(WARM, [next(last) % 100]), max_new_tokens=2)
    cold = driver.add(prompt([99] * 20), max_new_tokens=2)
    num_before = len(driver.answers)
    while cold not in driver.started:
        while len(driver.unfinished) < 7:
            driver.add(prompt(WARM, [next(last) % 100]), max_new_tokens=2)
        assert driver.step()
    later = [n for n in driver.started[: driver.started.index(cold)] if n >= num_before]
    assert len(later) <= bound


def test_a_large_request_is_not_passed_for_ever_by_small_ones():
    """One that waits for slots stops the others once it has been overtaken often enough."""
    driver = Driver(num_slots=100, max_wait_overtakes=4)
    driver.add(prompt([5] * 40), max_new_tokens=30)
    driver.step()
    large = driver.add(prompt([6] * 60), max_new_tokens=30)
    for n in range(40):
        driver.add(prompt([7, n]), max_new_tokens=2)
    driver.run()
    started = driver.started
    assert len([n for n in started[: started.index(large)] if n > large]) == 4


def test_a_full_pool_costs_no_look_at_those_who_wait():
    """While a running answer needs all that is free, a step matches nobody in the line."""
    driver = Driver(num_slots=64, context=64)
    driver.add(prompt(range(1, 31)), max_new_tokens=34, ignore_eos=True)
    for _ in range(8):
        driver.step()
    for first in range(40, 90):
        driver.add(prompt([first] * 10))
    looked_at = _counted(driver.sched._memory, "look")
    assert driver.plan() is not None
    assert [sequence.sequence_id for sequence in looked_at] == [0]


def test_those_who_find_no_room_are_asked_about_once():
    """A step costs no more than a line's length, however many are refused in it."""
    driver = Driver(num_slots=64, context=64)
    driver.add(prompt(range(1, 11)), max_new_tokens=34, ignore_eos=True)
    driver.step()
    for first in range(40, 90):
        driver.add(prompt([first] * 30))
    asked = _counted(driver.sched._roster.line, "is_first_class")
    driver.plan()
    assert len(asked) == 50


def _counted(owner, name):
    """First arguments of every later call of a method."""
    seen = []
    method = getattr(owner, name)

    def call(first, *args):
        seen.append(first)
        return method(first, *args)

    setattr(owner, name, call)
    return seen


def test_waiting_for_pixels_holds_up_nobody():
    """A first-class sequence that cannot run for want of pixels lets others pass."""
    driver = Driver(max_running=1, max_wait_overtakes=1, gives_pixels=False)
    blocked = driver.add(prompt(("A", 8), [2]))
    for n in range(6):
        driver.add(prompt([n + 1]))
    while len(driver.unfinished) > 1:
        assert driver.step()
    driver.gives_pixels = True
    driver.run()
    assert driver.started == [1, 2, 3, 4, 5, 6, blocked]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 2), st.integers(0, 3)),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_nobody_is_overtaken_more_often_than_allowed(requests, bound, max_running):
    """Whatever arrives when, at most `bound` later arrivals start before a waiting sequence."""
    driver = warm_driver(max_running=max_running, max_wait_overtakes=bound, num_slots=128)
    for num_warm, num_cold, priority, num_steps in requests:
        driver.add(prompt(WARM[:num_warm], [99] * num_cold), priority=priority)
        for _ in range(num_steps):
            driver.step()
    driver.run()
    for place, sequence_id in enumerate(driver.started):
        assert sum(other > sequence_id for other in driver.started[:place]) <= bound
