"""What a step reports, and what happens when part of it fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import IMAGE_TOKEN_ID, tiny_llama, tiny_llava
from support.steps import GREEDY, Driver, encode_item, load, reference_logprobs, scores_of

from mmserve.core import EncodeItem, FeatureUse, RunnerFailed

_IDS = [1, 40, 50, 60, 70, 80, 90, 100]


def test_a_row_without_sampling_draws_nothing() -> None:
    """Unfinished prompts have no token, no log-probability and no error."""
    driver = Driver(load(tiny_llama()))
    answer = driver.step([driver.row(_IDS, driver.new_slots(8), params=None)]).rows[0]
    assert (answer.token_id, answer.logprob, answer.prompt_logprobs) == (None, None, ())
    assert answer.error is None


@pytest.mark.parametrize(
    ("start", "score_from", "next_id", "positions"),
    [
        (0, 0, None, [1, 2, 3, 4, 5, 6, 7]),
        (0, 5, None, [5, 6, 7]),
        (0, 5, 33, [5, 6, 7, 8]),
        (4, 0, None, [5, 6, 7]),
        (4, 0, 33, [5, 6, 7, 8]),
        (4, 8, 33, [8]),
        (4, 8, None, []),
        (4, 20, None, []),
    ],
)
def test_prompt_scores_are_those_asked_for(
    start: int, score_from: int, next_id: int | None, positions: list[int]
) -> None:
    """Known positions in [max(p, start + 1), end] are scored, sampling or not."""
    directory = tiny_llama()
    driver = Driver(load(directory))
    slots = driver.new_slots(8)
    if start:
        driver.step([driver.row(_IDS[:start], slots, params=None)])
    wanted = reference_logprobs(directory, _IDS)
    tokens = [*_IDS, next_id]
    for params in (GREEDY, None):
        row = driver.row(
            _IDS,
            slots,
            start,
            params=params,
            logprobs_from=score_from,
            next_id=next_id,
            num_prompt_top=2,
        )
        answer = driver.step([row]).rows[0]
        expected = {k: float(wanted[k - 1, tokens[k]]) for k in positions}
        assert scores_of(answer) == pytest.approx(expected, abs=1e-4)
        best = {k: wanted[k - 1].topk(2).indices.tolist() for k in positions}
        assert {k: [t for t, _ in top] for k, _, top in answer.prompt_logprobs} == best
        assert (answer.token_id is None) == (params is None)


def test_media_positions_are_not_scored() -> None:
    """A picture's tokens have no log-probability."""
    driver = Driver(load(tiny_llava()))
    item = encode_item(1, 56)
    ids = [1, 40, *[IMAGE_TOKEN_ID] * 16, 50, 60]
    use = FeatureUse(item.digest, 0, 2, 16)
    row = driver.row(ids, driver.new_slots(20), features=[use], logprobs_from=0)
    assert list(scores_of(driver.step([row], [item]).rows[0])) == [1, 18, 19]


def test_a_picture_may_be_cut_between_steps() -> None:
    """Half of a picture's features in one step and half in the next answer like one step."""
    driver = Driver(load(tiny_llava()))
    item = encode_item(1, 56)
    ids = [1, 40, *[IMAGE_TOKEN_ID] * 16, 50, 60]
    use = FeatureUse(item.digest, 0, 2, 16)
    whole = driver.step([driver.row(ids, driver.new_slots(20), features=[use])], [item]).rows[0]
    slots = driver.new_slots(20)
    parts = [FeatureUse(item.digest, 0, 2, 5), FeatureUse(item.digest, 5, 0, 11)]
    driver.step([driver.row(ids[:7], slots, params=None, features=parts[:1])])
    answer = driver.step([driver.row(ids, slots, 7, features=parts[1:])]).rows[0]
    assert answer.token_id == whole.token_id
    assert answer.logprob == pytest.approx(whole.logprob, abs=1e-4)


def test_dropped_features_are_gone() -> None:
    """A plan that uses features after they were dropped fails as a whole."""
    driver = Driver(load(tiny_llava()))
    item = encode_item(1, 56)
    ids = [1, *[IMAGE_TOKEN_ID] * 16, 50]
    row = driver.row(ids, driver.new_slots(18), features=[FeatureUse(item.digest, 0, 1, 16)])
    driver.step([row], [item])
    driver.step([row])
    with pytest.raises(RunnerFailed) as caught:
        driver.step([row], drop=[item.digest])
    assert caught.value.fields == {"step": 3}


def test_wrong_pixels_fail_the_step_and_the_next_one_works() -> None:
    """Pixels of another size are refused; the runner stays usable."""
    driver = Driver(load(tiny_llava()))
    pixels = np.zeros((3, 55, 56), dtype=np.float32)
    with pytest.raises(RunnerFailed):
        driver.step([], [EncodeItem(bytes(16), {"pixel_values": pixels})])
    assert driver.greedy(_IDS, 2)[0]


def test_a_poisoned_picture_harms_its_own_row_only() -> None:
    """Pixels that are not numbers end their row with an error, the neighbour answers."""
    driver = Driver(load(tiny_llava()))
    good = encode_item(1, 56)
    bad = EncodeItem(bytes(16), {"pixel_values": np.full((3, 56, 56), np.nan, np.float32)})
    ids = [1, *[IMAGE_TOKEN_ID] * 16, 50]
    rows = [
        driver.row(ids, driver.new_slots(18), features=[FeatureUse(item.digest, 0, 1, 16)])
        for item in (good, bad)
    ]
    alone = driver.step(rows[:1], [good]).rows[0]
    answers = driver.step(rows, [bad]).rows
    assert answers[0].token_id == alone.token_id
    assert isinstance(answers[1].error, RunnerFailed)
    assert answers[1].token_id is None


def test_encoding_in_batches_equals_one_by_one() -> None:
    """Pictures encoded together have the features of each alone."""
    ids = [1, *[IMAGE_TOKEN_ID] * 16, 50]
    items = [encode_item(seed, 56) for seed in range(5)]
    answers = []
    for groups in ([items], [[item] for item in items]):
        driver = Driver(load(tiny_llava()))
        for group in groups:
            driver.step([], group)
        rows = [
            driver.row(ids, driver.new_slots(18), features=[FeatureUse(i.digest, 0, 1, 16)])
            for i in items
        ]
        answers.append([row.logprob for row in driver.step(rows).rows])
    assert answers[0] == pytest.approx(answers[1], abs=1e-5)


def test_facts_of_a_model() -> None:
    """The planning wing learns sizes, ends and limits from the checkpoint's files."""
    info = load(tiny_llava()).info
    assert (info.family, info.context_length, info.num_slots) == ("llava", 512, 2048)
    assert (info.eos_token_ids, info.bos_token_id, info.image_token_id) == ((2, 7), 1, 3)
    assert info.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert info.feature_bytes_per_token == 64 * 4
    assert len(info.fingerprint) == 16
    text = load(tiny_llama(), context_length=100, served_name="mine").info
    assert (text.name, text.context_length, text.has_images) == ("mine", 100, False)


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    """Another seed or another setting is another model; a copy is the same."""
    first = load(tiny_llama()).info.fingerprint
    copy = shutil.copytree(tiny_llama(), tmp_path / "copy")
    assert load(copy).info.fingerprint == first
    assert load(tiny_llama(seed=1)).info.fingerprint != first
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    assert load(copy).info.fingerprint != first


def test_slots_come_from_the_memory_given() -> None:
    """Without num_slots the store takes kv_bytes, but no more than sequences can use."""
    directory = tiny_llama()
    per_token = load(directory).info.kv_bytes_per_token
    small = load(directory, num_slots=None, kv_bytes=1000 * per_token)
    assert small.info.num_slots == 1000
    assert load(directory, num_slots=None).info.num_slots == 128 * 512


def test_threads_come_from_the_settings() -> None:
    """Loading sets torch's threads to what the configuration says."""
    load(tiny_llama())
    assert torch.get_num_threads() == 1
