"""Sizes, tokens, pixels and positions of Qwen-VL against transformers' own processors."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support.families.qwen_checkpoints import CLASSES, load_processor, tiny_qwen_vl
from support.proof import picture
from transformers.video_processing_utils import BaseVideoProcessor

from mmserve.core import GridPlace, MediaSpan, Prompt
from mmserve.prompt.positions import placed
from mmserve.vision.families.qwen_vl import QwenVlProcessor, load
from mmserve.vision.processor import Bounds, FrameFacts, ItemPlan

FAMILIES = tuple(CLASSES)
NUM_PICTURES = 500
NUM_CLIPS = 200
NUM_PROMPTS = 40


def _ours(name: str) -> QwenVlProcessor:
    directory = tiny_qwen_vl(name)
    return load(directory, json.loads((directory / "config.json").read_text()))


def _sizes(seed: int, num: int) -> list[tuple[int, int]]:
    """Widths and heights, small and large, some of them strips."""
    random = np.random.default_rng(seed)
    sides = np.exp(random.uniform(np.log(8), np.log(4000), (num * 2, 2))).astype(int)
    found = [(int(w), int(h)) for w, h in sides if max(w, h) <= 200 * min(w, h)]
    return found[:num]


def _frames(size: tuple[int, int], num: int, rate: Fraction = Fraction(2)) -> list[FrameFacts]:
    return [FrameFacts(*size, k / rate) for k in range(num)]


@pytest.mark.parametrize("name", FAMILIES)
def test_500_sizes_give_the_tokens_of_transformers(name: str) -> None:
    """Patches, grid and tokens of a picture are known from its size."""
    ours, theirs = _ours(name), load_processor(tiny_qwen_vl(name)).image_processor
    for width, height in _sizes(1, NUM_PICTURES):
        plan = ours.picture(width, height, Bounds())
        want = theirs.get_number_of_image_patches(height, width)
        grid = plan.layout.grid
        assert grid is not None
        tokens = grid.rows * grid.columns
        assert (plan.num_patches, tokens, plan.layout.pieces) == (want, want // 4, (tokens,))


@pytest.mark.parametrize("name", FAMILIES)
def test_pixels_of_pictures_are_those_of_transformers_bit_for_bit(name: str) -> None:
    """What the tower gets of a picture equals the Pillow backend's arrays."""
    ours, theirs = _ours(name), load_processor(tiny_qwen_vl(name)).image_processor
    for seed, (width, height) in enumerate(_sizes(2, 12)):
        pixels = picture(seed, width, height)
        found = ours.inputs([pixels], ours.picture(width, height, Bounds()).recipe)
        want = theirs(Image.fromarray(pixels), return_tensors="np")
        np.testing.assert_array_equal(found["pixel_values"], want["pixel_values"])
        np.testing.assert_array_equal(found["grid"], want["image_grid_thw"][0])


@pytest.mark.parametrize("has_cap", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_200_clips_give_the_tokens_of_transformers(
    name: str,
    has_cap: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups and their grids are known from the size and number of frames, cap or no cap."""
    ours, theirs = _ours(name), load_processor(tiny_qwen_vl(name)).video_processor
    theirs.max_video_tokens = 30 if name == "qwen3_vl" else 600
    if has_cap:
        limits = replace(ours.clip_limits, max_tokens=theirs.max_video_tokens)
        ours = replace(ours, clip_limits=limits)
    monkeypatch.setattr(
        BaseVideoProcessor, "resize", lambda _, image, size, resample: size, raising=False
    )
    random = np.random.default_rng(3)
    for width, height in _sizes(4, NUM_CLIPS):
        num = int(random.integers(2, 40))
        plans = ours.clip(_frames((width, height), num), Bounds())
        want = theirs.resize(
            SimpleNamespace(shape=(1, num, 3, height, width)),
            theirs.size,
            None,
            factor=theirs.patch_size * theirs.merge_size,
            temporal_factor=2,
            cap_pixels_per_frame=has_cap,
        )
        assert {plan.recipe[1:3] for plan in plans} == {(want.height, want.width)}
        places = [tuple(range(k, min(k + 2, num))) for k in range(0, num, 2)]
        assert [plan.frames for plan in plans] == places
        patches = (want.height // theirs.patch_size) * (want.width // theirs.patch_size)
        found = {(plan.num_patches, plan.layout.num_features) for plan in plans}
        assert found == {(patches, patches // 4)}


@pytest.mark.parametrize("num_frames", [2, 5, 9])
@pytest.mark.parametrize("name", FAMILIES)
def test_pixels_of_clips_are_those_of_transformers(name: str, num_frames: int) -> None:
    """Groups are the clip's rows, but where torchvision resizes otherwise than Pillow.

    Of values at most 1 in 50 differ, and 1 in 500 by more than one level of 256.
    """
    ours, theirs = _ours(name), load_processor(tiny_qwen_vl(name)).video_processor
    frames = [picture(seed, 100, 70) for seed in range(num_frames)]
    plans = ours.clip(_frames((100, 70), num_frames), Bounds())
    found = [ours.inputs([frames[n] for n in plan.frames], plan.recipe) for plan in plans]
    want = theirs(np.stack(frames), return_tensors="np", cap_pixels_per_frame=False)
    grid = [1, *want["video_grid_thw"][0, 1:].tolist()]
    assert [item["grid"].tolist() for item in found] == [grid] * len(plans)
    rows = np.concatenate([item["pixel_values"] for item in found])
    levels = np.abs(rows - want["pixel_values_videos"]) * max(theirs.image_std) * 255
    assert (levels > 0.01).mean() < 0.02
    assert (levels > 1.1).mean() < 0.002


@pytest.mark.parametrize("name", FAMILIES)
def test_frames_of_the_right_size_are_read_as_in_transformers(name: str) -> None:
    """Without resizing, a clip's rows are equal within the rounding of one product."""
    ours, theirs = _ours(name), load_processor(tiny_qwen_vl(name)).video_processor
    size = (5 * ours.clip_patches.unit, 2 * ours.clip_patches.unit)
    frames = [picture(seed, *size) for seed in range(4)]
    plans = ours.clip(_frames(size, 4), Bounds())
    found = [ours.inputs([frames[n] for n in plan.frames], plan.recipe) for plan in plans]
    want = theirs(np.stack(frames), return_tensors="np", cap_pixels_per_frame=False)
    rows = np.concatenate([item["pixel_values"] for item in found])
    np.testing.assert_allclose(rows, want["pixel_values_videos"], atol=2e-6)


def _medium(
    random: np.random.Generator, ours: QwenVlProcessor
) -> tuple[list[ItemPlan], list[int], float]:
    """A picture's or clip's items, its grid for transformers, and seconds between groups."""
    size = (int(random.integers(30, 300)), int(random.integers(30, 300)))
    if random.random() < 0.5:
        plan = ours.picture(*size, Bounds())
        grid = plan.layout.grid or GridPlace(0, 0)
        return [plan], [1, grid.rows * 2, grid.columns * 2], 0.0
    rate = Fraction(int(random.integers(1, 40)), int(random.integers(1, 8)))
    plans = list(ours.clip(_frames(size, int(random.integers(2, 30)), rate), Bounds()))
    grid = plans[0].layout.grid or GridPlace(0, 0)
    return plans, [len(plans), grid.rows * 2, grid.columns * 2], float(2 / rate)


@pytest.mark.parametrize("name", FAMILIES)
def test_positions_are_those_of_transformers(name: str) -> None:
    """Random mixes of text, pictures and clips stand where `get_rope_index` puts them."""
    ours = _ours(name)
    config = transformers.AutoConfig.from_pretrained(tiny_qwen_vl(name))
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    random = np.random.default_rng(5)
    for _ in range(NUM_PROMPTS):
        kinds: list[int] = []
        spans: list[MediaSpan] = []
        grids: dict[int, list[list[int]]] = {1: [], 2: []}
        seconds: list[float] = []
        for _ in range(random.integers(1, 6)):
            kinds += [0] * int(random.integers(1, 9))
            plans, grid, gap = _medium(random, ours)
            kind = 2 if gap else 1
            grids[kind].append(grid)
            seconds += [gap] * (kind == 2)
            for plan in plans:
                num = plan.layout.num_features
                spans.append(MediaSpan(bytes(16), len(kinds), num, grid=plan.layout.grid))
                kinds += [kind] * num + [0] * (name == "qwen3_vl")
        kinds += [0] * 3
        want = model.model.get_rope_index(
            torch.zeros((1, len(kinds)), dtype=torch.int64),
            torch.tensor([kinds]),
            image_grid_thw=torch.tensor(grids[1]) if grids[1] else None,
            video_grid_thw=torch.tensor(grids[2]) if grids[2] else None,
            second_per_grid_ts=torch.tensor(seconds),
        )[0]
        found = placed(Prompt(np.zeros(len(kinds), np.int64), tuple(spans)))
        assert found.positions is not None
        assert found.positions.tolist() == want[:, 0].tolist()
        assert found.next_position == int(want[0, 0, -1]) + 1
