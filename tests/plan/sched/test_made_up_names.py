"""Callers who make up names: they cost nothing once they are gone, and stop nobody."""

import pytest
from plan.sched.driver import Driver, prompt

MOST_IDLE = 4096
ROOM = 200


def test_names_are_forgotten_without_fairness():
    """Where no turns are taken, clients without work are forgotten all the same."""
    driver = Driver(fairness=False)
    for number in range(MOST_IDLE + ROOM):
        sequence_id = driver.add(prompt([1]), client=f"name {number}", max_new_tokens=1)
        driver.take(driver.sched.commit(driver.runner.execute(driver.sched.plan())))
        assert driver.answers[sequence_id].finish is not None
    assert len(driver.sched.service()) <= MOST_IDLE


def test_who_leaves_before_the_round_ends_is_forgotten():
    """Names that come and go while one request runs leave neither service nor entries."""
    driver = Driver(max_running=1)
    driver.add(prompt([1]), client="long", max_new_tokens=100)
    driver.step()
    for number in range(MOST_IDLE + ROOM):
        sequence_id = driver.add(prompt([2, 3]), client=f"name {number}")
        driver.take([driver.sched.abort(sequence_id)])
    queues = driver.sched._line._queues
    assert len(driver.sched._fairness.served()) <= MOST_IDLE + 1
    for lane in queues._lanes.values():
        assert max(map(len, (lane.front, lane.resting, lane.passed))) < ROOM


def test_crowds_of_those_who_left_are_gone():
    """A node where somebody always hangs keeps no crowd of a client that has left it."""
    driver = Driver(max_running=1)
    driver.add(prompt([1]), client="long", max_new_tokens=100)
    driver.step()
    driver.add(prompt([1, 2]), client="stays")
    for number in range(ROOM):
        sequence_id = driver.add(prompt([1, 2, 3]), client=f"name {number}")
        driver.take([driver.sched.abort(sequence_id)])
    crowds = driver.sched._line._queues.order._crowds
    assert {name for crowd in crowds.values() for name in crowd} == {"stays"}


@pytest.mark.parametrize("weight", [1e-6, 1e-3, 1e6])
def test_everybody_starts_whatever_the_weights(weight):
    """A weight so small that a quantum is lost in rounding keeps nobody from starting."""
    driver = Driver(client_weights=(("small", weight),))
    for number in range(12):
        driver.add(prompt([number + 1] * 5), client=("small", "other")[number % 2])
    driver.run(1000)
    assert not driver.unfinished


def test_any_text_may_be_a_namespace():
    """Half of a surrogate pair in a salt does not keep the tree from being drawn."""
    driver = Driver()
    driver.add(prompt([1, 2, 3], namespace="\ud800"))
    driver.run()
    assert "salt:" in driver.sched.drawing("radix")
