"""The three rules of choice, against a brute-force reading of their table."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.lang import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from mmserve.lang.choices import with_shared_numbers

NUMBERS = st.floats(-10, 0, allow_nan=False).map(lambda value: round(value, 1))
OPTIONS = st.lists(st.lists(NUMBERS, min_size=1, max_size=4), min_size=1, max_size=5)


def decide(rule, rows, alone=None):
    """The index that a rule picks, and its decision."""
    choices = [f"option{index}" for index in range(len(rows))]
    decision = rule(
        choices=choices,
        normalized_prompt_logprobs=[sum(row) / len(row) for row in rows],
        input_token_logprobs=[[[value, 0, None] for value in row] for row in rows],
        output_token_logprobs=[[] for _ in rows],
        unconditional_token_logprobs=alone
        and [[[value, 0, None] for value in row] for row in alone],
    )
    return choices.index(decision.decision), decision


@given(OPTIONS)
@settings(max_examples=25, deadline=None)
def test_the_default_takes_the_largest_mean(rows):
    """The first option with the largest mean wins."""
    means = [sum(row) / len(row) for row in rows]

    assert decide(token_length_normalized, rows)[0] == means.index(max(means))


@given(OPTIONS)
@settings(max_examples=25, deadline=None)
def test_greedy_keeps_the_rows_at_each_columns_maximum(rows):
    """Column by column, rows below the maximum drop out; short rows go on with their mean."""
    width = max(len(row) for row in rows)
    table = [
        [row[j] if j < len(row) else sum(row) / len(row) for j in range(width)] for row in rows
    ]
    alive = set(range(len(rows)))
    for column in range(width):
        if len(alive) > 1:
            best = max(table[i][column] for i in alive)
            alive = {i for i in alive if table[i][column] == best}
    index, decision = decide(greedy_token_selection, rows)

    assert index == min(alive)
    assert decision.meta_info == {"greedy_logprob_matrix": table}


@given(OPTIONS)
@settings(max_examples=25, deadline=None)
def test_the_corrected_rule_subtracts_what_is_likely_anyway(rows):
    """The mean of l - u is what counts, with the first u at 0."""
    alone = [[0.0, *[value / 2 for value in row[1:]]] for row in rows]
    gains = [(sum(row) - sum(other)) / len(row) for row, other in zip(rows, alone, strict=True)]
    index, decision = decide(unconditional_likelihood_normalized, rows, alone)

    assert index == gains.index(max(gains))
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == gains


def test_only_the_corrected_rule_asks_for_unconditional_numbers():
    """The others do without the extra calls."""
    assert unconditional_likelihood_normalized.requires_unconditional_logprobs is True
    assert token_length_normalized.requires_unconditional_logprobs is False
    assert greedy_token_selection.requires_unconditional_logprobs is False


def test_equal_beginnings_have_equal_numbers():
    """A token computed twice, with another last bit, breaks no tie of the greedy rule."""
    rows = [
        [[-1.0, 5, None], [-3.0, 6, None]],
        [[-1.0 - 1e-9, 5, None], [-2.0, 7, None]],
        [[-4.0, 6, None]],
    ]

    assert with_shared_numbers(rows) == [rows[0], [rows[0][0], rows[1][1]], rows[2]]
