"""Every prompt token is accounted for: it was a hit, or there is a reason why it was not."""

import random
from collections import Counter

import pytest
from plan.sched.driver import Driver, prompt

WARM = list(range(1, 41))


def uses(driver, sequence_id):
    """Tokens by (kind, outcome) of an ended sequence."""
    usage = driver.answers[sequence_id].last.usage
    table = {(use.kind, use.outcome): use.num_tokens for use in usage.cache}
    assert len(table) == len(usage.cache)
    return table


def ask(driver, *parts, **options):
    """Run one prompt to its end; what its tokens found."""
    sequence_id = driver.add(prompt(*parts, **options), max_new_tokens=1)
    driver.run()
    return uses(driver, sequence_id)


def test_a_first_prompt_was_never_seen():
    """All of it is a miss of that kind, by kind of token."""
    driver = Driver()
    want = {("text", "never_seen"): 12, ("image", "never_seen"): 8}
    assert ask(driver, [1] * 5, ("A", 8), [2] * 7) == want


def test_what_was_cached_is_a_hit_and_the_rest_new():
    """The beginning comes from the tree."""
    driver = Driver()
    ask(driver, WARM)
    assert ask(driver, WARM[:30], [99] * 5) == {("text", "hit"): 30, ("text", "never_seen"): 5}


def test_the_last_token_of_a_cached_prompt_is_a_boundary():
    """Its logits need a forward, so it is computed though it is cached."""
    driver = Driver()
    ask(driver, WARM)
    assert ask(driver, WARM) == {("text", "hit"): 39, ("text", "boundary"): 1}


def test_the_rest_of_a_page_is_a_boundary_if_the_page_is_cached():
    """With pages of 16, a repeated prompt of 32 tokens may not use its second page."""
    driver = Driver(page_tokens=16)
    ask(driver, range(1, 33))
    assert ask(driver, range(1, 33)) == {("text", "hit"): 16, ("text", "boundary"): 16}


def test_an_end_within_a_page_is_never_cached():
    """Tokens behind the last whole page were seen, but nothing remembers them."""
    driver = Driver(page_tokens=16)
    ask(driver, range(1, 40))
    assert ask(driver, range(1, 40)) == {("text", "hit"): 32, ("text", "never_seen"): 7}


def test_a_span_that_must_stay_whole_is_a_boundary():
    """Where a match would end inside an atomic picture, its cached part is computed again."""
    driver = Driver()
    ask(driver, [1] * 4, ("A", 8), [2], is_atomic=True)
    scored = driver.add(
        prompt([1] * 4, ("A", 8), [2], is_atomic=True), max_new_tokens=1, prompt_logprobs_from=9
    )
    driver.run()
    want = {("text", "hit"): 4, ("image", "boundary"): 8, ("text", "boundary"): 1}
    assert uses(driver, scored) == want


def test_what_was_evicted_is_told():
    """Tokens whose slots another prompt needed are a miss of that kind."""
    driver = Driver(num_slots=64, context=64)
    ask(driver, range(1, 31))
    ask(driver, range(40, 90))
    want = {("text", "hit"): 14, ("text", "evicted"): 16, ("text", "never_seen"): 3}
    assert ask(driver, range(1, 31), [99] * 3) == want


def test_what_is_no_longer_remembered_was_never_seen():
    """Without history an evicted token looks new."""
    driver = Driver(num_slots=64, context=64, history_tokens=0)
    ask(driver, range(1, 31))
    ask(driver, range(40, 90))
    assert ("text", "evicted") not in ask(driver, range(1, 31), [99] * 3)


def test_another_salt_has_it():
    """Tokens cached for another namespace only are a miss of that kind."""
    driver = Driver()
    ask(driver, WARM, namespace="x")
    want = {("text", "namespace"): 30, ("text", "never_seen"): 2}
    assert ask(driver, WARM[:30], [99, 98], namespace="y") == want


def test_a_picture_behind_other_words_is_a_matter_of_order():
    """A picture with KV elsewhere is told from one never seen; the words around are new."""
    driver = Driver()
    ask(driver, [1] * 5, ("A", 8))
    want = {("text", "never_seen"): 6, ("image", "order"): 8, ("image", "never_seen"): 4}
    assert ask(driver, [7] * 3, ("A", 8), [8] * 3, ("B", 4)) == want


def test_frames_of_a_clip_are_told_apart_from_pictures():
    """A video span counts as video."""
    driver = Driver()
    ask(driver, ("F", 6), [1], kind="video")
    want = {("video", "hit"): 6, ("text", "never_seen"): 2}
    assert ask(driver, ("F", 6), [2, 3], kind="video") == want


def test_a_token_shared_within_a_step_is_a_hit():
    """Of three equal prompts that start together, one computes and two find it there."""
    driver = Driver()
    ids = [driver.add(prompt(WARM), max_new_tokens=1) for _ in range(3)]
    driver.run()
    tables = [uses(driver, sequence_id) for sequence_id in ids]
    assert tables[0] == {("text", "never_seen"): 40}
    assert [table["text", "hit"] for table in tables[1:]] == [39, 39]


def test_without_a_cache_everything_is_new():
    """Nothing is looked up, nothing explained."""
    driver = Driver(radix_cache=False)
    ask(driver, WARM)
    assert ask(driver, WARM) == {("text", "never_seen"): 40}


def test_a_retraction_does_not_change_what_was_found():
    """Tokens computed again after a retraction are counted once, as they were at first."""
    driver = Driver(num_slots=128, context=120)
    long = {"max_new_tokens": 90, "ignore_eos": True}
    ids = [driver.add(prompt([first] * 10), **long) for first in range(5, 9)]
    driver.run()
    assert driver.sched.counts().retractions > 0
    for sequence_id in ids:
        assert uses(driver, sequence_id) == {("text", "never_seen"): 10}


def test_a_sequence_that_never_ran_has_no_account():
    """Aborted while waiting, nothing is known of its tokens."""
    driver = Driver(max_running=1)
    driver.add(prompt([1] * 5))
    waits = driver.add(prompt([2] * 5))
    driver.step()
    driver.take([driver.sched.abort(waits)])
    assert driver.answers[waits].last.usage.cache == ()


@pytest.mark.parametrize("page_tokens", [1, 3, 16])
def test_counts_sum_up_to_the_prompt(page_tokens):
    """Over a mixed load, hits and misses of each prompt are its tokens, kind by kind."""
    chance = random.Random(page_tokens)
    driver = Driver(num_slots=160, context=100, page_tokens=page_tokens, max_running=4)
    asked = {}
    for _ in range(60):
        parts = [[chance.randrange(1, 3)] * chance.choice([3, 17])]
        if chance.random() < 0.5:
            parts.append(chance.choice([("A", 6), ("B", 9)]))
        parts.append([chance.randrange(1, 4) for _ in range(chance.randrange(1, 5))])
        each = prompt(
            *parts, namespace=chance.choice(["", "x"]), is_atomic=chance.random() < 0.3
        )
        asked[driver.add(each, max_new_tokens=chance.choice([1, 30]))] = each
        for _ in range(chance.randrange(4)):
            driver.step()
    driver.run()
    outcomes = Counter()
    for sequence_id, each in asked.items():
        table = uses(driver, sequence_id)
        outcomes.update({outcome: num for (_, outcome), num in table.items()})
        assert sum(table.values()) == each.num_tokens
        num_image = sum(num for (kind, _), num in table.items() if kind == "image")
        assert num_image == each.num_image_tokens
    assert set(outcomes) >= {"hit", "never_seen", "namespace"}
    if page_tokens < 16:
        assert set(outcomes) >= {"evicted", "boundary"}


def test_totals_add_up_what_requests_were_told():
    """`report` has the sums over all that ended, by kind and outcome."""
    driver = Driver()
    for n in (50, 51):
        driver.add(prompt(WARM, [n]), max_new_tokens=1)
        driver.add(prompt(("A", 8), [n]), max_new_tokens=1)
    driver.run()
    want = Counter()
    for sequence_id in driver.answers:
        want.update(uses(driver, sequence_id))
    assert driver.sched.report().prompt_tokens == dict(want)
