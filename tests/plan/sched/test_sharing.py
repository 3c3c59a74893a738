"""What one sequence computes, others do not."""

import pytest
from plan.sched.driver import Driver, picture, prompt

QUESTIONS = [prompt([1, 2, 3], ("A", 36), [10 + n, 11, 12]) for n in range(8)]
NUM_SHARED, NUM_SUFFIXES = 39, 8 * 3


def test_eight_questions_about_a_new_picture_take_one_step():
    """The picture's prefix is computed once, beside eight suffixes, in the first step."""
    driver = Driver()
    for question in QUESTIONS:
        driver.add(question, max_new_tokens=1)
    driver.run()
    assert [plan.num_tokens for plan in driver.plans] == [NUM_SHARED + NUM_SUFFIXES]
    assert driver.runner.encodes == {picture("A"): 1}


@pytest.mark.parametrize("chunk_tokens", [1, 2, 5, 16, 40])
def test_in_small_pieces_nothing_is_computed_twice(chunk_tokens):
    """Whatever the piece, the others wait for the first, and all answers are the same."""
    whole, pieces = Driver(), Driver(chunk_tokens=chunk_tokens, max_step_tokens=64)
    for question in QUESTIONS:
        whole.add(question)
        pieces.add(question)
    whole.run()
    pieces.run()
    assert pieces.tokens() == whole.tokens()
    assert pieces.runner.num_tokens == whole.runner.num_tokens
    assert pieces.runner.encodes == {picture("A"): 1}


def test_users_wait_while_a_provider_goes_on_in_pieces():
    """A shared prefix in pieces is computed by one row a step; the others hold no seat."""
    driver = Driver(chunk_tokens=10)
    for question in QUESTIONS:
        driver.add(question, max_new_tokens=1)
    driver.run()
    assert [len(plan.rows) for plan in driver.plans] == [1, 1, 1, 8, 1]
    assert driver.plans[2].rows[0].start == 20


def test_a_provider_stands_before_its_users():
    """The row that computes shared tokens comes first, and the others begin behind them."""
    driver = Driver()
    for question in QUESTIONS:
        driver.add(question)
    rows = driver.plan().rows
    assert [row.start for row in rows] == [0] + [NUM_SHARED] * 7
    for row in rows[1:]:
        assert row.slots[:NUM_SHARED].tolist() == rows[0].slots[:NUM_SHARED].tolist()


def test_identical_prompts_share_all_but_the_last_token():
    """Eight equal prompts compute the prompt once and its last token eight times."""
    driver = Driver()
    for _ in range(8):
        driver.add(prompt(range(1, 21)), max_new_tokens=1)
    driver.run()
    assert driver.runner.num_tokens == 20 + 7
    assert driver.sched.counts().slots_cached == 20


def test_usage_says_what_was_shared():
    """Cached tokens are counted by kind, also when a neighbour in the step computes them."""
    driver = Driver()
    for question in QUESTIONS[:2]:
        driver.add(question)
    driver.run()
    first, second = (driver.answers[n].last.usage for n in (0, 1))
    assert first.cached_tokens == 0
    assert second.cached_tokens == NUM_SHARED
    assert (second.cached_text_tokens, second.cached_image_tokens) == (3, 36)
    assert (second.prompt_tokens, second.image_tokens) == (42, 36)


def test_frames_are_counted_as_video():
    """Spans of kind video count as video tokens."""
    driver = Driver()
    for last in (1, 2):
        driver.add(prompt([5], ("A", 6), [last], kind="video"))
    driver.run()
    usage = driver.answers[1].last.usage
    assert (usage.video_tokens, usage.cached_video_tokens, usage.cached_image_tokens) == (
        6,
        6,
        0,
    )


def test_the_next_turn_finds_prompt_and_answer():
    """An answer's tokens can be found, but for the last drawn one, which has no KV."""
    driver = Driver()
    first = driver.add(prompt(range(1, 11)), max_new_tokens=5)
    driver.run()
    history = [*range(1, 11), *driver.answers[first].tokens]
    second = driver.add(prompt(history, [3, 4]))
    driver.run()
    assert driver.answers[second].last.usage.cached_tokens == 14


def test_the_same_picture_elsewhere_is_not_shared():
    """A picture behind other text has other KV, but its encoding is used again."""
    driver = Driver()
    driver.add(prompt([1], ("A", 8), [2]))
    driver.run()
    driver.add(prompt([3], ("A", 8), [2]))
    driver.run()
    assert driver.answers[1].last.usage.cached_tokens == 0
    assert driver.runner.encodes == {picture("A"): 1}


def test_other_pictures_are_never_taken_for_each_other():
    """With equal token ids and other digests only the text before is shared."""
    driver = Driver()
    for name in "AABBA":
        driver.add(prompt([1, 2], (name, 8), [3]))
        driver.run()
    cached = [answer.last.usage.cached_tokens for answer in driver.answers.values()]
    assert cached == [0, 10, 2, 10, 10]
    tokens = driver.tokens()
    assert tokens[0] == tokens[1] == tokens[4] != tokens[2] == tokens[3]


def test_namespaces_do_not_share():
    """The same prompt in another namespace is computed again, in the same step and later."""
    driver = Driver()
    for namespace in ("", "tenant", "tenant"):
        driver.add(prompt(range(1, 11), namespace=namespace), max_new_tokens=1)
    driver.run()
    assert driver.runner.num_tokens == 10 + 10 + 1


def test_without_the_cache_nothing_is_kept_or_shared():
    """With `radix_cache` off every token is computed, and all slots are free at the end."""
    driver = Driver(radix_cache=False)
    for question in QUESTIONS:
        driver.add(question, max_new_tokens=1)
    driver.run()
    assert driver.runner.num_tokens == 8 * 42
    counts = driver.sched.counts()
    assert (counts.slots_free, counts.cached_tokens) == (counts.slots_total, 0)


def test_others_do_not_wait_for_tokens_they_do_not_share():
    """A sequence that parts from a long one is computed beside it."""
    driver = Driver(chunk_tokens=4, max_step_tokens=64)
    driver.add(prompt(range(1, 41)))
    driver.add(prompt([1, 2, 3, 4, 50, 51]))
    rows = driver.plan().rows
    assert [(row.sequence_id, row.start, len(row.token_ids)) for row in rows] == [
        (0, 0, 4),
        (1, 4, 2),
    ]


def test_an_aborted_provider_does_not_hold_up_its_users():
    """If the sequence that computes the prefix leaves, the next one goes on from there."""
    driver = Driver(chunk_tokens=4)
    for last in (50, 51, 52):
        driver.add(prompt(range(1, 21), [last]))
    driver.step()
    driver.take([driver.sched.abort(0)])
    driver.run()
    assert driver.runner.num_tokens == 20 + 2 + 2 * 3
