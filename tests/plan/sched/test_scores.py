"""Scores of prompt tokens are complete and the same, cold or warm."""

import pytest
from plan.sched.driver import Driver, alone, prompt

PROMPT = prompt(range(1, 41))


def scores(driver, **params):
    """Positions and scores of one more request for PROMPT."""
    sequence_id = driver.add(PROMPT, max_new_tokens=0, **params)
    driver.run()
    return driver.answers[sequence_id].scores


@pytest.mark.parametrize("first", [0, 1, 20, 39, 40])
@pytest.mark.parametrize("chunk_tokens", [3, 100])
def test_scores_are_the_same_cold_and_warm(first, chunk_tokens):
    """Every position from the one asked for has its score, whatever was cached."""
    want = alone(PROMPT, max_new_tokens=0, prompt_logprobs_from=first).scores
    assert [score[0] for score in want] == list(range(max(first, 1), 40))
    driver = Driver(chunk_tokens=chunk_tokens)
    assert scores(driver, prompt_logprobs_from=first) == want
    assert scores(driver, prompt_logprobs_from=first) == want
    driver.add(prompt(range(1, 21), [50, 51]))
    driver.run()
    assert scores(driver, prompt_logprobs_from=first) == want


def test_only_what_must_be_scored_is_computed_again():
    """A warm prompt is taken from the cache up to the token before the first score."""
    driver = Driver()
    scores(driver)
    sequence_id = driver.add(PROMPT, max_new_tokens=0, prompt_logprobs_from=30)
    driver.run()
    assert driver.plans[-1].rows[0].start == 29
    assert driver.answers[sequence_id].last.usage.cached_tokens == 29


def test_duplicates_are_given_back():
    """Tokens computed again for their scores take no slots in the end."""
    driver = Driver()
    for _ in range(3):
        scores(driver, prompt_logprobs_from=10)
    assert driver.sched.counts().slots_cached == 40


def test_options_are_scored_side_by_side():
    """Options behind one question share it in the step, and each has its own scores."""
    options = [prompt(range(1, 31), [60 + n, 70 + n]) for n in range(4)]
    driver = Driver()
    for option in options:
        driver.add(option, max_new_tokens=0, prompt_logprobs_from=30)
    driver.run()
    assert [len(row.token_ids) for row in driver.plans[0].rows] == [32, 3, 3, 3]
    want = [alone(each, max_new_tokens=0, prompt_logprobs_from=30).scores for each in options]
    assert [answer.scores for answer in driver.answers.values()] == want


def test_scores_come_with_an_answer():
    """Scores and generated tokens do not exclude each other."""
    driver = Driver(chunk_tokens=7)
    driver.add(PROMPT, max_new_tokens=3, prompt_logprobs_from=5)
    driver.run()
    want = alone(PROMPT, max_new_tokens=3, prompt_logprobs_from=5)
    assert driver.answers[0].scores == want.scores
    assert driver.answers[0].tokens == want.tokens


def test_scores_are_reported_once_even_if_retracted():
    """A sequence retracted in the middle of its prompt goes on with the scores it lacks."""
    driver = Driver(chunk_tokens=7)
    sequence_id = driver.add(PROMPT, max_new_tokens=0, prompt_logprobs_from=5)
    for _ in range(3):
        driver.step()
    roster = driver.sched._roster
    roster.retract(roster.live[sequence_id])
    driver.run()
    want = alone(PROMPT, max_new_tokens=0, prompt_logprobs_from=5).scores
    assert driver.answers[sequence_id].scores == want
    assert driver.runner.num_tokens == 40
