"""Positions in time, rows and columns: the rule, and prompts made longer and shorter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.core import GridPlace, MediaSpan, Prompt
from mmserve.prompt import longer, shorter
from mmserve.prompt.positions import grid_positions, placed

Piece = int | list[GridPlace]
"""So many tokens of text, or the groups of one picture or clip."""


def _groups(rows: int, columns: int, times: list[int]) -> list[GridPlace]:
    return [
        GridPlace(rows, columns, time, is_first=step == 0)
        for step, time in enumerate([0, *np.cumsum(times).tolist()])
    ]


PIECES = st.lists(
    st.one_of(
        st.integers(0, 5),
        st.builds(
            _groups,
            st.integers(1, 4),
            st.integers(1, 4),
            st.lists(st.integers(0, 9), max_size=4),
        ),
    ),
    max_size=8,
)


def _prompt(pieces: list[Piece]) -> Prompt:
    num_tokens, spans = 0, []
    for piece in pieces:
        if isinstance(piece, int):
            num_tokens += piece
            continue
        for grid in piece:
            size = grid.rows * grid.columns
            spans.append(MediaSpan(bytes(16), num_tokens, size, "video", grid=grid))
            num_tokens += size
    return Prompt(np.arange(num_tokens, dtype=np.int64), tuple(spans))


def _token_by_token(pieces: list[Piece]) -> tuple[list[tuple[int, int, int]], int]:
    """The rule, one token at a time."""
    places: list[tuple[int, int, int]] = []
    here = 0
    for piece in pieces:
        if isinstance(piece, int):
            places += [(here + k, here + k, here + k) for k in range(piece)]
            here += piece
            continue
        for grid in piece:
            for row in range(grid.rows):
                for column in range(grid.columns):
                    places.append((here + grid.time, here + row, here + column))
        here += max(piece[0].rows, piece[0].columns)
    return places, here


@given(PIECES)
def test_positions_follow_the_rule(pieces: list[Piece]) -> None:
    """Text counts on, a picture or clip spreads from where it begins, by its longer side."""
    prompt = _prompt(pieces)
    positions, following = grid_positions(prompt.num_tokens, prompt.spans)
    places, here = _token_by_token(pieces)
    assert (list(zip(*positions.tolist(), strict=True)), following) == (places, here)


@given(PIECES, st.integers(0, 6))
def test_a_longer_prompt_is_placed_as_if_rendered_whole(pieces: list[Piece], more: int) -> None:
    """Text behind a prompt stands where the same tokens of one prompt would."""
    whole = placed(_prompt([*pieces, more]))
    prompt = placed(_prompt(pieces))
    grown = longer(prompt, whole.token_ids[prompt.num_tokens :])
    assert grown.positions is not None
    assert whole.positions is not None
    assert grown.positions.tolist() == whole.positions.tolist()
    assert grown.next_position == whole.next_position


@given(PIECES, st.integers(1, 6))
def test_a_shorter_prompt_is_placed_as_if_rendered_so(pieces: list[Piece], num: int) -> None:
    """Without its last texts a prompt's positions, and the next one, are those of the rest."""
    whole, short = placed(_prompt([*pieces, num])), placed(_prompt(pieces))
    cut = shorter(whole, num)
    assert cut.positions is not None
    assert short.positions is not None
    assert cut.positions.tolist() == short.positions.tolist()
    assert cut.next_position == short.next_position


def test_prompts_without_grids_stay_so() -> None:
    """A model that counts one position a token gets prompts without positions."""
    prompt = Prompt(np.arange(3, dtype=np.int64))
    assert longer(prompt, np.array([7])).positions is None
    assert shorter(prompt, 1).token_ids.tolist() == [0, 1]


@pytest.mark.parametrize("time", [1, 40])
def test_an_answer_goes_on_as_the_same_text_of_a_later_prompt(time: int) -> None:
    """However far a clip reaches in time, KV of an answer is that of a longer chat's tokens."""
    pieces: list[Piece] = [2, _groups(2, 3, [time]), 3]
    prompt, later = placed(_prompt(pieces)), placed(_prompt([*pieces, 4]))
    assert later.positions is not None
    answer = np.arange(prompt.next_position, prompt.next_position + 4)
    assert later.positions[:, prompt.num_tokens :].tolist() == [answer.tolist()] * 3
