"""The same answer, whatever else runs, whatever is cached, however it is cut."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from plan.sched.driver import EOS, VOCAB, Driver, alone, prompt

from mmserve.core import ContextTooLong, RunnerFailed

PICTURES = {"A": 4, "B": 6, "C": 9, "D": 12}


def random_prompt(chance, *, is_atomic=False):
    """A prompt from few bases and few pictures, so that prefixes are shared."""
    parts = [[chance.randrange(1, 4) for _ in range(chance.choice([0, 0, 5, 20]))]]
    for _ in range(chance.randrange(3)):
        name = chance.choice("ABCD")
        parts += [(name, PICTURES[name]), [1] * chance.randrange(3)]
    parts.append([chance.randrange(1, 4) for _ in range(chance.randrange(1, 5))])
    namespace = chance.choice(["", "", "x"])
    return prompt(*parts, namespace=namespace, is_atomic=is_atomic)


def random_params(chance, num_prompt):
    """Sampling parameters of all kinds."""
    params = {
        "max_new_tokens": chance.choice([0, 1, 2, 5, 45]),
        "temperature": chance.choice([0.0, 1.0]),
        "min_new_tokens": chance.choice([0, 0, 3]),
        "seed": chance.randrange(100),
        "ignore_eos": chance.random() < 0.5,
        "return_logprobs": chance.random() < 0.3,
    }
    if chance.random() < 0.2:
        params["prompt_logprobs_from"] = chance.randrange(num_prompt + 1)
    return params


def random_driver(chance):
    """A driver with small pools and odd budgets."""
    return Driver(
        num_slots=chance.choice([101, 128, 300]),
        context=100,
        eos=EOS,
        chunk_tokens=chance.choice([1, 3, 8, 1024]),
        max_step_tokens=chance.choice([1, 4, 16, 2048]),
        max_running=chance.choice([1, 2, 4, 16]),
        feature_cache_tokens=chance.choice([8, 20, 1000]),
        max_step_patches=chance.choice([1, 8, 1000]),
        policy=chance.choice(["longest-prefix", "dfs-weight", "shortest-prefill", "priority"]),
        max_sweep_joiners=chance.choice([0, 2, 8]),
        radix_cache=chance.random() < 0.9,
        page_tokens=chance.choice([1, 1, 4]),
    )


def disturb(driver, chance, plan, hit):
    """Abort, break a row or a whole step, now and then; `hit` collects who was hit."""
    kind = chance.random()
    if kind < 0.02 and driver.unfinished:
        sequence_id = chance.choice(driver.unfinished)
        driver.take([driver.sched.abort(sequence_id)])
        hit.add(sequence_id)
    elif kind < 0.03 and plan is not None:
        driver.runner.fail_next(RunnerFailed("lost", step=plan.step))
        hit.update(row.sequence_id for row in plan.rows)
    elif kind < 0.04 and plan is not None:
        sequence_id = chance.choice(plan.rows).sequence_id
        driver.runner.row_errors = {sequence_id: ValueError("nan")}
        hit.add(sequence_id)


def check_idle(driver):
    """At idle all slots are free or cached, and after a flush all are free."""
    counts = driver.sched.counts()
    assert (counts.running, counts.waiting, counts.slots_held) == (0, 0, 0)
    assert counts.slots_free + counts.slots_cached == counts.slots_total
    assert sum(counts.finished.values()) == len(driver.answers)
    assert driver.sched.flush()
    driver.sched.verify()
    assert driver.sched.counts().slots_free == counts.slots_total


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_a_busy_house_answers_like_an_empty_one(seed):
    """Random requests, aborts and failures: who is not hit answers as alone without cache."""
    chance = random.Random(seed)
    driver, is_atomic = random_driver(chance), chance.random() < 0.2
    asked, hit, num_left = {}, set(), chance.randrange(1, 12)
    while num_left or driver.unfinished:
        if num_left and chance.random() < 0.5:
            num_left -= 1
            each = random_prompt(chance, is_atomic=is_atomic)
            params = random_params(chance, each.num_tokens)
            asked[driver.add(each, priority=chance.randrange(2), **params)] = each, params
        disturb(driver, chance, None, hit)
        plan = driver.plan()
        assert plan is not None or num_left or not driver.unfinished
        if plan is not None:
            disturb(driver, chance, plan, hit)
            driver.land(plan)
            driver.runner.row_errors = {}
    check_idle(driver)
    for sequence_id, (each, params) in asked.items():
        if sequence_id not in hit:
            want, got = alone(each, eos=EOS, **params), driver.answers[sequence_id]
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
            assert (got.finish, got.scores) == (want.finish, want.scores)


def test_the_accounts_never_drift():
    """After bursts of 300 requests, aborted ones and too long ones among them, all is found."""
    chance = random.Random(7)
    driver = Driver(num_slots=512, context=1000, eos=EOS, feature_cache_tokens=30)
    num_refused = 0
    for _ in range(10):
        for _ in range(30):
            if chance.random() < 0.05:
                each = prompt([chance.randrange(1, VOCAB - 1)] * 600)
            else:
                each = random_prompt(chance)
            try:
                sequence_id = driver.add(each, max_new_tokens=chance.choice([1, 8, 40]))
            except ContextTooLong:
                num_refused += 1
                continue
            if chance.random() < 0.2:
                for _ in range(chance.randrange(4)):
                    driver.step()
                update = driver.sched.abort(sequence_id)
                driver.take([update] if update else [])
        driver.run()
        counts = driver.sched.counts()
        assert (counts.running, counts.waiting, counts.slots_held) == (0, 0, 0)
        assert counts.slots_free + counts.slots_cached == 512
    assert num_refused > 0
    assert len(driver.answers) == 300 - num_refused
    last = driver.add(prompt([5] * 511), max_new_tokens=1)
    driver.run()
    assert driver.answers[last].finish.reason == "length"
    check_idle(driver)
