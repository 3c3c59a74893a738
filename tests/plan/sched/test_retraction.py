"""When slots run out some go back to the line, and answer as if they never had."""

from plan.sched.driver import Driver, ListMatcher, alone, prompt

LONG = {"max_new_tokens": 90, "ignore_eos": True}


def crowded(num_sequences=4, **params):
    """Sequences that together need far more than the pool, run to the end."""
    driver = Driver(num_slots=128, context=120)
    for n in range(num_sequences):
        driver.add(prompt([n + 1] * 10), **{**LONG, **params})
    driver.run()
    return driver


def test_a_retracted_sequence_gives_the_same_answer():
    """Tokens are those of a sequence that runs alone, greedy and drawn."""
    for temperature in (0.0, 1.0):
        driver = crowded(temperature=temperature, seed=5)
        assert driver.sched.counts().retractions > 0
        want = [
            alone(prompt([n + 1] * 10), temperature=temperature, seed=5, **LONG).tokens
            for n in range(4)
        ]
        assert driver.tokens() == want


def test_the_latest_goes_back_and_resumes_first():
    """The latest arrival is retracted; it starts again before newcomers."""
    driver = crowded()
    usages = [answer.last.usage for answer in driver.answers.values()]
    assert usages[0].num_retractions == 0
    assert usages[1].num_retractions == 1


def test_lower_priority_goes_back_first():
    """Priority decides before arrival who is retracted."""
    driver = Driver(num_slots=128, context=120)
    for n, priority in ((1, 0), (2, 1)):
        driver.add(prompt([n] * 10), priority=priority, **LONG)
    driver.run()
    retractions = [answer.last.usage.num_retractions for answer in driver.answers.values()]
    assert retractions == [1, 0]


def test_what_is_found_again_does_not_count_as_cached():
    """Usage says what the first admission found, not what a sequence left itself."""
    driver = crowded()
    assert all(answer.last.usage.cached_tokens == 0 for answer in driver.answers.values())


def test_a_grammar_survives_a_retraction():
    """The matcher stays where it was."""
    driver = Driver(num_slots=128, context=120)
    choices = [[20 + n % 50, 30 + n % 40] for n in range(80)]
    for n in range(3):
        driver.add(prompt([n + 1] * 10), matcher=ListMatcher(*choices), max_new_tokens=None)
    driver.run()
    assert driver.sched.counts().retractions > 0
    for answer in driver.answers.values():
        assert answer.finish.reason == "stop"
        assert all(
            token in choice for token, choice in zip(answer.tokens, choices, strict=True)
        )


def test_a_waiting_retracted_sequence_can_be_aborted():
    """A sequence that was retracted ends like any other."""
    driver = Driver(num_slots=128, context=120)
    for n in range(2):
        driver.add(prompt([n + 1] * 10), **LONG)
    while not driver.sched.counts().retractions:
        driver.step()
    update = driver.sched.abort(1)
    driver.take([update])
    assert update.usage.num_retractions == 1
    driver.run()
    counts = driver.sched.counts()
    assert (counts.slots_held, counts.finished["abort"]) == (0, 1)
