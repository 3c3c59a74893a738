"""InternVL: prompts, pixels and answers against transformers."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.families.idefics3 import check_eyes, loaded, random_sizes, resaved, written
from support.families.internvl import FAMILY, tiny_internvl
from support.proof import CLIP_CASES, PICTURE_CASES, Proof, check_goldens, picture
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from mmserve.core import BadRequest, ModelRefused, UnsupportedModel
from mmserve.models import Checkpoint, build_model, read_config
from mmserve.vision.processor import Bounds, FrameFacts

PROOF = Proof(FAMILY)
TILE = 32 * 32


def test_internvl_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_internvl_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


@pytest.mark.parametrize(("family", "is_tied"), [("qwen3", True), ("llama", False)])
def test_internvl_answers_on_other_language_models(family: str, is_tied: bool) -> None:
    """Prompts, log-probabilities and tokens are equal whatever model answers."""
    cases = (PICTURE_CASES[1], CLIP_CASES[1])
    make = partial(tiny_internvl, family, is_tied=is_tied)
    proof = Proof(replace(FAMILY, make=make, cases=cases))
    with proof.engine(chunk_tokens=9) as engine:
        proof.check(proof.read(engine, cases))


@pytest.mark.parametrize(("min_tiles", "max_tiles"), [(1, 6), (4, 12), (1, 1), (2, 2)])
def test_internvl_pictures_as_in_transformers(
    min_tiles: int, max_tiles: int, tmp_path: Path
) -> None:
    """500 random sizes have the processor's text and exactly its pixels."""
    limits = {"min_patches": min_tiles, "max_patches": max_tiles}
    ours = loaded(resaved(PROOF.directory, tmp_path, image_processor=limits))
    processor = PROOF.processor
    num_looked_at = 500 if max_tiles == 6 else 50
    for number, (width, height) in enumerate(random_sizes(num_looked_at, 400)):
        pixels = picture(number, width, height)
        expected = processor.image_processor(
            Image.fromarray(pixels), crop_to_patches=True, return_tensors="np", **limits
        )
        plan = ours.picture(width, height, Bounds())
        text = processor.replace_image_token(expected, 0)
        assert written(plan, "<IMG_CONTEXT>") == text, (width, height)
        found = ours.inputs([pixels], plan.recipe)["pixel_values"]
        np.testing.assert_array_equal(found, expected["pixel_values"])
        assert plan.num_patches == 16 * len(found)


def test_internvl_grids_of_real_checkpoints(tmp_path: Path) -> None:
    """500 random sizes up to 12,000 pixels are cut as transformers cuts them."""
    size = {"size": {"height": 448, "width": 448}, "max_patches": 12}
    changes = {
        "image_processor": size,
        "video_processor": size,
        "processor": {"image_seq_length": 256},
    }
    directory = resaved(PROOF.directory, tmp_path, **changes)
    ours = loaded(directory, vision_config={"patch_size": [14, 14]})
    for width, height in random_sizes(500, 12_000):
        expected = get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
        plan = ours.picture(width, height, Bounds())
        assert plan.recipe == ("tiles", *expected)
        num_tiles = expected[0] * expected[1]
        num_tiles += num_tiles > 1
        assert plan.layout.pieces == ("<img>", 256 * num_tiles, "</img>")


@pytest.mark.parametrize("num", [1, 2, 12])
def test_internvl_writes_clips_as_transformers(num: int) -> None:
    """Frames are numbered from 1, a line each, and one tile each."""
    seen = {"pixel_values_videos": np.zeros((1, num, 3, 32, 32))}
    frames = [FrameFacts(72, 56, Fraction(n)) for n in range(num)]
    plans = loaded(PROOF.directory).clip(frames, Bounds())
    text = "".join(written(plan, "<IMG_CONTEXT>") for plan in plans)
    assert text == PROOF.processor.replace_video_token(seen, 0)
    assert {plan.recipe for plan in plans} == {("frame",)}
    assert [plan.frames for plan in plans] == [(place,) for place in range(num)]


def test_internvl_frames_look_as_in_transformers() -> None:
    """Frames without harsh edges are as by torchvision, which transformers resizes them with.

    Overshoots at harsh edges are cut off in another order there.
    """
    ours = loaded(PROOF.directory)
    level = 1 / 255 / 0.26
    for number, (width, height) in enumerate(random_sizes(40, 400)):
        frame = picture(number, width + 8, height + 8) // 2 + 64
        expected = PROOF.processor.video_processor(
            frame[None], do_sample_frames=False, return_tensors="pt"
        )
        found = ours.inputs([frame], ("frame",))["pixel_values"]
        gap = np.abs(found - expected["pixel_values_videos"][0].numpy())
        assert gap.max() < 1.5 * level, (width, height)
        assert gap.mean() < 0.3 * level, (width, height)


def test_internvl_keeps_bounds() -> None:
    """Grids of more or fewer tiles than a request wants are left out, or it is refused."""
    ours = loaded(PROOF.directory)
    assert ours.picture(400, 300, Bounds()).recipe == ("tiles", 3, 2)
    assert ours.picture(400, 200, Bounds(max_pixels=5 * TILE)).recipe == ("tiles", 2, 1)
    assert ours.picture(400, 300, Bounds(max_pixels=TILE)).recipe == ("tiles", 1, 1)
    assert ours.picture(32, 32, Bounds(min_pixels=3 * TILE)).recipe == ("tiles", 2, 2)
    for bounds, field in (
        (Bounds(max_pixels=TILE - 1), "max_pixels"),
        (Bounds(min_pixels=6 * TILE + 1), "min_pixels"),
        (Bounds(max_pixels=3 * TILE - 1, min_pixels=2 * TILE + 1), "min_pixels"),
    ):
        with pytest.raises(BadRequest) as caught:
            ours.picture(400, 300, bounds)
        assert caught.value.fields["field"] == field
    with pytest.raises(BadRequest, match="32 x 32"):
        ours.clip([FrameFacts(64, 64, Fraction(0))], Bounds(min_pixels=TILE + 1))


def test_internvl_features_do_not_depend_on_company() -> None:
    """Tiles of several items are encoded together, and all-zero tiles with them."""
    check_eyes(PROOF.directory)


@pytest.mark.parametrize(
    ("section", "changes", "word"),
    [
        ("processor", {"image_seq_length": 5}, "5 tokens"),
        ("image_processor", {"size": {"height": 32, "width": 64}}, "square"),
        ("image_processor", {"size": {"height": 24, "width": 24}}, "2.25"),
        ("image_processor", {"do_resize": False}, "square"),
        ("image_processor", {"image_processor_type": "CLIPImageProcessor"}, "CLIPImage"),
        ("video_processor", {"size": {"height": 64, "width": 64}}, "both must be equal"),
        ("video_processor", {"do_center_crop": True}, "square"),
    ],
)
def test_internvl_refuses_settings(
    section: str, changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    """Settings that do not fit the model, or are of another kind, are refused by name."""
    directory = resaved(PROOF.directory, tmp_path, **{section: changes})
    with pytest.raises(ModelRefused, match=word):
        loaded(directory)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"vision_feature_select_strategy": "full"}, "select_strategy"),
        ({"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
        ({"text_config": {"model_type": "gpt_oss"}}, "gpt_oss"),
    ],
)
def test_internvl_refuses_models(changes: dict[str, Any], word: str) -> None:
    """What is not computed is refused by name."""
    config = {**read_config(PROOF.directory), **changes}
    checkpoint = Checkpoint(PROOF.directory, config, torch.float32, torch.device("cpu"))
    with pytest.raises(UnsupportedModel, match=word):
        build_model(checkpoint)
