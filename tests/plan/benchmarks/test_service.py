"""The books that the fairness benchmark keeps, and the simulated machine they are kept on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fairness import SCENARIOS, ServiceAccount, run
from benchmarks.service import GapMeter
from benchmarks.simulated import (
    VOCAB_SIZE,
    Arrival,
    Segment,
    SimulatedClock,
    SimulatedRunner,
    StepCost,
    play,
    prompt_of,
)
from mmserve.core import SchedConfig
from mmserve.sched import Scheduler

COST = StepCost(base_ms=5.0, prefill_token_ms=1.0, decode_row_ms=2.0, patch_ms=0.5)
SHARED = Segment("shared", 40)


def request(client, *segments, at_s=0.0, num_answer=1) -> Arrival:
    """One request."""
    return Arrival(at_s=at_s, client=client, segments=segments, num_answer=num_answer)


def played(arrivals, **config):
    """All steps, the books and the clock at the end."""
    clock = SimulatedClock()
    config = SchedConfig(**config)
    sched = Scheduler(
        config, num_slots=2048, context_length=1024, vocab_size=VOCAB_SIZE, clock=clock
    )
    account = ServiceAccount(arrivals, config)
    steps = []
    for step in play(sched, SimulatedRunner(COST, clock), clock, arrivals):
        account.take(step)
        steps.append(step)
    return steps, account, clock


def test_step_takes_what_it_computes():
    """A step's time is a fixed part and that of its prompt tokens, decode rows and patches."""
    steps, _, clock = played([request("a", Segment("i", 8, 20), SHARED, num_answer=2)])
    assert [round(s.ended_s - s.started_s, 6) for s in steps] == [0.063, 0.007]
    assert clock.now_s == pytest.approx(0.070)


def test_clock_waits_for_arrivals():
    """Time without requests passes in one leap, and no wait is booked for it."""
    steps, account, _ = played([request("a", SHARED, at_s=3.0)])
    assert steps[0].started_s == 3.0
    assert account.waits_s["a"] == [0.0]


def test_equal_names_are_equal_tokens():
    """Segments of one name give the same tokens in any prompt, others do not."""
    one, two = (prompt_of([SHARED, Segment(name, 5)]).token_ids for name in ("x", "y"))
    assert (one[:40] == two[:40]).all()
    assert (one[40:] != two[40:]).any()


def test_answers_are_as_long_as_asked():
    """Every request ends once, with as many tokens as it asked for."""
    arrivals = [request("a", Segment(f"{n}", 9), num_answer=n + 1) for n in range(5)]
    steps, _, _ = played(arrivals)
    ends = [u for step in steps for u in step.updates if u.finish is not None]
    assert sorted(u.usage.completion_tokens for u in ends) == [1, 2, 3, 4, 5]


def test_shared_work_is_split():
    """A common prefix is charged in parts to those who wait for it, the rest to its owner."""
    arrivals = [
        request("a", SHARED, Segment("x", 10)),
        request("b", SHARED, Segment("y", 20)),
        request("b", SHARED, Segment("z", 30)),
    ]
    _, account, _ = played(arrivals, decode_cost=2.0)
    third = pytest.approx(40 / 3)
    assert account.served["a"] - 10 - 2 == third
    assert account.served["b"] - 50 - 4 == pytest.approx(80 / 3)


def test_patches_are_charged_once():
    """A picture that two clients ask about is encoded once, and each pays half."""
    picture = Segment("i", 8, 20)
    arrivals = [request("a", picture, Segment("x", 5)), request("b", picture, Segment("y", 5))]
    _, account, _ = played(arrivals, patch_cost=0.25, decode_cost=2.0)
    assert account.served == {"a": 2.5 + 4 + 5 + 2, "b": 2.5 + 4 + 5 + 2}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 30), st.integers(1, 5)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_books_add_up(drawn):
    """Served units are prompt tokens computed and answers, whoever paid; nothing is owed."""
    arrivals = [
        request(c, Segment(f"p{p}", 17), Segment(f"u{n}", k), at_s=n / 50, num_answer=a)
        for n, (c, p, k, a) in enumerate(drawn)
    ]
    steps, account, _ = played(arrivals, decode_cost=2.0, max_running=3, chunk_tokens=16)
    num_prompt = sum(
        max(0, min(arrivals[row.sequence_id].num_prompt - row.start, len(row.token_ids)))
        for step in steps
        for row in step.plan.rows
    )
    num_answers = sum(arrival.num_answer for arrival in arrivals)
    assert sum(account.served.values()) == pytest.approx(num_prompt + 2 * num_answers)
    assert account.num_prompt_computed == num_prompt
    assert account.owed == pytest.approx(dict.fromkeys(account.clients, 0.0))
    assert set(account.waiting.values()) == {0}
    assert sum(map(len, account.waits_s.values())) == len(arrivals)


def test_gap_counts_only_common_waits():
    """Service while one of two clients has nothing waiting widens no gap."""
    meter = GapMeter([1.0, 1.0])
    meter.take([100.0, 0.0], [True, False])
    meter.take([110.0, 0.0], [True, True])
    meter.take([110.0, 4.0], [True, True])
    assert (meter.since_start, meter.any_interval) == (10.0, 10.0)


def test_gap_of_any_interval_sees_the_swing():
    """A client ahead by 10 that falls behind by 5 is 15 apart within the interval between."""
    meter = GapMeter([1.0, 2.0])
    meter.take([10.0, 0.0], [True, True])
    meter.take([10.0, 30.0], [True, True])
    assert (meter.since_start, meter.any_interval) == (10.0, 15.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans())))
def test_gap_is_the_widest_of_all_intervals(steps):
    """The meter agrees with a look at every interval."""
    meter = GapMeter([1.0, 1.0])
    served, levels, widest = np.zeros(2), [0.0], 0.0
    for one, two, *waits in steps:
        served += (one, two)
        meter.take(served.tolist(), waits)
        levels = [*levels, levels[-1] + one - two] if all(waits) else [0.0]
        widest = max(widest, max(levels) - min(levels))
    assert meter.any_interval == widest


@pytest.mark.parametrize("make", SCENARIOS)
def test_scenarios_run_to_their_end(make):
    """A small trace of every scenario is served to the last request, the same twice."""
    scenario = make(np.random.default_rng(0), 0.01)
    first, second = (run(scenario, SchedConfig()) for _ in range(2))
    assert sum(map(len, first.account.waits_s.values())) == len(scenario.arrivals)
    assert first.makespan_s == second.makespan_s
    assert first.account.served == second.account.served
