"""Every sequence ends exactly once, for the right reason."""

import pytest
from plan.sched.driver import EOS, VOCAB, Driver, ListMatcher, prompt

from mmserve.core import Finish, NotFound


def counting(tokens):
    """A rule: one more than the last token."""
    return tokens[-1] + 1


def ended(driver, sequence_id=0):
    """Tokens and finish after all have ended."""
    driver.run()
    answer = driver.answers[sequence_id]
    return answer.tokens, answer.finish


def test_length():
    """The answer ends after `max_new_tokens`."""
    driver = Driver(rule=counting)
    driver.add(prompt([10]), max_new_tokens=3)
    assert ended(driver) == ([11, 12, 13], Finish("length"))


def test_the_end_token_stops_and_counts():
    """The model's end token ends the answer, is reported, and counts."""
    driver = Driver(rule=lambda tokens: EOS if len(tokens) == 3 else 9)
    driver.add(prompt([10]), max_new_tokens=30)
    assert ended(driver) == ([9, 9, EOS], Finish("stop", matched=EOS))
    assert driver.answers[0].last.usage.completion_tokens == 3


def test_the_end_token_can_be_ignored():
    """With `ignore_eos` the end token is a token like others."""
    driver = Driver(rule=lambda tokens: EOS)
    driver.add(prompt([10]), max_new_tokens=3, ignore_eos=True)
    assert ended(driver) == ([EOS] * 3, Finish("length"))


def test_stop_tokens():
    """A request's own stop tokens end it."""
    driver = Driver(rule=counting)
    driver.add(prompt([10]), max_new_tokens=30, stop_token_ids=(50, 12))
    assert ended(driver) == ([11, 12], Finish("stop", matched=12))


def test_stop_tokens_that_the_vocabulary_lacks_do_nothing():
    """They are neither banned nor waited for."""
    driver = Driver()
    foreign = (VOCAB, -1, 119690)
    driver.add(prompt([1, 2]), stop_token_ids=foreign, min_new_tokens=2, ignore_eos=True)
    plan = driver.plan()
    assert plan.rows[0].sampling.banned_ids == ()
    driver.land(plan)
    driver.run()
    assert driver.answers[0].finish == Finish("length")


def test_nothing_to_generate():
    """With `max_new_tokens` 0 the prompt is computed and cached, and nothing drawn."""
    driver = Driver()
    driver.add(prompt([1, 2, 3]), max_new_tokens=0)
    assert ended(driver) == ([], Finish("length"))
    assert driver.plans[-1].rows[0].sampling is None
    assert driver.answers[0].last.usage.completion_tokens == 0
    driver.add(prompt([1, 2, 3, 4]), max_new_tokens=0)
    driver.run()
    assert driver.answers[1].last.usage.cached_tokens == 3


def test_nothing_to_generate_but_logprobs():
    """Scoring with log-probabilities reports the likeliest next token, uncounted."""
    driver = Driver()
    driver.add(prompt([1, 2, 3]), max_new_tokens=0, return_logprobs=True, temperature=1.0)
    greedy = Driver()
    greedy.add(prompt([1, 2, 3]), max_new_tokens=1)
    assert ended(driver)[0] == ended(greedy)[0]
    assert driver.answers[0].last.usage.completion_tokens == 0
    assert driver.answers[0].last.logprob is not None


def test_a_finished_grammar_ends_the_answer():
    """When only an end token may come, the answer ends without it."""
    driver = Driver()
    driver.add(prompt([1]), matcher=ListMatcher([40], [41, 42]), max_new_tokens=10)
    tokens, finish = ended(driver)
    assert (tokens[0], tokens[1] in (41, 42), finish) == (40, True, Finish("stop"))


def test_an_end_token_within_a_grammar_ends_it():
    """A grammar that allows the end token is not moved by it."""
    matcher = ListMatcher([40], [EOS])
    driver = Driver(rule=lambda tokens: EOS)
    driver.add(prompt([1]), matcher=matcher, max_new_tokens=10, ignore_eos=True)
    assert ended(driver) == ([40, EOS], Finish("stop", matched=EOS))
    assert matcher.accepted == [40]


def test_the_engine_ends_a_sequence_at_a_stop_text():
    """`finish` ends with the given reason, and keeps the KV findable."""
    driver = Driver(rule=counting)
    driver.add(prompt([10]), max_new_tokens=30)
    for _ in range(4):
        driver.step()
    driver.take([driver.sched.finish(0, Finish("stop", matched="x"))])
    assert driver.answers[0].finish == Finish("stop", matched="x")
    counts = driver.sched.counts()
    assert (counts.slots_held, counts.slots_cached) == (0, 4)
    with pytest.raises(NotFound):
        driver.sched.finish(0, Finish("stop"))


def test_aborts_waiting_and_running():
    """An abort ends a sequence wherever it is, once."""
    driver = Driver(max_running=1)
    driver.add(prompt([1, 2]), max_new_tokens=30)
    driver.add(prompt([3]))
    driver.step()
    for sequence_id in (0, 1):
        driver.take([driver.sched.abort(sequence_id)])
        assert driver.sched.abort(sequence_id) is None
    counts = driver.sched.counts()
    assert (counts.running, counts.waiting, counts.slots_held) == (0, 0, 0)
    assert counts.finished["abort"] == 2
    assert not driver.step()


def test_an_abort_while_the_step_is_out_keeps_its_slots_until_then():
    """Slots that the device is writing are not given to others."""
    driver = Driver()
    driver.add(prompt([1, 2, 3]), max_new_tokens=30)
    driver.add(prompt([1, 2, 3, 4]), max_new_tokens=30)
    plan = driver.plan()
    driver.take([driver.sched.abort(0)])
    driver.sched.verify()
    assert driver.sched.counts().slots_held == 4
    assert not driver.sched.flush()
    driver.land(plan)
    assert driver.answers[0].tokens == []
    driver.take([driver.sched.abort(1)])
    assert driver.sched.counts().slots_held == 0


def test_flushing_forgets_all_if_nobody_runs():
    """After a flush every slot is free; while sequences run nothing is forgotten."""
    driver = Driver()
    driver.add(prompt([1], ("A", 6), [2]))
    driver.step()
    assert not driver.sched.flush()
    driver.run()
    assert driver.sched.flush()
    counts = driver.sched.counts()
    assert (counts.slots_free, counts.feature_tokens) == (counts.slots_total, 0)


def test_counters_add_up():
    """Totals say what was computed, cached, generated and how sequences ended."""
    driver = Driver(rule=lambda tokens: EOS if len(tokens) > 12 else 9)
    driver.add(prompt([1] * 10), max_new_tokens=20)
    driver.add(prompt([1] * 10, [2]), max_new_tokens=2)
    driver.run()
    counts = driver.sched.counts()
    assert counts.prompt_tokens_computed == 10 + 1
    assert counts.cached_tokens == 10
    assert counts.generated_tokens == 4 + 2
    assert counts.tokens_computed == driver.runner.num_tokens == 11 + 3 + 1
    assert counts.steps == driver.runner.num_steps == 4
    assert counts.finished == {"stop": 1, "length": 1, "abort": 0, "error": 0}
