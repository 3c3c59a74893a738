"""Tokens that are not a row's own are scored by the same logits as its own."""

from __future__ import annotations

import pytest
from support.checkpoints import tiny_llama
from support.steps import GREEDY, Driver, load, reference_logprobs, scores_of

_IDS = [1, 40, 50, 60, 70, 80, 90, 100]


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("score_from", [None, 5, 7])
@pytest.mark.parametrize("is_sampled", [True, False])
def test_rivals_are_scored_where_they_would_stand(
    start: int, score_from: int | None, *, is_sampled: bool
) -> None:
    """In the middle of a row and behind its end, whatever else the row reports."""
    directory = tiny_llama()
    driver = Driver(load(directory))
    slots = driver.new_slots(8)
    if start:
        driver.step([driver.row(_IDS[:start], slots, params=None)])
    logprobs = reference_logprobs(directory, _IDS)
    rivals = ((5, 33), (5, 44), (7, 55), (8, 66), (8, 77))
    row = driver.row(
        _IDS,
        slots,
        start,
        params=GREEDY if is_sampled else None,
        logprobs_from=score_from,
        rivals=rivals,
        num_prompt_top=2,
    )
    (answer,) = driver.step([row]).rows

    assert [score[:2] for score in answer.rival_logprobs] == list(rivals)
    values = [score[2] for score in answer.rival_logprobs]
    assert values == pytest.approx([float(logprobs[k - 1, t]) for k, t in rivals], abs=1e-4)
    best = [logprobs[k - 1].topk(2).indices.tolist() for k, _ in rivals]
    assert [[t for t, _ in score[3]] for score in answer.rival_logprobs] == best
    known = [] if score_from is None else range(score_from, 8)
    own = {k: float(logprobs[k - 1, _IDS[k]]) for k in known}
    assert scores_of(answer) == pytest.approx(own, abs=1e-4)
    assert (answer.token_id is not None) == is_sampled


def test_many_rivals_of_one_position_need_its_logits_once() -> None:
    """As many as the vocabulary has, beside a neighbour without any."""
    directory = tiny_llama()
    driver = Driver(load(directory))
    wanted = reference_logprobs(directory, _IDS)[-1]
    rivals = tuple((8, token_id) for token_id in range(len(wanted)))
    rows = [
        driver.row(_IDS, driver.new_slots(8), rivals=rivals),
        driver.row(_IDS, driver.new_slots(8), sequence_id=1),
    ]
    first, second = driver.step(rows).rows
    values = [score[2] for score in first.rival_logprobs]
    assert values == pytest.approx(wanted.tolist(), abs=1e-4)
    assert second.rival_logprobs == ()
    assert first.token_id == second.token_id
