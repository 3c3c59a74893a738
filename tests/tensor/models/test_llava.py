"""LLaVA against transformers: pictures encoded, placed and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import IMAGE_TOKEN_ID, tiny_llava
from support.steps import (
    GREEDY,
    Driver,
    encode_item,
    load,
    pixels,
    reference_logprobs,
)

from mmserve.core import FeatureUse

_CASES = {
    "clip": tiny_llava,
    "clip-last-full": lambda: tiny_llava("clip", layer=-1, strategy="full"),
    "clip-first": lambda: tiny_llava("clip", layer=1),
    "clip-several": lambda: tiny_llava("clip", layer=(-2, 0, -1)),
    "siglip-full": lambda: tiny_llava("siglip", strategy="full"),
    "siglip-last-rest": lambda: tiny_llava("siglip", layer=-1, strategy="full", image_size=50),
    "siglip-default": lambda: tiny_llava("siglip", layer=-1, strategy="default"),
    "qwen2": lambda: tiny_llava("clip", image_size=32, patch_size=8, family="qwen2"),
    "bakllava": lambda: tiny_llava(family="mistral"),
}


def _prompt(num_pictures: int, tokens_per_image: int) -> tuple[list[int], list[int]]:
    """Ids with pictures in them, and where each picture starts."""
    text = np.random.default_rng(3).integers(8, 260, 60).tolist()
    ids, starts = text[:7], []
    for picture in range(num_pictures):
        starts.append(len(ids))
        ids += [IMAGE_TOKEN_ID] * tokens_per_image + text[10 + picture : 14 + picture]
    return ids + text[20:29], starts


def _check(directory: Path, num_pictures: int) -> None:
    driver = Driver(load(directory))
    config = driver.loaded.config
    size, num = config["vision_config"]["image_size"], config["image_seq_length"]
    ids, starts = _prompt(num_pictures, num)
    items = [encode_item(seed, size) for seed in range(num_pictures)]
    uses = [
        FeatureUse(item.digest, 0, start, num)
        for item, start in zip(items, starts, strict=True)
    ]
    slots = driver.new_slots(len(ids) + 12)
    pictures = [pixels(seed, size) for seed in range(num_pictures)]
    answer = driver.step([driver.row(ids, slots, features=uses)], items).rows[0]
    for _ in range(12):
        wanted = reference_logprobs(directory, ids, pictures)[-1]
        best = torch.topk(wanted, 5)
        assert answer.token_id == int(wanted.argmax())
        assert [token for token, _ in answer.top] == best.indices.tolist()
        values = [value for _, value in answer.top]
        assert values == pytest.approx(best.values.tolist(), abs=1e-3)
        ids.append(answer.token_id)
        answer = driver.step([driver.row(ids, slots, len(ids) - 1, params=GREEDY)]).rows[0]


@pytest.mark.parametrize("case", _CASES)
def test_one_picture_equals_transformers(case: str) -> None:
    """Greedy tokens about a picture, and the likeliest at each, are those of transformers."""
    _check(_CASES[case](), 1)


@pytest.mark.parametrize("case", ["clip", "siglip-full"])
def test_three_pictures_equal_transformers(case: str) -> None:
    """Three pictures in one prompt, encoded in one batch, are read like transformers does."""
    _check(_CASES[case](), 3)


def test_another_picture_gives_another_answer() -> None:
    """The picture matters: log-probabilities move when it changes."""
    driver = Driver(load(tiny_llava()))
    ids, starts = _prompt(1, 16)
    items = [encode_item(seed, 56) for seed in range(2)]
    rows = [
        driver.row(
            ids,
            driver.new_slots(len(ids)),
            features=[FeatureUse(item.digest, 0, starts[0], 16)],
        )
        for item in items
    ]
    first, second = driver.step(rows, items).rows
    assert max(abs(a[1] - b[1]) for a, b in zip(first.top, second.top, strict=True)) > 0.01
