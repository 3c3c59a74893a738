"""The fake runner's steps under way: told at the finish, in order, twice at most."""

from __future__ import annotations

import numpy as np
import pytest

from mmserve.core import (
    ForwardPlan,
    LedgerBroken,
    PlanRow,
    RowSampling,
    RunnerFailed,
    SamplingParams,
)
from mmserve.testing.fake_runner import FakeRunner


def plan(step, token_ids, slots, start=0):
    """A step of one row that draws."""
    sampling = RowSampling(SamplingParams(temperature=0.0), 0, 0, np.zeros(0, dtype=np.int64))
    row = PlanRow(7, start, np.array(token_ids[start:]), np.array(slots), sampling=sampling)
    return ForwardPlan(step, (row,))


def test_steps_launched_ahead_give_what_executed_ones_give():
    """The second step reads what the first one, not yet finished, has written."""
    plans = [plan(1, [1, 2], [0, 1]), plan(2, [1, 2, 3], [0, 1, 2], start=2)]
    executed = FakeRunner(10, 100)
    expected = [executed.execute(one).rows[0].token_id for one in plans]
    ahead = FakeRunner(10, 100)
    under_way = [ahead.launch(one) for one in plans]
    assert [one.finish().rows[0].token_id for one in under_way] == expected


def test_steps_are_finished_once_and_in_order():
    """A later step cannot be finished before an earlier one, and none twice."""
    runner = FakeRunner(10, 100)
    first, second = (runner.launch(plan(n, [1], [n])) for n in (1, 2))
    with pytest.raises(LedgerBroken, match="out of turn"):
        second.finish()
    first.finish()
    with pytest.raises(LedgerBroken, match="out of turn"):
        first.finish()
    assert second.finish().step == 2


def test_no_more_than_two_steps_are_under_way():
    """A third launch is refused until one of them is finished."""
    runner = FakeRunner(10, 100)
    first = runner.launch(plan(1, [1], [1]))
    runner.launch(plan(2, [1], [2]))
    with pytest.raises(LedgerBroken, match="more than two"):
        runner.launch(plan(3, [1], [3]))
    first.finish()
    assert runner.launch(plan(3, [1], [3])) is not None


@pytest.mark.parametrize("is_late", [False, True])
def test_a_failure_comes_at_the_launch_or_at_the_finish(is_late):
    """As the test says; its slots are spoiled either way, and the next step works."""
    runner = FakeRunner(10, 100)
    good = runner.execute(plan(1, [1, 2], [0, 1])).rows[0].token_id
    runner.fail_next(RunnerFailed("injected", step=2), is_late=is_late)
    if is_late:
        pending = runner.launch(plan(2, [1, 2], [0, 1]))
        with pytest.raises(RunnerFailed):
            pending.finish()
    else:
        with pytest.raises(RunnerFailed):
            runner.launch(plan(2, [1, 2], [0, 1]))
    assert runner.execute(plan(3, [1, 2], [0, 1])).rows[0].token_id == good
