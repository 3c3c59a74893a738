"""Picture processors: settings as transformers writes them, sizes, tokens, arithmetic."""

import json

import numpy as np
import pytest
from plan.vision.making import flat, noise

from mmserve.core import BadRequest, ModelRefused, UnsupportedModel
from mmserve.vision import Bounds, ImageProcessor, ImageSteps, load_processor

CLIP_STYLE = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 8},
    "crop_size": {"height": 8, "width": 8},
    "image_mean": [0.5, 0.25, 0.0],
    "image_std": [0.5, 0.5, 0.25],
    "resample": 3,
}


def config(tower: str = "clip_vision_model", strategy: str = "default", side: int = 8):
    """A config.json."""
    vision = {"model_type": tower, "image_size": side, "patch_size": 4}
    return {"vision_config": vision, "vision_feature_select_strategy": strategy}


def write(folder, settings, name: str = "preprocessor_config.json"):
    """The folder, with settings written into it."""
    (folder / name).write_text(json.dumps(settings))
    return folder


def seen(processor, pixels):
    """What the tower gets."""
    return processor.inputs([pixels], ())["pixel_values"]


def test_pixels_are_scaled_and_normalised(tmp_path):
    """A value v of channel c becomes (v / 255 - mean) / std, in float32."""
    processor = load_processor(write(tmp_path, CLIP_STYLE), config())
    values = seen(processor, flat(8, 8, (255, 0, 51)))
    assert (values.shape, values.dtype) == ((3, 8, 8), np.float32)
    assert np.allclose(values[:, 0, 0], [1.0, -0.5, 0.8], atol=1e-6)


def test_settings_may_be_nested(tmp_path):
    """Transformers 5 keeps the settings inside processor_config.json."""
    processor = load_processor(write(tmp_path, CLIP_STYLE), config())
    nested = write(tmp_path, {"image_processor": CLIP_STYLE}, "processor_config.json")
    (nested / "preprocessor_config.json").unlink()
    assert load_processor(nested, config()).fingerprint == processor.fingerprint


def test_numbers_stand_for_sizes(tmp_path):
    """Older files give sizes as plain numbers, and a feature extractor's name."""
    older = {key: value for key, value in CLIP_STYLE.items() if key != "image_processor_type"}
    older |= {"size": 8, "crop_size": 8, "feature_extractor_type": "CLIPFeatureExtractor"}
    assert load_processor(write(tmp_path, older), config()).steps == (
        load_processor(write(tmp_path, CLIP_STYLE), config()).steps
    )


@pytest.mark.parametrize(
    ("tower", "strategy", "num_tokens"),
    [
        ("clip_vision_model", "default", 4),
        ("clip_vision_model", "full", 5),
        ("siglip_vision_model", "full", 4),
        ("siglip_vision_model", "default", 3),
        ("siglip", "full", 4),
    ],
)
def test_number_of_tokens(tmp_path, tower, strategy, num_tokens):
    """One token a patch; a kept class token adds one, dropping the first takes one."""
    processor = load_processor(tmp_path, config(tower, strategy))
    assert processor.num_tokens == num_tokens
    assert processor.num_patches == 4
    assert seen(processor, noise(30, 20)).shape == (3, 8, 8)


def test_shortest_edge_and_crop_keep_the_middle(tmp_path):
    """A wide picture is scaled by its short side and cut in the middle."""
    pixels = flat(16, 48, (0, 0, 0))
    pixels[:, 16:32] = 255
    plain = CLIP_STYLE | {"do_normalize": False, "resample": 0}
    values = seen(load_processor(write(tmp_path, plain), config()), pixels)
    assert np.array_equal(values, np.ones((3, 8, 8), np.float32))


def test_padding_to_a_square_uses_the_mean_colour(tmp_path):
    """LLaVA 1.5's option keeps the whole picture between bars of the mean colour."""
    settings = CLIP_STYLE | {"image_processor_type": "LlavaImageProcessorFast", "do_pad": True}
    settings |= {"do_normalize": False, "do_rescale": False, "resample": 0}
    values = seen(load_processor(write(tmp_path, settings), config()), flat(4, 8, (9, 9, 9)))
    assert values[:, 0, 0].tolist() == [127.0, 63.0, 0.0]
    assert values[:, 2:6].min() == values[:, 2:6].max() == 9


def test_small_pictures_without_resizing_lie_on_black(tmp_path):
    """Without resizing, a small picture is placed in the middle of the cut."""
    settings = CLIP_STYLE | {"do_resize": False, "do_normalize": False, "do_rescale": False}
    values = seen(load_processor(write(tmp_path, settings), config()), flat(2, 3, (7, 7, 7)))
    expected = np.zeros((8, 8))
    expected[3:5, 3:6] = 7
    assert np.array_equal(values[0], expected)


@pytest.mark.parametrize(
    ("settings", "tower", "error"),
    [
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "clip", UnsupportedModel),
        (CLIP_STYLE, "dinov2", UnsupportedModel),
        (CLIP_STYLE | {"size": {"longest_edge": 9}}, "clip", UnsupportedModel),
        (CLIP_STYLE | {"do_center_crop": False}, "clip", ModelRefused),
        (CLIP_STYLE | {"crop_size": 9}, "clip", ModelRefused),
    ],
)
def test_processors_that_do_not_fit_are_refused(tmp_path, settings, tower, error):
    """Another family's processor, or pictures that do not fit the tower, are refused."""
    with pytest.raises(error):
        load_processor(write(tmp_path, settings), config(tower))


def test_fingerprint_covers_every_setting():
    """Any other setting is another fingerprint; equal settings are one."""
    base = {"size": (8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    variants = [
        {}, {"size": (8, 16)}, {"mean": (0.4,) * 3}, {"std": (0.4,) * 3}, {"factor": None},
        {"resample": 2}, {"crop": (8, 8)}, {"pad_colour": (1, 2, 3)}, {"shortest_edge": 8},
    ]  # fmt: skip
    prints = {ImageProcessor(ImageSteps(**base | v), (8, 8), 4).fingerprint for v in variants}
    prints.add(ImageProcessor(ImageSteps(**base), (8, 8), 2).fingerprint)
    prints.add(ImageProcessor(ImageSteps(**base), (8, 8), 4, 1).fingerprint)
    assert len(prints) == len(variants) + 2
    assert ImageProcessor(ImageSteps(**base), (8, 8), 4).fingerprint in prints


@pytest.mark.parametrize(("field", "value"), [("max_pixels", 63), ("min_pixels", 65)])
def test_bounds_of_a_fixed_size(field, value):
    """A tower of fixed size refuses bounds that its size breaks, and accepts others."""
    processor = ImageProcessor(ImageSteps(size=(8, 8)), (8, 8), 4)
    processor.picture(9, 9, Bounds(64, 64))
    processor.picture(9, 9, Bounds())
    with pytest.raises(BadRequest) as caught:
        processor.picture(9, 9, Bounds(**{field: value}))
    assert caught.value.param == field
