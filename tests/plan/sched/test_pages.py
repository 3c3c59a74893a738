"""KV in pages: sharing, growth and eviction by whole pages, with the same answers."""

import numpy as np
import pytest
from plan.sched.driver import Driver, alone, prompt

PAGES = [1, 2, 7, 16, 64]


@pytest.mark.parametrize("page_tokens", PAGES)
def test_a_prefix_is_shared_by_whole_pages(page_tokens):
    """Hits are the common tokens, down to a whole page."""
    driver = Driver(num_slots=640, page_tokens=page_tokens)
    driver.add(prompt([1] * 70, [2] * 10), max_new_tokens=1)
    driver.run()
    second = driver.add(prompt([1] * 70, [3] * 10), max_new_tokens=1)
    driver.run()
    want = 70 - 70 % page_tokens
    assert driver.answers[second].last.usage.cached_tokens == want


@pytest.mark.parametrize("page_tokens", PAGES)
def test_no_two_rows_write_into_one_page(page_tokens):
    """The page of a sequence's last token is its own, whoever shares what is before."""
    driver = Driver(num_slots=64 * 24, page_tokens=page_tokens, max_running=8)
    for last in range(8):
        driver.add(prompt([1] * 21, [last + 1] * last), max_new_tokens=30, ignore_eos=True)
    while driver.unfinished:
        driver.step()
        written = [
            set((row.slots[row.start :] // page_tokens).tolist())
            for row in driver.plans[-1].rows
        ]
        assert len(set().union(*written)) == sum(map(len, written))


@pytest.mark.parametrize("page_tokens", PAGES)
def test_slots_of_a_page_lie_side_by_side_and_in_place(page_tokens):
    """Token p of a sequence is at offset p modulo page of some page."""
    driver = Driver(num_slots=640, page_tokens=page_tokens, chunk_tokens=10)
    for last in range(4):
        driver.add(prompt([1] * 33, [last + 1] * 9), max_new_tokens=20)
    driver.run()
    for plan in driver.plans:
        for row in plan.rows:
            positions = np.arange(len(row.slots))
            assert (row.slots % page_tokens == positions % page_tokens).all()
            firsts = row.slots // page_tokens
            same_page = positions[1:] // page_tokens == positions[:-1] // page_tokens
            assert (firsts[1:][same_page] == firsts[:-1][same_page]).all()


@pytest.mark.parametrize("page_tokens", PAGES)
def test_answers_do_not_depend_on_pages(page_tokens):
    """The same tokens as alone, without a cache and in pages of 1."""
    driver = Driver(num_slots=320, context=200, page_tokens=page_tokens, max_running=4)
    prompts = [prompt([1] * 40, ("A", 9), [n] * 5) for n in range(1, 7)]
    for each in prompts:
        driver.add(each, max_new_tokens=12)
    driver.run()
    assert driver.tokens() == [alone(each, max_new_tokens=12).tokens for each in prompts]


@pytest.mark.parametrize("page_tokens", [7, 16, 64])
def test_chunks_end_pages_where_they_can(page_tokens):
    """A row that does not end the prompt ends a page, if it reaches the end of one."""
    driver = Driver(num_slots=640, page_tokens=page_tokens, chunk_tokens=20)
    driver.add(prompt([1] * 130), max_new_tokens=1)
    driver.run()
    stops = [plan.rows[0].start + len(plan.rows[0].token_ids) for plan in driver.plans]
    assert stops[-1] == 130
    for start, stop in zip([0, *stops], stops[:-1], strict=False):
        assert stop % page_tokens == 0 or stop // page_tokens == start // page_tokens


@pytest.mark.parametrize("page_tokens", [2, 7, 16, 64])
def test_a_pool_that_is_no_multiple_of_a_page_is_rounded_down(page_tokens):
    """The slots left over are never used, and all others can be."""
    num_slots = 4 * page_tokens + page_tokens - 1
    driver = Driver(num_slots=num_slots, context=10_000, page_tokens=page_tokens)
    assert driver.sched.counts().slots_total == 4 * page_tokens
    driver.add(prompt([1] * (4 * page_tokens - 1)), max_new_tokens=1)
    driver.run()
    assert len(driver.answers[0].tokens) == 1


@pytest.mark.parametrize("page_tokens", PAGES)
def test_eviction_frees_whole_pages(page_tokens):
    """What is free and what is cached are whole pages, in a pool under pressure too."""
    driver = Driver(num_slots=256, context=120, page_tokens=page_tokens, max_running=3)
    for n in range(30):
        driver.add(prompt([n % 5 + 1] * (10 + n)), max_new_tokens=n % 9)
    while driver.unfinished:
        assert driver.step()
        counts = driver.sched.counts()
        for num_slots in (counts.slots_free, counts.slots_cached, counts.slots_held):
            assert num_slots % page_tokens == 0
