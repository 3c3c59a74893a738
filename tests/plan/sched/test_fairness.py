"""The order of the waiting: prefix first, shares between clients, and nobody waits for ever."""

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


def room_of_sweep(num_began, few):
    """How many may join a sweep that began with so many."""
    return max(few, few * (num_began - few))


# One client


def test_longer_cached_prefixes_go_first():
    """In a static line those with more cached tokens start first, ties by arrival."""
    driver = warm_driver(max_running=1)
    cold = driver.add(prompt([99] * 5))
    some = driver.add(prompt(WARM[:10], [99]))
    most = driver.add(prompt(WARM[:30], [99]))
    also = driver.add(prompt(WARM[:10], [98]))
    driver.run()
    assert driver.started == [most, some, also, cold]


def test_a_branch_is_served_as_a_whole():
    """Those below what has just been computed come before another branch begins."""
    driver = Driver(max_running=1)
    left, right = [50] * 10, [60] * 10
    ids = [driver.add(prompt(branch, [n])) for n in range(3) for branch in (left, right)]
    driver.run()
    assert driver.started == [*ids[0::2], *ids[1::2]]


@pytest.mark.parametrize("few", [0, 1, 5, 16])
def test_a_cold_request_is_not_starved(few):
    """Against an endless flow of warm ones a cold one starts when its sweep is full."""
    driver = warm_driver(max_running=2, max_sweep_joiners=few)
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
    assert len(later) <= room_of_sweep(7, few)


def test_without_fairness_a_cold_request_waits_as_long_as_warm_ones_come():
    """Pure locality is what one flag gives, with what it costs."""
    driver = warm_driver(max_running=2, fairness=False)
    last = itertools.count()
    cold = driver.add(prompt([99] * 20), max_new_tokens=2)
    for _ in range(200):
        while len(driver.unfinished) < 7:
            driver.add(prompt(WARM, [next(last) % 100]), max_new_tokens=2)
        assert driver.step()
    assert cold not in driver.started
    driver.run()
    assert driver.started[-1] == cold


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 3)),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_nobody_is_passed_by_more_than_two_sweeps(requests, few, max_running):
    """Of those that came later, at most a lineful and a sweep's joiners start before one."""
    driver = warm_driver(max_running=max_running, max_sweep_joiners=few, num_slots=2048)
    most_waiting = 0
    for number, (num_warm, num_cold, num_steps) in enumerate(requests):
        driver.add(prompt(WARM[:num_warm], [41 + number] * num_cold))
        most_waiting = max(most_waiting, driver.sched.counts().waiting)
        for _ in range(num_steps):
            driver.step()
    driver.run()
    bound = most_waiting + room_of_sweep(most_waiting, few)
    for place, sequence_id in enumerate(driver.started):
        assert sum(other > sequence_id for other in driver.started[:place]) <= bound


@pytest.mark.parametrize("max_passes", [0, 1, 4])
def test_a_large_request_is_not_passed_for_ever_by_small_ones(max_passes):
    """One that waits for slots lets so many others start, and then no more."""
    driver = Driver(num_slots=100, max_passes=max_passes)
    driver.add(prompt([5] * 40), max_new_tokens=30, ignore_eos=True)
    driver.step()
    large = driver.add(prompt([6] * 60), max_new_tokens=30)
    for n in range(40):
        driver.add(prompt([7 + n, n]), max_new_tokens=2)
    driver.run()
    started = driver.started
    assert len([n for n in started[: started.index(large)] if n > large]) == max_passes


@pytest.mark.parametrize("max_passes", [0, 1, 4])
def test_a_large_request_comes_in_though_small_ones_never_end(max_passes):
    """Against an endless flow with a cached prefix, one that needs most slots starts too."""
    driver = Driver(num_slots=100, max_passes=max_passes, max_running=8)
    for n in range(10):
        driver.add(prompt([5] * 8, [n + 1]), max_new_tokens=4)
    driver.step()
    large = driver.add(prompt([6] * 80), max_new_tokens=10)
    last = itertools.count(20)
    while large not in driver.started:
        while len(driver.unfinished) < 11:
            driver.add(prompt([5] * 8, [next(last) % 100]), max_new_tokens=4)
        assert driver.step()
    later = [n for n in driver.started[: driver.started.index(large)] if n > large]
    assert len(later) <= 11 + room_of_sweep(11, 8) + max_passes


@pytest.mark.parametrize("max_passes", [0, 2, 8])
def test_a_large_picture_comes_in_though_small_ones_never_end(max_passes):
    """One too large for the features beside others gets its queue; text passes it meanwhile."""
    driver = Driver(
        feature_cache_tokens=20, max_passes=max_passes, chunk_tokens=3, max_running=3
    )
    last = itertools.count()

    def more():
        while len(driver.unfinished) < 8:
            name = f"small {next(last)}"
            driver.add(prompt((name, 9), [2]), max_new_tokens=2)

    more()
    driver.step()
    large = driver.add(prompt(("LARGE", 19), [2]), max_new_tokens=2)
    text = driver.add(prompt([5] * 6), max_new_tokens=2)
    while large not in driver.started:
        more()
        assert driver.step()
    later = [n for n in driver.started[: driver.started.index(large)] if n > text]
    assert len(later) <= 8 + room_of_sweep(8, 8) + max_passes
    driver.run()


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
    assert looked_at == []


def test_those_who_find_no_room_cost_few_looks():
    """A step asks about four that find no slots, however many wait."""
    driver = Driver(num_slots=64, context=64)
    driver.add(prompt(range(1, 11)), max_new_tokens=34, ignore_eos=True)
    driver.step()
    for first in range(40, 90):
        driver.add(prompt([first] * 30))
    looked_at = _counted(driver.sched._memory, "look")
    driver.plan()
    assert len({sequence.sequence_id for sequence in looked_at}) <= 1 + 4


def _counted(owner, name):
    """First arguments of every later call of a method."""
    seen = []
    method = getattr(owner, name)

    def call(first, *args):
        seen.append(first)
        return method(first, *args)

    setattr(owner, name, call)
    return seen


@pytest.mark.parametrize("fairness", [True, False])
def test_waiting_for_pixels_holds_up_nobody(fairness):
    """One that cannot run for want of pixels lets others start, and comes when it can."""
    driver = Driver(max_running=1, max_passes=1, gives_pixels=False, fairness=fairness)
    blocked = driver.add(prompt(("A", 8), [2]))
    for n in range(6):
        driver.add(prompt([n + 1]))
    while len(driver.unfinished) > 1:
        assert driver.step()
    driver.gives_pixels = True
    driver.run()
    assert driver.started == [1, 2, 3, 4, 5, 6, blocked]


# Policies


def test_fcfs_takes_them_as_they_come():
    """Policy fcfs goes by arrival, also where one prompt begins another."""
    driver = warm_driver(max_running=1, policy="fcfs")
    ids = [
        driver.add(prompt([99] * 5)),
        driver.add(prompt(WARM[:30], [99])),
        driver.add(prompt([98] * 9)),
        driver.add(prompt([98] * 5)),
        driver.add(prompt([98] * 2)),
    ]
    driver.run()
    assert driver.started == ids


@pytest.mark.parametrize(
    "policy", ["longest-prefix", "dfs-weight", "shortest-prefill", "priority"]
)
def test_priority_goes_before_the_prefix(policy):
    """Higher priority starts first under every policy that knows priorities."""
    driver = warm_driver(max_running=1, policy=policy)
    low = driver.add(prompt(WARM, [99]))
    high = driver.add(prompt([99] * 5), priority=1)
    driver.run()
    assert driver.started == [high, low]


def test_shortest_prefill_takes_what_lacks_least():
    """Tokens to compute decide, not tokens cached."""
    driver = warm_driver(max_running=1, policy="shortest-prefill")
    long = driver.add(prompt(WARM, [99] * 20))
    short = driver.add(prompt([98] * 5))
    middle = driver.add(prompt(WARM, [97] * 10))
    driver.run()
    assert driver.started == [short, middle, long]


def test_dfs_weight_takes_the_branch_that_most_wait_for():
    """A heavier branch is served before a deeper one, as long as it is heavier."""
    driver = Driver(max_running=1, policy="dfs-weight")
    for branch in (WARM, [50] * 20):
        driver.add(prompt(branch), max_new_tokens=1)
    driver.run()
    driver.started.clear()
    deep = driver.add(prompt(WARM, [1]))
    heavy = [driver.add(prompt([50] * 20, [n])) for n in (1, 2, 3)]
    driver.run()
    assert driver.started == [heavy[0], heavy[1], deep, heavy[2]]


def test_random_is_neither_arrival_nor_prefix():
    """Which goes first is fixed by arrival numbers, in no order anybody would want."""
    orders = []
    for _ in range(2):
        driver = warm_driver(max_running=1, policy="random")
        ids = [driver.add(prompt(WARM[: n + 1], [99])) for n in range(20)]
        driver.run()
        assert sorted(driver.started) == ids
        orders.append(driver.started)
    assert orders[0] == orders[1]
    assert orders[0] not in (ids, ids[::-1])


# Several clients


def backlog(driver, clients, make, num_each):
    """Keep so many of each client waiting or running."""
    for client in clients:
        live = sum(seq.spec.client == client for seq in driver.sched._roster.live.values())
        for _ in range(num_each - live):
            make(client)


def flood(clients, num_steps, lengths, **config):
    """Clients with endless work of their own for so many steps; levels after each."""
    driver = Driver(num_slots=4096, context=1000, **config)
    serial = itertools.count()
    levels, most_running = [], 0.0

    def make(client):
        num_prompt, num_new = lengths[client]
        number = next(serial)
        token_ids = [1 + number % 100, 1 + number // 100 % 100, *[7] * num_prompt][:num_prompt]
        driver.add(
            prompt(token_ids, namespace=client),
            client=client,
            max_new_tokens=num_new,
            ignore_eos=True,
        )

    fairness, config = driver.sched._fairness, driver.sched._config
    for _ in range(num_steps):
        backlog(driver, clients, make, num_each=2 * min(config.max_running, 8) + 1)
        plan = driver.sched.plan()
        running = driver.sched._roster.running.values()
        for client in clients:
            num_prompt, num_new = lengths[client]
            num_running = sum(seq.spec.client == client for seq in running)
            cost = num_running * (num_prompt + config.decode_cost * num_new)
            most_running = max(most_running, cost / fairness._weights.get(client, 1.0))
        driver.take(driver.sched.commit(driver.runner.execute(plan)))
        levels.append({client: fairness.level(client) for client in clients})
    return driver, levels, most_running


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 60), st.integers(1, 12)), min_size=2, max_size=4),
    st.sampled_from([1, 20, 100, 1000]),
    st.sampled_from([(), (("a", 3.0),), (("a", 0.25), ("b", 2.0))]),
    st.integers(1, 4),
)
def test_service_of_backlogged_clients_stays_within_the_bound(lengths, quantum, weights, rows):
    """Weighted service differs by at most a quantum and what one of them has running."""
    by_client = dict(zip("abcd", lengths, strict=False))
    _, levels, most_running = flood(
        list(by_client),
        150,
        by_client,
        quantum_tokens=quantum,
        client_weights=weights,
        max_running=rows,
        chunk_tokens=32,
        max_step_tokens=64,
    )
    for level in levels:
        assert max(level.values()) - min(level.values()) <= quantum + most_running


def test_shares_follow_weights():
    """A client of weight 3 is served three times as much as one of weight 1."""
    driver, _, _ = flood(
        ["a", "b"],
        800,
        {"a": (20, 3), "b": (20, 3)},
        client_weights=(("a", 3.0),),
        quantum_tokens=100,
        max_running=1,
    )
    served = driver.sched.service()
    assert served["a"] / served["b"] == pytest.approx(3.0, rel=0.1)


def test_heavy_and_light_requests_get_equal_service():
    """Clients are equal in tokens, not in requests."""
    driver, _, _ = flood(
        ["a", "b"], 800, {"a": (90, 5), "b": (6, 1)}, quantum_tokens=100, max_running=1
    )
    served = driver.sched.service()
    assert served["a"] / served["b"] == pytest.approx(1.0, rel=0.1)


def test_locality_decides_within_a_quantum():
    """A client's branch is served on while it has credit; a smaller quantum changes sooner."""
    switches = {}
    for quantum in (10, 200):
        driver = Driver(max_running=1, quantum_tokens=quantum)
        for n in range(10):
            for client in "ab":
                driver.add(prompt([ord(client)] * 20, [n + 1]), client=client)
        driver.run()
        clients = [n % 2 for n in driver.started]
        switches[quantum] = sum(x != y for x, y in itertools.pairwise(clients))
    assert switches[10] > switches[200]


def test_a_flood_of_warm_requests_does_not_keep_a_cold_client_waiting():
    """A newcomer with another prompt starts within about a quantum of the flood's service."""
    driver = warm_driver(max_running=2, quantum_tokens=50)
    last = itertools.count()

    def more():
        while len(driver.unfinished) < 20:
            driver.add(prompt(WARM, [next(last) % 100]), client="flood", max_new_tokens=2)

    for _ in range(30):
        more()
        driver.step()
    cold = driver.add(prompt([99] * 20), client="cold", max_new_tokens=2)
    before = driver.sched.service()["flood"]
    while cold not in driver.started:
        more()
        assert driver.step()
    assert driver.sched.service()["flood"] - before <= 50 + 2 * (41 + 2 * 2)


@pytest.mark.parametrize("has_running", [False, True])
def test_credit_is_not_saved(has_running):
    """Who had nothing to start for a long time is not served alone afterwards.

    That it had something running meanwhile, which cost little, makes no difference.
    """
    driver = Driver(
        num_slots=4096, context=1000, max_running=2, quantum_tokens=50, decode_cost=0.0
    )
    if has_running:
        driver.add(prompt([5, 5]), client="late", max_new_tokens=400, ignore_eos=True)
    serial = itertools.count(1)

    def make(client, num_new=1):
        number = next(serial)
        each = prompt([number % 100, number // 100, *[9] * 28], namespace=client)
        return driver.add(each, client=client, max_new_tokens=num_new)

    for _ in range(100):
        while sum(n in driver.unfinished for n in driver.answers) < 4:
            make("busy")
        assert driver.step()
    mark = len(driver.started)
    late = {make("late") for _ in range(40)}
    while driver.sched.counts().waiting and len(driver.started) < mark + 20:
        while driver.sched.report().waiting.get("busy", 0) < 2:
            make("busy")
        assert driver.step()
    num_late = sum(n in late for n in driver.started[mark : mark + 20])
    assert 7 <= num_late <= 13


def test_a_higher_class_goes_first():
    """Clients of a lower class start only when a higher one has nothing to start."""
    driver = Driver(max_running=1, client_priorities=(("gold", 1), ("base", -1)))
    names = ["base", "", "gold", "base", "", "gold"]
    for n, client in enumerate(names):
        driver.add(prompt([n + 1] * 20), client=client)
    driver.run()
    assert [names[n] for n in driver.started] == ["gold"] * 2 + [""] * 2 + ["base"] * 2


def test_new_clients_without_end_do_not_starve_a_waiting_one():
    """Few clients may come into a round; a cold one starts before it is over."""
    driver = warm_driver(max_running=2, quantum_tokens=50)
    fresh = itertools.count()
    for _ in range(6):
        driver.add(prompt(WARM, [3]), max_new_tokens=2, client=f"new {next(fresh)}")
    cold = driver.add(prompt([99] * 20), max_new_tokens=2, client="cold")
    while cold not in driver.started:
        while len(driver.unfinished) < 7:
            driver.add(prompt(WARM, [3]), max_new_tokens=2, client=f"new {next(fresh)}")
        assert driver.step()
    assert len(driver.started) <= 24


def test_credit_is_not_saved_while_pixels_are_awaited():
    """A client whose only request waits for pixels comes back with one round's credit."""
    driver = Driver(max_running=1, quantum_tokens=20, gives_pixels=False)
    driver.add(prompt(("A", 8), [2]), client="blocked")
    for n in range(40):
        driver.add(prompt([n + 1] * 10), max_new_tokens=2, client="busy")
    while len(driver.unfinished) > 1:
        assert driver.step()
    fairness = driver.sched._fairness
    driver.provide()
    driver.step()
    assert fairness.level("blocked") >= fairness._round(0) * 20 - 20
