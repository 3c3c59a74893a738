"""Mistral 3: the proof, sizes and pixels as in transformers, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.families.mistral3 import FAMILY
from support.families.pixtral import check_eyes, check_inputs, check_sizes, variant
from support.proof import Proof, check_goldens

from mmserve.core import ModelRefused, UnsupportedModel
from mmserve.models import build_model
from mmserve.models.families import mistral3
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds

PROOF = Proof(FAMILY)


def test_mistral3_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_mistral3_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


def test_mistral3_writes_sizes_as_transformers() -> None:
    """500 random sizes have the rows, the row ends and the target of transformers."""
    check_sizes(PROOF.directory, PROOF.processor)


def test_mistral3_prepares_pixels_as_transformers() -> None:
    """Resized and normalised pixels are equal, bit for bit."""
    check_inputs(PROOF.directory, PROOF.processor)


def test_mistral3_sees_pictures_alike_alone_and_together() -> None:
    """Pictures of five sizes, padded to the largest, have the features they have alone."""
    check_eyes(PROOF.directory)


def test_mistral3_sees_pictures_alike_in_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures beyond the bound of patches go in groups, with the same features."""
    monkeypatch.setattr(mistral3, "MAX_TOGETHER_PATCHES", 150)
    check_eyes(PROOF.directory)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "siglip_vision_model"),
        ({"text_config": {"model_type": "ministral3"}}, "ministral3"),
    ],
)
def test_mistral3_variants_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """Features of several layers, another tower and another decoder are refused at load."""
    checkpoint = variant(PROOF.directory, changes)
    with pytest.raises(UnsupportedModel, match=named):
        build_model(checkpoint)


def test_a_processor_with_other_patches_is_refused() -> None:
    """A processor that merges other patches than the model is refused at load."""
    checkpoint = variant(PROOF.directory, {"spatial_merge_size": 3})
    with pytest.raises(ModelRefused, match="merged by 3"):
        load_processor(checkpoint.path, checkpoint.config)


def test_a_directory_of_an_older_release_is_read(tmp_path: Path) -> None:
    """Settings in two files, as Mistral Small 3.1 has them: units of 28, 1540 pixels a side."""
    pictures = {
        "image_processor_type": "PixtralImageProcessorFast",
        "do_center_crop": None,
        "patch_size": {"height": 14, "width": 14},
        "size": {"longest_edge": 1540},
    }
    words = {"image_token": "[IMG]", "patch_size": 14, "spatial_merge_size": 2}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pictures))
    (tmp_path / "processor_config.json").write_text(json.dumps(words))
    config = {"model_type": "mistral3", "vision_config": {"patch_size": 14}}
    plan = load_processor(tmp_path, config).picture(3080, 2000, Bounds())
    assert plan.layout.pieces == (55, "[IMG_BREAK]") * 35 + (55, "[IMG_END]")
    assert (plan.num_patches, plan.recipe) == (36 * 55 * 4, (1008, 1540))
