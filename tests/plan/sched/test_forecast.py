"""How long answers get is learnt, safely for the sum of many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.sched.pace.forecast import DEFAULT_TOKENS, GrowthForecast


def taught(lengths, limit=10**9) -> GrowthForecast:
    """A forecast that has seen these lengths, cut at `limit`."""
    forecast = GrowthForecast()
    for length in lengths:
        forecast.note(min(int(length), limit), is_cut=length > limit)
    return forecast


def shape(name: str, num: int, seed: int):
    """Seeded answer lengths."""
    random = np.random.default_rng(seed)
    return {
        "geometric": lambda: random.geometric(1 / 100, num),
        "lognormal": lambda: np.ceil(random.lognormal(5, 1, num)),
        "two kinds": lambda: np.where(
            random.random(num) < 0.8,
            random.integers(1, 20, num),
            random.integers(900, 1100, num),
        ),
        "very long": lambda: random.integers(1, 20_000, num),
    }[name]()


SHAPES = ("geometric", "lognormal", "two kinds", "very long")


def test_before_anything_is_learnt_the_default_counts():
    """32 tokens, or what is left."""
    forecast = GrowthForecast()
    assert [forecast.remaining(5, most) for most in (1000, 32, 7, 1, 0)] == [
        DEFAULT_TOKENS,
        DEFAULT_TOKENS,
        7,
        1,
        0,
    ]


@settings(deadline=None)
@given(
    notes=st.lists(st.tuples(st.integers(0, 100_000), st.booleans()), max_size=150),
    asked=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 5000)), min_size=1),
)
def test_a_forecast_is_at_least_one_and_at_most_what_is_left(notes, asked):
    """Whatever was learnt."""
    forecast = GrowthForecast()
    for length, is_cut in notes:
        forecast.note(length, is_cut=is_cut)
    assert all(1 <= forecast.remaining(num, most) <= most for num, most in asked)


@pytest.mark.parametrize("name", SHAPES)
def test_a_forecast_is_the_mean_residual_and_half_a_deviation(name):
    """Within a tenth of those of the answers seen, as far as a tenth of them gets."""
    many = shape(name, 1024, 0)
    forecast = taught(many)
    for num_output in np.quantile(many, [0.0, 0.3, 0.6, 0.9]).astype(int).tolist():
        left = many[many > num_output] - num_output
        expected = left.mean() + left.std() / 2
        assert forecast.remaining(num_output, 10**6) == pytest.approx(expected, rel=0.1, abs=2)


def test_cut_answers_count_as_going_on():
    """Of geometric answers cut at 1.5 times their mean the true mean is found."""
    lengths = shape("geometric", 1024, 0)
    seen = taught(lengths, limit=150).remaining(0, 10**6)
    assert seen == pytest.approx(150, rel=0.3)
    naive = taught(np.minimum(lengths, 150)).remaining(0, 10**6)
    assert naive < 110


def test_answers_that_are_all_cut_take_what_they_may():
    """No end was ever seen, so all that is left is reserved."""
    assert taught([1000] * 100, limit=64).remaining(10, 500) == 500


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("num_running", [8, 32])
def test_the_sum_over_running_answers_is_rarely_exceeded(name, num_running):
    """At most in a twelfth of the draws of answers that are under way."""
    forecast = taught(shape(name, 1024, 2))
    lengths = shape(name, 500 * num_running, 3).astype(int)
    done = (lengths * np.random.default_rng(4).random(len(lengths))).astype(int)
    reserved = np.array([forecast.remaining(num, 10**6) for num in done.tolist()])
    sums = (lengths - done).reshape(500, -1).sum(1), reserved.reshape(500, -1).sum(1)
    assert (sums[0] > sums[1]).mean() <= 1 / 12


def test_old_answers_are_forgotten():
    """After 1024 others, and 32 until the table is made anew, they do not count."""
    forecast = taught([5000] * 500 + [10] * 1060)
    assert forecast.remaining(0, 10**6) <= 11


def test_answers_of_one_length_are_foreseen():
    """To two tokens, from the first to the last."""
    forecast = taught([64] * 200)
    assert [forecast.remaining(num, 500) for num in (0, 32, 63)] == pytest.approx(
        [64, 32, 1], abs=2
    )


def test_empty_answers_teach_nothing():
    """An answer without a token ended for other reasons."""
    assert taught([0] * 100).remaining(0, 1000) == DEFAULT_TOKENS
