"""LLaVA-OneVision against transformers."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support import anyres
from support.families.llava_onevision import (
    FAMILY,
    PATCH_SIZE,
    SIDE,
    tiny_llava_onevision,
    tokenizer_with_video,
)
from support.proof import Case, Clip, Proof, check_goldens, picture
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)

from mmserve.core import BadRequest, MediaLayout, UnsupportedModel
from mmserve.models import build_model
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds, FrameFacts

PROOF = Proof(FAMILY)
FRAMES = [FrameFacts(72, 56, Fraction(n, 2)) for n in range(4)]


def test_llava_onevision_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, clips among the cases."""
    PROOF.check_everyhow()


def test_llava_onevision_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


@pytest.mark.parametrize("max_tiles", [1, 4, 9])
def test_features_of_any_resolution(max_tiles: int) -> None:
    """Features of 20 sizes are those of transformers, and the same together and alone."""
    anyres.check_features(tiny_llava_onevision(max_tiles=max_tiles))


def test_features_of_clips() -> None:
    """Frames' features and the newline are those of a whole clip, together and alone."""
    ours = anyres.processor_of(PROOF.directory)
    eyes = build_model(anyres.checkpoint_of(PROOF.directory)).pictures
    plans = ours.clip(FRAMES, Bounds())
    shown = [picture(seed, 72, 56) for seed in range(4)]
    items = [ours.inputs([shown[n] for n in plan.frames], plan.recipe) for plan in plans]
    with torch.inference_mode():
        pixels = torch.stack([torch.tensor(item["frame"]) for item in items[:-1]])
        expected = PROOF.model.get_video_features(pixels[None]).pooler_output[0]
        found = eyes.encode(items)
        alone = [eyes.encode([item])[0] for item in items]
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cat(found), torch.cat(alone), atol=1e-5, rtol=0)
    assert [len(one) for one in found] == [plan.layout.num_features for plan in plans]


def test_windows_encode_each_frame_once() -> None:
    """Three windows over a clip encode its five frames, and one newline for all."""
    proof = Proof(replace(FAMILY, num_tokens=2))
    frames = tuple(picture(seed, 72, 56) for seed in range(5))
    windows = [
        Case(f"{first}", (("user", (Clip(frames[first : first + 3], 2.0), "And now?")),))
        for first in range(3)
    ]
    with proof.engine() as engine:
        proof.read(engine, windows)
        assert engine.counters()["encoded_items_total"] == 6


def test_pictures_frames_and_newlines_together() -> None:
    """Items of all kinds in one batch keep their order."""
    ours = anyres.processor_of(PROOF.directory)
    eyes = build_model(anyres.checkpoint_of(PROOF.directory)).pictures
    pixels = [picture(5, 50, 90)]
    recipe = ours.picture(50, 90, Bounds()).recipe
    kinds = [ours.inputs(pixels, recipe), ours.inputs([], ("newline",))]
    items = [ours.inputs(pixels, ("frame",)), *kinds, ours.inputs(pixels, ("frame",))]
    with torch.inference_mode():
        for one, item in zip(eyes.encode(items), items, strict=True):
            torch.testing.assert_close(one, eyes.encode([item])[0], atol=1e-5, rtol=0)


def test_number_of_tokens_of_the_small_checkpoint() -> None:
    """500 sizes have as many tokens as in transformers."""
    anyres.check_numbers(anyres.processor_of(PROOF.directory), PROOF.processor, 3000)


@pytest.mark.parametrize("max_tiles", [2, 9])
def test_number_of_tokens_of_real_checkpoints(tmp_path: Path, max_tiles: int) -> None:
    """500 sizes have as many tokens as in transformers with tiles of 384 pixels."""
    ratio = f"anyres_max_{max_tiles}"
    reference = transformers.LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessorPil(),
        tokenizer=tokenizer_with_video(),
        video_processor=transformers.LlavaOnevisionVideoProcessor(),
        num_image_tokens=729,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=ratio,
    )
    config = {"model_type": "llava_onevision", "vision_aspect_ratio": ratio}
    ours = load_processor(tmp_path, config)
    anyres.check_numbers(ours, reference, 9000)
    assert ours.clip(FRAMES, Bounds())[0].layout == MediaLayout((196,))


def test_tiles_are_exactly_those_of_transformers() -> None:
    """The whole picture and its tiles equal those of transformers' Pillow backend."""
    reference = PROOF.processor.image_processor
    anyres.check_pixels(anyres.processor_of(PROOF.directory), reference)


def test_frames_are_those_of_transformers() -> None:
    """Frames equal torchvision's but for few values that are one level apart."""
    ours = anyres.processor_of(PROOF.directory)
    shown = [picture(seed, 72, 56) for seed in range(4)]
    found = np.stack([ours.inputs([frame], ("frame",))["frame"] for frame in shown])
    reference = PROOF.processor.video_processor(videos=[shown], return_tensors="np")
    gaps = np.abs(found - reference["pixel_values_videos"][0])
    assert gaps.max() < 1.01 / 255 / 0.4
    assert (gaps > 1e-6).mean() < 0.01


def test_a_clip_is_its_frames_and_a_newline() -> None:
    """Each frame is an item of its own, the same in every window; one newline ends a clip."""
    ours = anyres.processor_of(PROOF.directory)
    plans = ours.clip(FRAMES, Bounds())
    pooled = math.ceil(SIDE // PATCH_SIZE / 2) ** 2
    assert [plan.frames for plan in plans] == [(0,), (1,), (2,), (3,), ()]
    assert {plan.recipe for plan in plans[:-1]} == {("frame",)}
    assert [plan.layout.pieces for plan in plans] == [(pooled,)] * 4 + [(1,)]
    assert ours.style.video_token_id == PROOF.processor.video_token_id
    assert ours.clip(FRAMES[1:], Bounds())[-1] == plans[-1]


def test_bounds_of_frames() -> None:
    """A frame is always seen at the tower's size, and bounds that break it are refused."""
    ours = anyres.processor_of(PROOF.directory)
    ours.clip(FRAMES, Bounds(SIDE**2, SIDE**2))
    for bounds in (Bounds(max_pixels=SIDE**2 - 1), Bounds(min_pixels=SIDE**2 + 1)):
        with pytest.raises(BadRequest):
            ours.clip(FRAMES, bounds)


@pytest.mark.parametrize("ratio", ["anyres", "pad", "anyres_max_0", "anyres_max_9_x"])
def test_other_ratios_are_refused(ratio: str) -> None:
    """Ways with tiles that this family does not know are refused by name."""
    with pytest.raises(UnsupportedModel, match="vision_aspect_ratio"):
        anyres.processor_of(PROOF.directory, {"vision_aspect_ratio": ratio})


def test_fingerprints_tell_settings_apart() -> None:
    """Another bound of features, other canvases or other frames are another fingerprint."""
    ours = anyres.processor_of(PROOF.directory)
    other = anyres.processor_of(PROOF.directory, {"vision_aspect_ratio": "anyres_max_3"})
    same = anyres.processor_of(tiny_llava_onevision())
    assert ours.fingerprint == same.fingerprint
    assert ours.fingerprint != other.fingerprint
