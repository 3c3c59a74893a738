"""The load under which the scheduler's cost is measured is the load that is stated."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.sched_cost import NUM_RUNNING, Load, Prompts, sharegpt


def test_steps_are_of_one_size():
    """Sixteen rows, two of them new, and as many waiting after every step as before."""
    load = Load(60_000, NUM_RUNNING)
    load.fill(2_000)
    load.stagger()
    load.wait(50)
    load.steps(8)
    load.forget_times()
    load.steps(24)
    assert load.num_rows == [16] * 24
    assert load.num_new == [2] * 24
    assert load.sched.counts().waiting == 50


def test_fill_reaches_its_size_in_short_runs():
    """The tree holds the tokens asked for, about ten to a request, and nobody waits."""
    load = Load(20_000, NUM_RUNNING)
    load.fill(12_000)
    counts = load.sched.counts()
    assert 12_000 <= counts.slots_cached < 20_000
    assert counts.running == counts.waiting == 0


def test_waiting_prompts_are_of_the_lengths_stated():
    """Forty to three hundred tokens."""
    prompts = Prompts(0)
    lengths = [len(prompts.waiting()) for _ in range(500)]
    assert 40 <= min(lengths) <= max(lengths) <= 300


def test_sharegpt_prompts_have_nothing_in_common():
    """No two prompts begin with the same two tokens."""
    starts = sorted(tuple(tokens[:2].tolist()) for tokens, _ in sharegpt(300, seed=1))
    assert all(one != two for one, two in pairwise(starts))
