"""A failure ends whom it hits and leaves no trace."""

import pytest
from plan.sched.driver import Driver, alone, picture, prompt

from mmserve.core import Broken, LedgerBroken, NotFound, RunnerFailed


def test_a_failed_step_ends_its_sequences_and_is_undone():
    """All rows end with the error, and the tree is as before the step."""
    driver = Driver()
    driver.add(prompt([1, 2, 3], ("A", 6), [4]))
    driver.run()
    cached = driver.sched.counts().slots_cached
    for last in (5, 6):
        driver.add(prompt([1, 2, 3], ("B", 6), [last]))
    driver.runner.fail_next(RunnerFailed("device lost", step=9))
    driver.step()
    assert [driver.answers[n].finish.reason for n in (1, 2)] == ["error", "error"]
    assert isinstance(driver.answers[1].finish.error, RunnerFailed)
    counts = driver.sched.counts()
    assert (counts.slots_held, counts.slots_cached) == (0, cached)


def test_others_are_unharmed_by_a_failed_step():
    """A sequence that was not in the step goes on, and later ones find nothing spoiled."""
    driver = Driver(max_running=2)
    prompts = [prompt([1, 2, 3, n]) for n in range(10, 16)]
    for each in prompts:
        driver.add(each, max_new_tokens=8)
    driver.step()
    driver.runner.fail_next(RunnerFailed("device lost", step=2))
    driver.step()
    driver.run()
    for sequence_id in range(2, 6):
        want = alone(prompts[sequence_id], max_new_tokens=8).tokens
        assert driver.answers[sequence_id].tokens == want
    assert driver.sched.counts().finished["error"] == 2


def test_a_picture_of_a_failed_step_is_encoded_again():
    """Features of a failed step do not count; waiting sequences use the pixels at hand."""
    driver = Driver(max_running=1)
    for last in (5, 6):
        driver.add(prompt([1], ("A", 6), [last]))
    driver.runner.fail_next(RunnerFailed("device lost", step=1))
    driver.step()
    driver.run()
    assert driver.answers[1].tokens == alone(prompt([1], ("A", 6), [6])).tokens
    assert driver.wanted == [picture("A")]
    assert driver.runner.encodes == {picture("A"): 1}


def test_any_exception_becomes_an_error_of_ours():
    """What a device raises is wrapped, with the step."""
    driver = Driver()
    driver.add(prompt([1]))
    plan = driver.plan()
    driver.take(driver.sched.rollback(plan, ValueError("nan")))
    error = driver.answers[0].finish.error
    assert isinstance(error, RunnerFailed)
    assert error.fields == {"step": 1}


def test_a_failed_row_ends_alone():
    """Neighbours that share its prefix go on; what only it computed is forgotten."""
    driver = Driver()
    prompts = [prompt([1, 2, 3], [n] * 5) for n in (4, 5, 6)]
    for each in prompts:
        driver.add(each)
    driver.runner.row_errors = {1: ValueError("nan")}
    driver.step()
    driver.sched.verify()
    assert driver.answers[1].finish.reason == "error"
    assert isinstance(driver.answers[1].finish.error, RunnerFailed)
    driver.runner.row_errors = {}
    driver.run()
    for n in (0, 2):
        assert driver.answers[n].tokens == alone(prompts[n]).tokens
    driver.add(prompts[1])
    driver.run()
    assert driver.answers[3].last.usage.cached_tokens == 3


def test_a_row_without_its_token_is_an_error():
    """A runner that draws nothing where it should ends the sequence, not the house."""
    driver = Driver()
    driver.add(prompt([1]))
    plan = driver.plan()
    sampled = driver.runner.execute(plan)
    object.__setattr__(sampled.rows[0], "token_id", None)
    driver.take(driver.sched.commit(sampled))
    assert isinstance(driver.answers[0].finish.error, Broken)


def test_a_token_outside_the_grammar_is_an_error():
    """A grammar that refuses the drawn token ends the sequence with that error."""

    class Stubborn:
        is_finished = False

        def allowed(self):
            return None

        def accept(self, token_id):
            raise Broken("not allowed")

        def jump(self, num_settled=0, most=None):
            return None

    driver = Driver()
    driver.add(prompt([1]), matcher=Stubborn())
    driver.add(prompt([2]))
    driver.run()
    assert [answer.finish.reason for answer in driver.answers.values()] == ["error", "length"]


def test_an_abort_during_a_failed_step():
    """A sequence aborted while its step is out is not ended twice when that fails."""
    driver = Driver()
    driver.add(prompt([1, 2, 3]))
    driver.add(prompt([1, 2, 4]))
    plan = driver.plan()
    driver.take([driver.sched.abort(0)])
    driver.runner.fail_next(RunnerFailed("device lost", step=1))
    driver.land(plan)
    assert [answer.finish.reason for answer in driver.answers.values()] == ["abort", "error"]
    assert driver.sched.counts().slots_free == driver.sched.counts().slots_total


@pytest.mark.parametrize("name", ["memory", "desk", "roster"])
def test_verify_sees_what_does_not_add_up(name):
    """A lost slot, a forgotten pin or a sequence in two places is found."""
    driver = Driver()
    driver.add(prompt([1], ("A", 6), [2]))
    driver.plan()
    sched = driver.sched
    if name == "memory":
        sched._memory.pool.allocate(1)
    elif name == "desk":
        sched._desk.ledger.pin(picture("A"))
    else:
        sched._roster.running.clear()
    with pytest.raises(LedgerBroken):
        sched.verify()


def test_drawings():
    """Both drawings show what runs; other names are unknown."""
    driver = Driver(max_running=1, chunk_tokens=4)
    driver.add(prompt([1, 2], ("A", 6)), max_new_tokens=3)
    driver.add(prompt([3]))
    driver.step()
    lines = driver.sched.drawing("sched").splitlines()
    assert lines[4].split("|")[1:] == ["#", " 0= 4# 0."]
    assert lines[5].split("|")[1:] == ["-", " waits"]
    assert "text 2, picture #0 [0, 2)" in driver.sched.drawing("radix")
    for room in ("radix", "sched"):
        assert driver.sched.drawing(room, "svg").startswith("<svg ")
    with pytest.raises(NotFound):
        driver.sched.drawing("kitchen")
