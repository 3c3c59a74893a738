"""Pictures hinted at before a request has them: done once, after all others, within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from plan.sched.driver import Driver, alone, picture, prompt

from mmserve.core import MediaRefused, RunnerFailed, SchedConfig
from mmserve.sched.pace.pace import StepPace

A, B, C = picture("A"), picture("B"), picture("C")


def hinted(driver: Driver, *names: str, size: int = 8, client: str = "") -> None:
    """One hint of some pictures of a size."""
    driver.sched.anticipate({picture(name): size for name in names}, client)
    driver.sched.verify()


def provide(driver: Driver, digest: bytes, num_patches: int = 4) -> None:
    """Pixels for one picture."""
    driver.sched.provide(digest, {"pixels": np.zeros(1)}, num_patches=num_patches)
    driver.sched.verify()


def settle(driver: Driver) -> None:
    """Steps until nothing is left to do."""
    while driver.step():
        pass


def test_a_picture_hinted_at_is_encoded_without_any_sequence():
    """A step of no rows encodes it, then there is nothing more to do."""
    driver = Driver()
    hinted(driver, "A")
    settle(driver)
    (plan,) = driver.plans
    assert (plan.rows, [item.digest for item in plan.encode]) == ((), [A])
    assert driver.sched.counts().feature_tokens == 8
    assert "step 1" in driver.sched.drawing("sched")
    assert driver.sched.drawing("sched", "svg").startswith("<svg")


def test_a_request_after_the_hint_finds_all_done():
    """Its picture is neither decoded nor encoded again, and it is told of no encoding."""
    driver = Driver()
    hinted(driver, "A")
    settle(driver)
    number = driver.add(prompt([1], ("A", 8), [2]))
    driver.run()
    assert driver.wanted == [A]
    assert driver.runner.encodes == {A: 1}
    assert driver.answers[number].last.encode_ms == 0
    assert driver.tokens() == [alone(prompt([1], ("A", 8), [2])).tokens]
    counts = driver.sched.counts()
    assert (counts.encoded_items, counts.early_items, counts.early_items_used) == (1, 1, 1)


@pytest.mark.parametrize("stage", ["hinted", "asked", "at hand", "in flight", "encoded"])
def test_a_request_shares_the_work_wherever_it_stands(stage):
    """One decode and one encode, whenever the request comes."""
    driver = Driver(gives_pixels=False)
    hinted(driver, "A")
    plan = None
    if stage != "hinted":
        assert driver.sched.wanted() == (A,)
    if stage in ("at hand", "in flight", "encoded"):
        provide(driver, A)
    if stage in ("in flight", "encoded"):
        plan = driver.plan()
    if stage == "encoded":
        driver.land(plan)
    number = driver.add(prompt([1], ("A", 8), [2]))
    driver.sched.verify()
    if stage == "in flight":
        driver.land(plan)
    wanted = driver.sched.wanted()
    assert wanted == ((A,) if stage == "hinted" else ())
    if stage in ("hinted", "asked"):
        provide(driver, A)
    driver.run()
    assert driver.runner.encodes == {A: 1}
    assert driver.answers[number].finish.reason == "length"
    assert not driver.sched.is_anticipated(A)


def test_a_hint_of_what_is_there_does_nothing():
    """Neither while a sequence has the picture, nor while its features are kept, nor twice."""
    driver = Driver(gives_pixels=False)
    driver.add(prompt([1], ("A", 8), [2]))
    hinted(driver, "A")
    assert driver.sched.wanted() == (A,)
    hinted(driver, "A")
    assert driver.sched.wanted() == ()
    provide(driver, A)
    driver.run()
    hinted(driver, "A")
    hinted(driver, "B")
    hinted(driver, "B")
    assert driver.sched.wanted() == (B,)
    assert driver.sched.wanted() == ()
    provide(driver, B)
    settle(driver)
    assert driver.runner.encodes == {A: 1, B: 1}


def test_hints_are_encoded_beside_answers_one_a_step():
    """While an answer is generated, the pictures of later questions are done."""
    driver = Driver()
    driver.add(prompt([1, 2]), max_new_tokens=6)
    driver.step()
    for name in "ABC":
        hinted(driver, name)
    driver.run()
    assert driver.runner.encodes == {A: 1, B: 1, C: 1}
    assert all(plan.rows and len(plan.encode) <= 1 for plan in driver.plans)


def test_pixels_are_asked_for_hint_by_hint_after_those_of_requests():
    """Frames of one hint come together; nothing more is asked for while any are awaited."""
    driver = Driver(gives_pixels=False)
    hinted(driver, "A", "B")
    hinted(driver, "C")
    driver.add(prompt([1], ("D", 8), [2]))
    assert driver.sched.wanted() == (picture("D"),)
    assert driver.sched.wanted() == ()
    provide(driver, picture("D"))
    assert driver.sched.wanted() == (A, B)
    provide(driver, A)
    assert driver.sched.wanted() == ()
    driver.add(prompt([1], ("E", 8), [2]))
    assert driver.sched.wanted() == (picture("E"),)
    for name in "EB":
        provide(driver, picture(name))
    assert driver.sched.wanted() == (C,)


def test_pictures_of_rows_come_first():
    """A hint waits while a row encodes, and while one lacks patches or room."""
    driver = Driver(gives_pixels=False, max_step_patches=8)
    hinted(driver, "A")
    assert driver.sched.wanted() == (A,)
    provide(driver, A)
    for name in "BCD":
        driver.add(prompt([1], (name, 8), [2]), max_new_tokens=1)
    for digest in driver.sched.wanted():
        provide(driver, digest)
    driver.run()
    settle(driver)
    encoded = [[item.digest for item in plan.encode] for plan in driver.plans]
    assert encoded == [[B, C], [picture("D")], [A]]


def test_a_hint_waits_while_a_row_waits_for_room():
    """Though it is small enough for what is left of the feature cache."""
    driver = Driver(feature_cache_tokens=32, chunk_tokens=5, gives_pixels=False)
    hinted(driver, "C", size=4)
    assert driver.sched.wanted() == (C,)
    provide(driver, C)
    driver.add(prompt([1], ("A", 26), [2]), max_new_tokens=1)
    driver.add(prompt([1], ("B", 8), [2]), max_new_tokens=1)
    for digest in driver.sched.wanted():
        provide(driver, digest)
    driver.run()
    settle(driver)
    encoded = [item.digest for plan in driver.plans for item in plan.encode]
    assert encoded == [A, B, C]
    assert len(driver.plans) > 4


def test_a_picture_beyond_the_budget_of_patches_waits_for_a_step_of_its_own():
    """Beside rows the budget holds; without rows a single picture may exceed it."""
    driver = Driver(gives_pixels=False, max_step_patches=3)
    hinted(driver, "A")
    driver.sched.wanted()
    provide(driver, A)
    driver.add(prompt([1, 2]), max_new_tokens=3)
    driver.run()
    assert all(not plan.encode for plan in driver.plans)
    settle(driver)
    assert driver.runner.encodes == {A: 1}


def test_hints_hold_a_quarter_of_the_feature_cache_at_most():
    """What goes beyond is not taken up, a clip not in part."""
    driver = Driver(feature_cache_tokens=64, gives_pixels=False)
    hinted(driver, "A")
    hinted(driver, "B", "C")
    assert not driver.sched.is_anticipated(B)
    hinted(driver, "B")
    hinted(driver, "C")
    assert [driver.sched.is_anticipated(each) for each in (A, B, C)] == [True, True, False]
    driver.gives_pixels = True
    settle(driver)
    hinted(driver, "C")
    assert not driver.sched.is_anticipated(C)
    assert driver.sched.counts().feature_tokens == 16


def test_old_hints_make_room_for_new_ones():
    """After a minute nobody may come any more: features and pixels of a hint are dropped."""
    driver = Driver(feature_cache_tokens=64)
    hinted(driver, "A", "B")
    settle(driver)
    driver.clock.now_s += 61
    assert driver.sched.counts().feature_tokens == 16
    hinted(driver, "C")
    assert [driver.sched.is_anticipated(each) for each in (A, B, C)] == [False, True, True]
    settle(driver)
    assert driver.runner.features == {B, C}


def test_used_hints_make_room_for_new_ones():
    """Once a request has come for a picture, it is an ordinary one."""
    driver = Driver(feature_cache_tokens=64)
    hinted(driver, "A", "B")
    settle(driver)
    driver.add(prompt([1], ("A", 8), [2]))
    hinted(driver, "C")
    assert driver.sched.is_anticipated(C)
    driver.run()
    settle(driver)
    assert driver.runner.encodes == {A: 1, B: 1, C: 1}


def test_features_of_those_who_are_there_are_not_evicted_for_a_hint():
    """A sequence that waits keeps what it will need; features of nobody may go."""
    driver = Driver(feature_cache_tokens=32, max_running=1)
    driver.add(prompt([1], ("A", 13), ("B", 13), [2]), max_new_tokens=1)
    driver.run()
    driver.sched._memory.flush()
    driver.add(prompt([3]), max_new_tokens=3)
    for name in "AB":
        driver.add(prompt([1], (name, 13), [2]), max_new_tokens=1)
    hinted(driver, "C")
    while len(driver.unfinished) > 1:
        driver.step()
        assert C not in driver.runner.features
    driver.run()
    settle(driver)
    assert driver.runner.encodes == {A: 1, B: 1, C: 1}


def test_hinted_features_are_evictable():
    """A request's pictures take the room that hints have."""
    driver = Driver(feature_cache_tokens=32)
    hinted(driver, "A")
    settle(driver)
    driver.add(prompt([1], ("B", 30), [2]))
    driver.run()
    assert driver.runner.features == {B}
    hinted(driver, "A")
    settle(driver)
    assert driver.runner.encodes == {A: 2, B: 1}


def test_a_hint_whose_pixels_cannot_be_had_is_dropped():
    """Nobody hears of it, and the next hint goes on."""
    driver = Driver(gives_pixels=False)
    hinted(driver, "A")
    hinted(driver, "B")
    assert driver.sched.wanted() == (A,)
    assert driver.sched.refuse(A, MediaRefused("cut short", reason="undecodable")) == ()
    driver.sched.verify()
    assert driver.sched.wanted() == (B,)
    assert not driver.sched.is_anticipated(A)


@pytest.mark.parametrize("has_row", [True, False])
def test_a_step_that_fails_ends_the_hint(has_row):
    """It is not tried again, and a request with the picture has it decoded anew."""
    driver = Driver()
    if has_row:
        driver.add(prompt([1, 2]))
        driver.step()
    hinted(driver, "A")
    plan = driver.plan()
    assert [item.digest for item in plan.encode] == [A]
    driver.runner.fail_next(RunnerFailed("lost", step=plan.step))
    driver.land(plan)
    settle(driver)
    assert driver.runner.encodes == {}
    driver.add(prompt([1], ("A", 8), [2]))
    driver.run()
    assert driver.wanted == [A, A]
    assert driver.sched.counts().early_items == 0


@pytest.mark.parametrize("stage", ["asked", "at hand", "encoded"])
def test_a_flush_forgets_hints(stage):
    """Pixels that come later are for nobody."""
    driver = Driver(gives_pixels=False)
    hinted(driver, "A")
    driver.sched.wanted()
    if stage != "asked":
        provide(driver, A)
    if stage == "encoded":
        driver.step()
    assert driver.sched.flush()
    provide(driver, A)
    assert not driver.sched.is_anticipated(A)
    assert not driver.step()
    assert driver.sched.counts().feature_tokens == 0


def test_work_for_a_hint_is_charged_to_whose_it_is():
    """Decoding and encoding, once; who comes later pays for tokens only."""
    driver = Driver(gives_pixels=False, media_ms_cost=2.0, patch_cost=0.5)
    hinted(driver, "A", client="a")
    driver.sched.wanted()
    driver.sched.provide(A, {"pixels": np.zeros(1)}, num_patches=4, decode_ms=10.0)
    driver.step()
    assert driver.sched.service() == {"a": 22.0}
    driver.add(prompt([1], ("A", 8), [2]), client="b", max_new_tokens=1)
    driver.run()
    assert driver.sched.service() == {"a": 22.0, "b": 12.0}


def test_pixels_of_hints_leave_the_bound_on_pixels_to_sequences():
    """As many pixels are asked for ahead as without hints."""
    driver = Driver(feature_cache_tokens=32, gives_pixels=False, max_running=1)
    hinted(driver, "A")
    driver.sched.wanted()
    provide(driver, A)
    for n in range(10):
        driver.add(prompt([1], (f"P{n}", 8), [2]))
    assert len(driver.sched.wanted()) == 8


def test_a_step_without_rows_teaches_only_what_pictures_cost():
    """Its time is no part of what tokens are expected to take."""
    pace = StepPace(10.0)
    for _ in range(8):
        pace.note(2, 0, 0, 4.0, 0.0)
    before = pace.step_ms(2, 0, 0)
    driver = Driver(target_itl_ms=10.0)
    driver.sched._tempo._pace = pace
    hinted(driver, "A")
    settle(driver)
    assert pace.step_ms(2, 0, 0) == before
    assert pace.step_ms(2, 0, 4) > before


def test_the_bound_follows_the_cache():
    """Without a feature cache nothing is taken up."""
    driver = Driver(feature_cache_tokens=0)
    hinted(driver, "A")
    assert not driver.step()
    assert SchedConfig().feature_cache_tokens // 4 == 8192
