"""Idefics3: prompts, pixels and answers against transformers."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.families.idefics3 import (
    FAMILY,
    check_eyes,
    check_pictures,
    loaded,
    random_sizes,
    resaved,
    tiny_idefics3,
    written,
)
from support.proof import Proof, check_goldens, picture
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)

from mmserve.core import BadRequest, ModelRefused, UnsupportedModel
from mmserve.models import Checkpoint, build_model, read_config
from mmserve.vision.processor import Bounds, FrameFacts, Processor

PROOF = Proof(FAMILY)


def test_idefics3_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_idefics3_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


def test_idefics3_pictures_as_in_transformers() -> None:
    """500 random sizes have the processor's text and exactly its pixels."""
    check_pictures(loaded(PROOF.directory), PROOF.processor, random_sizes(500, 400))


def test_idefics3_pictures_in_one_tile() -> None:
    """A checkpoint that does not split pictures squeezes each into one tile."""
    reference = Proof(FAMILY)
    reference.directory = tiny_idefics3(is_split=False)
    ours = loaded(reference.directory)
    check_pictures(ours, reference.processor, random_sizes(50, 400))
    with pytest.raises(BadRequest, match="32 x 32"):
        ours.picture(64, 64, Bounds(max_pixels=1000))


class _Sizes(Idefics3ImageProcessorPil):
    """Transformers' steps on sizes alone."""

    def resize(self, image: Any, size: Any, **_: Any) -> Any:
        """A blank of the size that the picture would have."""
        shape = (size.height, size.width)
        if size.longest_edge:
            shape = get_resize_output_image_size(image, resolution_max_side=size.longest_edge)
        return np.broadcast_to(np.uint8(0), (3, *shape))


@pytest.mark.parametrize(("side", "edge"), [(364, 1456), (512, 2048), (512, 5120), (384, 1000)])
def test_idefics3_grids_of_real_checkpoints(side: int, edge: int, tmp_path: Path) -> None:
    """500 random sizes up to 12,000 pixels have transformers' rows and columns."""
    sizes = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": side}}
    changes = {"image_processor": sizes, "processor": {"image_seq_len": 1}}
    directory = resaved(PROOF.directory, tmp_path, **changes)
    ours = loaded(directory, vision_config={"patch_size": side // 2})
    steps = _Sizes(**sizes)
    for width, height in random_sizes(500, 12_000):
        blank = np.broadcast_to(np.uint8(0), (3, height, width))
        scaled = steps.resize(blank, steps.size)
        stretched = steps.resize_for_vision_encoder(scaled, side)
        _, rows, columns = steps.split_images(stretched, steps.max_image_size)
        text = written(ours.picture(width, height, Bounds()), "")
        assert text.count("<row_") == rows * columns
        assert rows * columns == 0 or f"<row_{rows}_col_{columns}>" in text


def test_idefics3_keeps_bounds() -> None:
    """A picture has the largest longest edge whose tiles keep the bounds, or is refused."""
    ours = loaded(PROOF.directory)
    tile = 32 * 32
    assert _pixels(ours, Bounds()) == 4 * 3 * tile
    assert _pixels(ours, Bounds(max_pixels=12 * tile)) == 12 * tile
    assert _pixels(ours, Bounds(max_pixels=12 * tile - 1)) == 3 * 3 * tile
    assert _pixels(ours, Bounds(max_pixels=5 * tile, min_pixels=4 * tile)) == 2 * 2 * tile
    assert _pixels(ours, Bounds(max_pixels=tile)) == tile
    for bounds, field in (
        (Bounds(max_pixels=tile - 1), "max_pixels"),
        (Bounds(min_pixels=12 * tile + 1), "min_pixels"),
        (Bounds(max_pixels=5 * tile, min_pixels=5 * tile), "min_pixels"),
    ):
        with pytest.raises(BadRequest) as caught:
            ours.picture(400, 300, bounds)
        assert caught.value.fields["field"] == field


def _pixels(ours: Processor, bounds: Bounds) -> int:
    plan = ours.picture(400, 300, bounds)
    tiles = ours.inputs([picture(1, 400, 300)], plan.recipe)["pixel_values"]
    assert plan.layout.num_features == 4 * len(tiles)
    return 32 * 32 * max(1, len(tiles) - 1)


def test_idefics3_frames_are_pictures() -> None:
    """A frame of a clip has the plan of a picture of its size."""
    ours = loaded(PROOF.directory)
    frames = [FrameFacts(96, 64, Fraction(n, 2)) for n in range(3)]
    plan = ours.picture(96, 64, Bounds())
    assert ours.style.video_token_id is None
    assert ours.clip(frames, Bounds()) == tuple(replace(plan, frames=(n,)) for n in range(3))


def test_idefics3_features_do_not_depend_on_company() -> None:
    """Tiles of several items are encoded together, and all-zero tiles with them."""
    check_eyes(PROOF.directory)


@pytest.mark.parametrize(
    ("section", "changes", "word"),
    [
        ("processor", {"image_seq_len": 5}, "5 tokens"),
        ("image_processor", {"max_image_size": {"longest_edge": 40}}, "cannot be merged"),
        ("image_processor", {"size": {"height": 32, "width": 32}}, "longest edge"),
        ("image_processor", {"image_processor_type": "CLIPImageProcessor"}, "CLIPImage"),
    ],
)
def test_idefics3_refuses_settings(
    section: str, changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    """Settings that do not fit the model, or are of another kind, are refused by name."""
    directory = resaved(PROOF.directory, tmp_path, **{section: changes})
    with pytest.raises(ModelRefused, match=word):
        loaded(directory)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"vision_config": {"image_size": [32, 64]}}, "image_size"),
        ({"text_config": {"model_type": "gpt2"}}, "gpt2"),
    ],
)
def test_idefics3_refuses_models(changes: dict[str, Any], word: str) -> None:
    """What is not computed is refused by name."""
    config = {**read_config(PROOF.directory), **changes}
    checkpoint = Checkpoint(PROOF.directory, config, torch.float32, torch.device("cpu"))
    with pytest.raises(UnsupportedModel, match=word):
        build_model(checkpoint)
