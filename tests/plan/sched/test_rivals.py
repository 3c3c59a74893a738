"""Other tokens in the place of a prompt's own are scored by the sequence that computes it."""

import pytest
from plan.sched.driver import Driver, prompt

PROMPT = range(1, 31)
BRANCH = [40, 41, 42]
RIVALS = ((31, 50), (31, 51), (32, 52), (33, 53))


def wanted() -> dict[tuple[int, int], float]:
    """The same numbers, each by a prompt that has the token as its own."""
    found = {}
    for position, token_id in RIVALS:
        driver = Driver()
        known = [*PROMPT, *BRANCH][:position]
        whole = prompt(known, [token_id])
        sequence_id = driver.add(whole, max_new_tokens=0, prompt_logprobs_from=position)
        driver.run()
        ((place, logprob, _),) = driver.answers[sequence_id].scores
        assert place == position
        found[position, token_id] = logprob
    return found


def told(driver: Driver) -> tuple[dict[tuple[int, int], float], int]:
    """What one more request reports of the rivals, and how often."""
    sequence_id = driver.add(
        prompt(PROMPT, BRANCH), max_new_tokens=0, prompt_logprobs_from=31, rivals=RIVALS
    )
    driver.run()
    rivals = driver.answers[sequence_id].rivals
    return {(position, token): logprob for position, token, logprob, _ in rivals}, len(rivals)


@pytest.mark.parametrize("page_tokens", [1, 4])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 31, 100])
def test_rivals_have_the_number_of_a_token_of_ones_own(chunk_tokens, page_tokens):
    """Each is told once, cold and warm, in pieces and behind the prompt's end."""
    driver = Driver(chunk_tokens=chunk_tokens, page_tokens=page_tokens)
    for _ in range(2):
        assert told(driver) == (wanted(), len(RIVALS))


def test_a_sequence_without_rivals_reports_none():
    """Neighbours in a step do not get each other's."""
    driver = Driver()
    plain = driver.add(prompt(PROMPT, [60, 61]), max_new_tokens=0, prompt_logprobs_from=31)
    told(driver)
    assert driver.answers[plain].rivals == []


def test_branches_cost_what_they_do_not_share():
    """Prompt and branches in one step, where every token is computed once."""
    driver = Driver()
    base = driver.add(prompt(PROMPT), max_new_tokens=0, rivals=((30, 40), (30, 41)))
    for branch in ([40, 42, 43], [40, 42, 44], [41]):
        driver.add(prompt(PROMPT, branch), max_new_tokens=0)
    driver.run()
    (plan,) = driver.plans
    assert plan.num_tokens == len(PROMPT) + 5
    assert [token_id for _, token_id, _, _ in driver.answers[base].rivals] == [40, 41]
