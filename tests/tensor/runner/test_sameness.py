"""The same answer however work is cut: chunks, batches, shared prefixes, steps."""

from __future__ import annotations

import numpy as np
import pytest
from support.checkpoints import IMAGE_TOKEN_ID, tiny_llama, tiny_llava
from support.steps import GREEDY, Driver, encode_item, load, scores_of

from mmserve.core import FeatureUse, PlanRow, RowSampling, SampledRow, SamplingParams


def _prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(8, 260, length).tolist()


def _assert_same(got: SampledRow, expected: SampledRow) -> None:
    assert got.token_id == expected.token_id
    assert [token for token, _ in got.top] == [token for token, _ in expected.top]
    values = [value for _, value in expected.top]
    assert [value for _, value in got.top] == pytest.approx(values, abs=1e-4)


def _whole(driver: Driver, prompt: list[int], **changes: object) -> SampledRow:
    row = driver.row(prompt, driver.new_slots(len(prompt)), **changes)
    return driver.step([row]).rows[0]


@pytest.mark.parametrize("chunk", [1, 3, 7, 40])
@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_chunked_equals_whole(chunk: int, family: str) -> None:
    """A prompt computed in pieces gives the same next token and the same prompt scores."""
    window = (("sliding_window", 24),)
    directory = tiny_llama("mistral", changes=window) if "-" in family else tiny_llama()
    driver = Driver(load(directory))
    prompt = _prompt(70)
    whole = _whole(driver, prompt, logprobs_from=0)
    slots, scores, answer = driver.new_slots(70), {}, None
    for start in range(0, 70, chunk):
        end = min(70, start + chunk)
        row = driver.row(
            prompt[:end],
            slots,
            start,
            params=GREEDY if end == 70 else None,
            logprobs_from=0,
            next_id=prompt[end] if end < 70 else None,
        )
        answer = driver.step([row]).rows[0]
        scores.update(scores_of(answer))
    assert answer is not None
    _assert_same(answer, whole)
    assert scores == pytest.approx(scores_of(whole), abs=1e-4)
    assert sorted(scores) == list(range(1, 70))


def test_batched_equals_alone() -> None:
    """Rows of many lengths in one step answer as each does by itself."""
    driver = Driver(load(tiny_llama()))
    prompts = [_prompt(length, seed=length) for length in (1, 2, 5, 33, 100, 190)]
    alone = [_whole(driver, prompt) for prompt in prompts]
    rows = [driver.row(prompt, driver.new_slots(len(prompt))) for prompt in prompts]
    for got, expected in zip(driver.step(rows).rows, alone, strict=True):
        _assert_same(got, expected)


def test_rows_share_what_an_earlier_row_of_the_step_computes() -> None:
    """Eight questions on one new picture, all in one step, answer as if each came alone."""
    driver = Driver(load(tiny_llava()))
    item = encode_item(5, 56)
    head = [*_prompt(20), *[IMAGE_TOKEN_ID] * 16, *_prompt(10, seed=1)]
    use = FeatureUse(item.digest, 0, 20, 16)
    prompts = [head + _prompt(6 + i, seed=10 + i) for i in range(8)]
    driver.step([], [item])
    alone = [_whole(driver, prompt, features=[use]) for prompt in prompts]
    slots = [driver.new_slots(len(prompts[0]))]
    rows = [driver.row(prompts[0], slots[0], features=[use])]
    for prompt in prompts[1:]:
        own = np.concatenate([slots[0][:46], driver.new_slots(len(prompt) - 46)])
        slots.append(own)
        rows.append(driver.row(prompt, own, 46))
    answers = driver.step(rows).rows
    for got, expected in zip(answers, alone, strict=True):
        _assert_same(got, expected)


def test_decoding_together_equals_decoding_alone() -> None:
    """Sixteen steps of eight sequences with a common prefix give the tokens of each alone."""
    driver = Driver(load(tiny_llama()))
    head = _prompt(60)
    prompts = [head + _prompt(3 + i, seed=i) for i in range(8)]
    alone = [driver.greedy(prompt, 16) for prompt in prompts]
    shared = driver.new_slots(60)
    driver.step([driver.row(head, shared, params=None)])
    known = [list(prompt) for prompt in prompts]
    slots, starts = [shared] * 8, [60] * 8
    logprobs: list[list[float]] = [[] for _ in prompts]
    for _ in range(16):
        for i, ids in enumerate(known):
            slots[i] = np.concatenate([slots[i], driver.new_slots(len(ids) - len(slots[i]))])
        rows = [driver.row(known[i], slots[i], starts[i]) for i in range(8)]
        for i, answer in enumerate(driver.step(rows).rows):
            starts[i] = len(known[i])
            known[i].append(answer.token_id)
            logprobs[i].append(answer.logprob)
    for i, (tokens, values) in enumerate(alone):
        assert known[i][len(prompts[i]) :] == tokens
        assert logprobs[i] == pytest.approx(values, abs=1e-4)


def test_scattered_slots_answer_like_a_run() -> None:
    """Where a token's KV lies does not matter."""
    driver = Driver(load(tiny_llama()))
    prompt = _prompt(150)
    expected = _whole(driver, prompt)
    slots = np.random.default_rng(0).permutation(driver.new_slots(151))
    _assert_same(driver.step([driver.row(prompt, slots)]).rows[0], expected)
    known = [*prompt, expected.token_id]
    following = driver.step([driver.row(known, slots, 150)]).rows[0]
    _assert_same(following, _whole(driver, known))


def test_a_seeded_row_draws_the_same_in_any_company() -> None:
    """At temperature 1 a seed and a position give one token, alone or between others."""
    driver = Driver(load(tiny_llama()))
    params = SamplingParams(seed=11, top_p=0.95)

    def row(prompt: list[int], position: int) -> PlanRow:
        slots = driver.new_slots(len(prompt))
        sampling = RowSampling(params, 11, position, np.zeros(0, dtype=np.int64))
        return PlanRow(0, 0, np.array(prompt), slots, sampling=sampling)

    prompt = _prompt(20)
    alone = [driver.step([row(prompt, i)]).rows[0].token_id for i in range(8)]
    company = driver.step(
        [row(p, i) for i in range(8) for p in (prompt, _prompt(9, seed=i))]
    ).rows[::2]
    assert [answer.token_id for answer in company] == alone
    assert len(set(alone)) > 1
