"""Pixels on demand, features while they are needed."""

import numpy as np
import pytest
from plan.sched.driver import Driver, alone, picture, prompt

from mmserve.core import MediaRefused

A, B = picture("A"), picture("B")


def provide(driver, digest, num_patches=4):
    """Pixels for one picture."""
    driver.sched.provide(digest, {"pixels": np.zeros(1)}, num_patches=num_patches)


def test_pixels_are_wanted_once():
    """A picture is wanted as soon as it arrives, once for all who ask about it."""
    driver = Driver(gives_pixels=False)
    driver.add(prompt([1], ("A", 8), [2]))
    driver.add(prompt([1], ("A", 8), [3]))
    assert driver.sched.wanted() == (A,)
    assert driver.sched.wanted() == ()


def test_text_before_a_picture_does_not_wait():
    """Tokens before the span are computed while the pixels are awaited."""
    driver = Driver(gives_pixels=False)
    driver.add(prompt([1, 2, 3], ("A", 8), [4]))
    driver.step()
    assert driver.plans[-1].num_tokens == 3
    assert not driver.step()
    provide(driver, A)
    driver.step()
    plan = driver.plans[-1]
    assert [item.digest for item in plan.encode] == [A]
    assert plan.num_tokens == 9


def test_a_covered_picture_is_not_wanted():
    """If the tree has the KV of the whole picture, no pixels are asked for."""
    driver = Driver()
    driver.add(prompt([1], ("A", 8), [2]))
    driver.run()
    driver.add(prompt([1], ("A", 8), [3]))
    driver.run()
    assert driver.wanted == [A]
    assert driver.plans[-1].encode == ()


def test_pieces_of_a_picture_use_one_encoding():
    """A chunk that ends in a span leaves the features for the next one."""
    driver = Driver(chunk_tokens=5)
    driver.add(prompt([1], ("A", 12), [2]), max_new_tokens=1)
    driver.run()
    uses = [
        (u.feature_start, u.row_start, u.num_tokens)
        for p in driver.plans
        for r in p.rows
        for u in r.features
    ]
    assert uses == [(0, 1, 4), (4, 0, 5), (9, 0, 3)]
    assert driver.runner.encodes == {A: 1}


def test_patches_of_a_step_are_bounded():
    """Pictures beyond the budget of patches are encoded in later steps."""
    driver = Driver(max_step_patches=8)
    for name in "ABCDE":
        driver.add(prompt([1], (name, 8), [2]))
    driver.run()
    assert max(len(plan.encode) for plan in driver.plans) == 2
    assert set(driver.runner.encodes.values()) == {1}


def test_a_picture_above_the_patch_budget_is_encoded_alone():
    """A picture with more patches than a step may take still gets its step."""
    driver = Driver(max_step_patches=2)
    driver.add(prompt([1], ("A", 8), ("B", 8), [2]))
    driver.run()
    assert max(len(plan.encode) for plan in driver.plans) == 1


def test_many_pictures_pass_through_a_small_cache():
    """Ten pictures with room for four are served like with a huge cache, also in parallel."""
    names = "ABCDEFGHIJ"
    many = prompt([1], *[(name, 8) for name in names], [2])
    half = prompt(
        [3], *[(name, 8) for name in names[:5]], *[(name, 8) for name in "KLMNO"], [2]
    )
    singles = [prompt([4], (name, 8), [2]) for name in names]
    driver = Driver(num_slots=512, feature_cache_tokens=32)
    for wave in ([many], [many], singles, [many, half]):
        for each in wave:
            driver.add(each)
        driver.run()
        assert driver.sched.counts().feature_tokens <= 32
    want = [alone(each).tokens for each in [many, many, *singles, many, half]]
    assert driver.tokens() == want


def test_a_picture_larger_than_the_cache_is_served():
    """A picture with more tokens than the whole cache is allowed alone."""
    large = prompt([1], ("A", 50), ("B", 8), ("C", 50), [2])
    driver = Driver(feature_cache_tokens=16)
    driver.add(large)
    driver.add(prompt([2], ("B", 8), ("A", 50), [2]))
    driver.run()
    assert driver.tokens()[0] == alone(large).tokens


def test_lost_features_are_wanted_again():
    """After KV and features are gone, the pixels are asked for once more."""
    driver = Driver()
    for _ in range(2):
        driver.add(prompt([1], ("A", 8), [2]))
        driver.run()
        assert driver.sched.flush()
    assert driver.wanted == [A, A]
    assert driver.runner.encodes == {A: 2}
    assert driver.tokens()[0] == driver.tokens()[1]


def test_pixels_for_nobody_are_let_go():
    """Pixels that come after everybody left are not kept, and can be wanted again."""
    driver = Driver(gives_pixels=False)
    sequence_id = driver.add(prompt([1], ("A", 8), [2]))
    driver.sched.wanted()
    driver.take([driver.sched.abort(sequence_id)])
    provide(driver, A)
    driver.add(prompt([1], ("A", 8), [2]))
    assert driver.sched.wanted() == (A,)


def test_pixels_that_were_never_fetched_are_wanted_again():
    """A sequence that leaves before its pixels are asked for does not keep others from them."""
    driver = Driver(gives_pixels=False)
    first = driver.add(prompt([1], ("cat", 10), [2]))
    driver.sched.abort(first)
    assert driver.sched.wanted() == ()
    driver.sched.verify()
    del driver.answers[first]
    driver.add(prompt([1], ("cat", 10), [2]))
    driver.gives_pixels = True
    driver.run()


def test_a_refused_picture_ends_all_who_need_it_and_nobody_else():
    """Sequences without the picture go on; a later one may ask for it again."""
    driver = Driver(gives_pixels=False)
    for each in (prompt([1], ("A", 8), [2]), prompt([2], ("A", 8)), prompt([3], ("B", 8), [2])):
        driver.add(each)
    error = MediaRefused("cut short", reason="undecodable")
    driver.take(driver.sched.refuse(A, error))
    assert [answer.finish and answer.finish.error for answer in driver.answers.values()] == [
        error,
        error,
        None,
    ]
    driver.add(prompt([1], ("A", 8), [2]))
    driver.gives_pixels = True
    driver.run()
    assert driver.answers[3].finish.reason == "length"


def test_a_refusal_spares_those_whose_kv_covers_the_picture():
    """Who has the picture's KV already does not need its pixels."""
    driver = Driver()
    covered = prompt([1], ("A", 8), [2])
    driver.add(covered, max_new_tokens=50)
    driver.step()
    driver.sched._desk.ledger.forget(A)
    driver.gives_pixels = False
    late = driver.add(prompt([9], ("A", 8), [2]))
    ended = driver.sched.refuse(A, MediaRefused("gone", reason="fetch_failed"))
    assert [update.sequence_id for update in ended] == [late]


def test_pixels_asked_for_ahead_are_bounded():
    """A long line of pictures does not fill the memory with pixels, and all are served."""
    driver = Driver(feature_cache_tokens=16, max_running=2, gives_pixels=False)
    for n in range(20):
        driver.add(prompt([1], (f"P{n}", 8), [2]))
    assert len(driver.sched.wanted()) == 4
    for n in range(4):
        provide(driver, picture(f"P{n}"))
    driver.gives_pixels = True
    driver.run()
    assert len(driver.runner.encodes) == 20


@pytest.mark.parametrize("max_step_tokens", [4, 16, 64])
def test_atomic_spans_are_never_cut(max_step_tokens):
    """A span with two-way attention is computed whole, even above the budgets of a step."""
    driver = Driver(chunk_tokens=3, max_step_tokens=max_step_tokens)
    for last in (2, 3):
        driver.add(prompt([1], ("A", 8), [5], ("B", 8), [last], is_atomic=True))
    driver.run()
    uses = [use for plan in driver.plans for row in plan.rows for use in row.features]
    assert {(use.feature_start, use.num_tokens) for use in uses} == {(0, 8)}
    assert driver.runner.encodes == {A: 1, B: 1}


def test_pixels_are_asked_for_while_earlier_pictures_are_computed():
    """A long row of pictures never waits for one to be decoded, once it has begun."""
    each = prompt([1], *[(f"P{n}", 8) for n in range(12)], [2])
    driver = Driver(feature_cache_tokens=16, chunk_tokens=8)
    driver.add(each)
    driver.run()
    assert [plan.num_tokens for plan in driver.plans] == [8] * 12 + [2] + [1] * 3
    assert driver.wanted == [picture(f"P{n}") for n in range(12)]


def test_features_stay_until_the_picture_is_computed():
    """Two pictures in pieces with room for one: each is encoded once, one after the other."""
    driver = Driver(feature_cache_tokens=8, chunk_tokens=3)
    for name in "AB":
        driver.add(prompt([1], (name, 8), [2]))
    driver.run()
    assert driver.runner.encodes == {A: 1, B: 1}
