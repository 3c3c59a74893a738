"""Pixtral: the proof, sizes and pixels as in transformers, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.families.pixtral import (
    FAMILY,
    LONGEST_EDGE,
    PATCH_SIZE,
    check_eyes,
    check_inputs,
    check_sizes,
    processor_of,
    random_sizes,
    variant,
)
from support.proof import Proof, check_goldens

from mmserve.core import BadRequest, UnsupportedModel
from mmserve.models import build_model, read_config
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds

PROOF = Proof(FAMILY)


def test_pixtral_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_pixtral_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


def test_pixtral_writes_sizes_as_transformers() -> None:
    """500 random sizes have the rows, the row ends and the target of transformers."""
    check_sizes(PROOF.directory, PROOF.processor)


def test_pixtral_prepares_pixels_as_transformers() -> None:
    """Resized and normalised pixels are equal, bit for bit."""
    check_inputs(PROOF.directory, PROOF.processor)


def test_pixtral_sees_pictures_alike_alone_and_together() -> None:
    """Pictures of five sizes, padded to the largest, have the features they have alone."""
    check_eyes(PROOF.directory)


def test_pixtral_keeps_bounds() -> None:
    """A picture has at most max_pixels in whole units, and not far fewer."""
    processor = processor_of(PROOF.directory)
    for width, height in random_sizes(2, 500):
        own = _area(processor.picture(width, height, Bounds()).recipe)
        for bound in (PATCH_SIZE**2, 1000, 5000, LONGEST_EDGE**2):
            recipe = processor.picture(width, height, Bounds(max_pixels=bound)).recipe
            assert all(int(side) % PATCH_SIZE == 0 for side in recipe)
            assert _area(recipe) == own if own <= bound else bound / 8 <= _area(recipe) <= bound


def test_pixtral_grows_small_pictures() -> None:
    """A square picture gets min_pixels, up to the longest edge."""
    processor = processor_of(PROOF.directory)
    for side in (1, 8, 30, 60):
        recipe = processor.picture(side, side, Bounds(min_pixels=5000)).recipe
        assert recipe == (72, 72)


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        (Bounds(max_pixels=PATCH_SIZE**2 - 1), "max_pixels"),
        (Bounds(min_pixels=LONGEST_EDGE**2 + 1), "min_pixels"),
        (Bounds(min_pixels=5000, max_pixels=4000), "min_pixels"),
    ],
)
def test_pixtral_refuses_impossible_bounds(bounds: Bounds, field: str) -> None:
    """Bounds that no picture can keep are the caller's fault, by name."""
    with pytest.raises(BadRequest) as caught:
        processor_of(PROOF.directory).picture(40, 40, bounds)
    assert caught.value.fields["field"] == field


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy"),
        ({"text_config": {"model_type": "mamba"}}, "mamba"),
    ],
)
def test_pixtral_variants_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """A tower without a class token has no first feature to drop, and is refused at load."""
    with pytest.raises(UnsupportedModel, match=named):
        build_model(variant(PROOF.directory, changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"do_center_crop": True}, "do_center_crop"),
        ({"do_resize": False}, "do_resize"),
        ({"size": {"height": 64, "width": 64}}, "size"),
        ({"image_processor_type": "FuyuImageProcessor"}, "FuyuImageProcessor"),
    ],
)
def test_pixtral_steps_are_refused_by_name(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """Steps that are not computed, and other processors, are refused at load."""
    settings = {"image_processor_type": "PixtralImageProcessor", **changes}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match=named):
        load_processor(tmp_path, read_config(PROOF.directory))


def _area(recipe: tuple[str | int, ...]) -> int:
    return int(recipe[0]) * int(recipe[1])
