"""Probabilities of options from log-probabilities, and tokens of a tree."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.core import PromptReport
from mmserve.server.systemone.scores import probabilities
from mmserve.server.systemone.usage import num_tree_tokens

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


def chance(ids: tuple[int, ...]) -> float:
    """The probability that a model of three tokens says these first; later ones are rarer."""
    return math.prod((0.5, 0.3, 0.2)[token_id] for token_id in ids)


@given(st.lists(IDS, min_size=2, max_size=8, unique=True))
def test_probabilities_are_those_of_drawing_until_an_option_is_clear(
    options: list[tuple[int, ...]],
) -> None:
    """Of all answers of four tokens, each counts for the longest option that it begins with."""
    answers = [
        (a, b, c, d) for a in range(3) for b in range(3) for c in range(3) for d in range(3)
    ]
    mass = dict.fromkeys(options, 0.0)
    for answer in answers:
        begun = [option for option in options if answer[: len(option)] == option]
        if begun:
            mass[max(begun, key=len)] += chance(answer)
    total = sum(mass.values())
    found = probabilities([math.log(chance(option)) for option in options], options)
    assert found == pytest.approx([mass[option] / total for option in options], abs=1e-9)


def test_unlikely_options_keep_their_proportion() -> None:
    """Numbers far below the smallest float are scaled first."""
    found = probabilities([-2000.0, -2000.0 - math.log(3)], [(1,), (2,)])
    assert found == pytest.approx([0.75, 0.25])


def test_impossible_options_are_equal() -> None:
    """If none can come, none is preferred."""
    assert probabilities([-math.inf, -math.inf], [(1,), (2,)]) == [0.5, 0.5]


def test_options_of_the_same_tokens_are_one() -> None:
    """The first of them has the probability."""
    found = probabilities([math.log(0.6), math.log(0.6), math.log(0.2)], [(1,), (1,), (2,)])
    assert found == pytest.approx([0.75, 0.0, 0.25])


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple),
            st.lists(IDS, max_size=3).map(tuple),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_places_of_a_tree_count_once(
    rows: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]],
) -> None:
    """As a plain set of prefixes counts them, prompts and options apart."""
    reports = [PromptReport(ids, options=options) for ids, options in rows]
    prompts = {ids[:end] for ids, _ in rows for end in range(1, len(ids) + 1)}
    behind = {
        (ids, option[:end])
        for ids, options in rows
        for option in options
        for end in range(1, len(option) + 1)
    }
    assert num_tree_tokens(reports) == len(prompts) + len(behind)
