"""What clients are charged: shared work is split once, what is made again is paid by one."""

import pytest
from plan.sched.driver import Driver, prompt


def test_work_that_several_wait_for_is_split_among_them():
    """Three clients with one prompt pay a third each for it, and their own answers alone."""
    driver = Driver(decode_cost=0.0)
    for client in "abc":
        driver.add(prompt(range(1, 31), [ord(client)]), client=client, max_new_tokens=1)
    driver.run()
    assert driver.sched.service() == pytest.approx({"a": 11.0, "b": 11.0, "c": 11.0})


def test_a_picture_is_paid_by_all_who_have_it():
    """Patches and decoding time are split among those who need the picture."""
    driver = Driver(decode_cost=0.0, patch_cost=0.5, media_ms_cost=2.0, gives_pixels=False)
    for client in "ab":
        each = prompt([ord(client)] * 5, ("A", 8))
        driver.add(each, client=client, max_new_tokens=1)
    (digest,) = driver.sched.wanted()
    driver.sched.provide(digest, {}, num_patches=12, decode_ms=3.0)
    driver.run()
    want = 5 + 8 + 0.5 * 12 / 2 + 2.0 * 3.0 / 2
    assert driver.sched.service() == pytest.approx({"a": want, "b": want})


def test_who_waits_is_charged_once_for_what_is_computed_again():
    """Shared work is split the first time; what was evicted is paid by whoever has it made."""
    one_first = (("one", 1),)
    driver = Driver(num_slots=64, context=64, max_running=1, client_priorities=one_first)
    shared = [7] * 30
    for n in range(3):
        driver.add(prompt(shared, [n + 1]), max_new_tokens=1, client="many")
    bills = []
    for _ in range(4):
        for other in (shared, [8] * 50):
            driver.add(prompt(other), max_new_tokens=1, client="one")
        while len(driver.unfinished) > 3:
            driver.step()
        bills.append(driver.sched.service().get("many", 0.0))
    assert bills[0] == bills[-1]
