"""The scheduler keeps its promises under any load; the long run is `benchmarks.soak`."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sched.driver import Driver, prompt
from plan.sched.machine import Machine, random_config

from mmserve.core import RunnerFailed


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32))
def test_promises_hold_under_any_load(seed):
    """Budgets, ledgers, order, shares, accounts, endings and answers, after every step."""
    Machine(seed, num_steps=40).run()


@pytest.mark.parametrize("seed", range(4))
def test_promises_hold_in_longer_runs(seed):
    """The same over more steps of a few fixed loads."""
    machine = Machine(1_000_000 + seed, num_steps=100)
    machine.run()
    assert machine.counts["steps"] >= 100


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_failure_forgets_nothing_that_was_cached(is_whole):
    """What a failed row or step had from the tree is still there for the next one."""
    driver = Driver()
    driver.add(prompt(range(1, 41)), max_new_tokens=1)
    driver.run()
    unlucky = driver.add(prompt(range(1, 41), [50] * 5))
    plan = driver.plan()
    if is_whole:
        driver.runner.fail_next(RunnerFailed("lost", step=plan.step))
    else:
        driver.runner.row_errors = {unlucky: ValueError("nan")}
    driver.land(plan)
    after = driver.add(prompt(range(1, 41), [50] * 5), max_new_tokens=1)
    driver.run()
    assert driver.answers[unlucky].finish.reason == "error"
    assert driver.answers[after].last.usage.cached_tokens == 40


def test_all_configurations_come_up():
    """The loads are not all of one kind."""
    drawn = [random_config(random.Random(seed))[1] for seed in range(200)]
    for name in ("policy", "eviction", "fairness", "radix_cache", "page_tokens", "max_passes"):
        assert len({getattr(config, name) for config in drawn}) > 1
    assert {config.policy for config in drawn} == {
        "longest-prefix",
        "fcfs",
        "priority",
        "dfs-weight",
        "shortest-prefill",
        "random",
    }
