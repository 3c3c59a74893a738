"""Our picture processors against transformers' Pillow backend, bit for bit."""

import numpy as np
import pytest
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from mmserve.vision import load_processor

CLIP_96 = {"crop_size": 96}
REFERENCES = {
    "CLIP": (CLIPImageProcessorPil(size={"shortest_edge": 96}, **CLIP_96), "clip"),
    "CLIP, odd sizes": (
        CLIPImageProcessorPil(size={"shortest_edge": 57}, crop_size=96),
        "clip",
    ),
    "CLIP, Lanczos": (
        CLIPImageProcessorPil(size={"height": 96, "width": 96}, crop_size=96, resample=1),
        "clip",
    ),
    "SigLIP": (SiglipImageProcessorPil(size={"height": 96, "width": 96}), "siglip"),
    "SigLIP, plain": (
        SiglipImageProcessorPil(size={"height": 96, "width": 96}, do_normalize=False),
        "siglip",
    ),
    "LLaVA 1.5": (
        LlavaImageProcessorPil(size={"shortest_edge": 96}, crop_size=96, do_pad=True),
        "clip",
    ),
}
SIZES = [(96, 96), (1, 1), (1, 3), (3, 1), (200, 1), (5, 1000), (480, 640), (95, 33), (101, 97)]


@pytest.mark.parametrize("name", list(REFERENCES))
def test_processor_equals_transformers(name, tmp_path):
    """Every picture gives the very numbers that transformers gives."""
    reference, tower = REFERENCES[name]
    reference.save_pretrained(tmp_path)
    vision = {"model_type": f"{tower}_vision_model", "image_size": 96, "patch_size": 16}
    processor = load_processor(tmp_path, {"vision_config": vision})
    random = np.random.default_rng(0)
    for height, width in SIZES:
        pixels = random.integers(0, 256, (height, width, 3), np.uint8)
        expected = np.asarray(reference(Image.fromarray(pixels))["pixel_values"][0])
        actual = processor.inputs([pixels], ())["pixel_values"]
        assert actual.dtype == expected.dtype == np.float32
        assert np.array_equal(expected, actual)


@pytest.mark.parametrize("tower", ["clip", "siglip"])
def test_defaults_are_those_of_transformers(tower, tmp_path):
    """A directory without processor settings gets the family's own defaults."""
    reference = {"clip": CLIPImageProcessorPil, "siglip": SiglipImageProcessorPil}[tower]()
    vision = {"model_type": f"{tower}_vision_model", "image_size": 224, "patch_size": 16}
    pixels = np.random.default_rng(1).integers(0, 256, (300, 400, 3), np.uint8)
    expected = np.asarray(reference(Image.fromarray(pixels))["pixel_values"][0])
    actual = load_processor(tmp_path, {"vision_config": vision})
    actual = actual.inputs([pixels], ())["pixel_values"]
    assert np.array_equal(expected, actual)
