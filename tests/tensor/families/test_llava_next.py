"""LLaVA-NeXT, LLaVA-NeXT-Video and ViP-LLaVA against transformers."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import anyres
from support.checkpoints import tiny_tokenizer
from support.families import llava_next_video, vipllava
from support.families.llava_next import FAMILY, SIDE, tiny_llava_next
from support.proof import PICTURE_CASES, Proof, check_goldens, picture
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from mmserve.core import BadRequest, ModelRefused, UnsupportedModel
from mmserve.models import Checkpoint, build_model
from mmserve.vision.families import load_processor
from mmserve.vision.families.llava import ImageProcessor
from mmserve.vision.processor import Bounds, FrameFacts

PROOF = Proof(FAMILY)
CLIPS = Proof(llava_next_video.FAMILY)
NORMED = Proof(vipllava.FAMILY)
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def _short(directory: Path) -> Proof:
    """Two pictures' cases and few tokens: what a variant needs beside features."""
    return Proof(replace(FAMILY, make=lambda: directory, cases=PICTURE_CASES[:2], num_tokens=6))


def _spelled(*changes: tuple[str, str]) -> Path:
    """The checkpoint with other beginnings of its tensors' names."""
    source, directory = tiny_llava_next(), Path(mkdtemp(prefix="tiny-llava-next-spelled-"))
    shutil.copytree(source, directory, dirs_exist_ok=True)
    tensors = load_file(source / "model.safetensors")
    for old, new in changes:
        assert any(name.startswith(old) for name in tensors), old
        tensors = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in tensors.items()
        }
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory


def _write(directory: Path, settings: dict[str, Any]) -> Path:
    found = {"image_processor_type": "LlavaNextImageProcessor", **settings}
    (directory / "preprocessor_config.json").write_text(json.dumps(found))
    return directory


def test_llava_next_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_llava_next_video_answers_as_in_transformers() -> None:
    """The same of LLaVA-NeXT-Video, clips among the cases."""
    CLIPS.check_everyhow()


def test_vipllava_reads_the_layers_of_its_first_release(tmp_path: Path) -> None:
    """`vision_feature_layers` names the layers whose features are joined."""
    shutil.copytree(NORMED.directory, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_feature_layers"] = config.pop("vision_feature_layer")
    device = torch.device("cpu")
    assert build_model(Checkpoint(tmp_path, config, torch.float32, device)).pictures


def test_vipllava_answers_as_in_transformers() -> None:
    """The same of ViP-LLaVA."""
    NORMED.check_everyhow()


@pytest.mark.parametrize("proof", [PROOF, CLIPS, NORMED], ids=lambda proof: proof.family.name)
def test_goldens(proof: Proof) -> None:
    """What transformers says of the small checkpoints is written down, to be read."""
    check_goldens(proof)


@pytest.mark.parametrize(
    "directory",
    [
        tiny_llava_next("llama"),
        tiny_llava_next("qwen2", tower="siglip"),
        _spelled(("vision_tower.", "vision_tower.vision_model.")),
        _spelled(
            ("language_model.lm_head.", "lm_head."),
            ("language_model.model.", "model.language_model."),
            ("vision_tower.", "model.vision_tower."),
            ("multi_modal_projector.", "model.multi_modal_projector."),
            ("image_newline", "model.image_newline"),
        ),
    ],
    ids=["llama", "qwen2-siglip", "old-spelling", "new-spelling"],
)
def test_other_texts_towers_and_spellings(directory: Path) -> None:
    """Llama and Qwen2 write the answers too, and both older and newer files are read."""
    _short(directory).check_everyhow()


@pytest.mark.parametrize(
    "directory",
    [
        tiny_llava_next(),
        tiny_llava_next(layer=(-2, 0, -1)),
        tiny_llava_next(layer=1),
        tiny_llava_next(tower="siglip", layer=-1),
    ],
    ids=["clip", "clip-several", "clip-first", "siglip-last"],
)
def test_features_of_any_resolution(directory: Path) -> None:
    """Features of 20 sizes are those of transformers, and the same together and alone."""
    anyres.check_features(directory)


def test_features_of_pooled_frames() -> None:
    """Frames may be pooled by their largest values, too, and are the same alone."""
    directory = llava_next_video.tiny_llava_next_video(pool="max")
    eyes = build_model(anyres.checkpoint_of(directory)).pictures
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory).eval()
    ours = anyres.processor_of(directory)
    items = [ours.inputs([picture(seed, 40, 30)], ("frame",)) for seed in range(3)]
    with torch.inference_mode():
        pixels = torch.stack([torch.tensor(item["frame"]) for item in items])
        expected = model.get_video_features(pixels[None]).pooler_output[0]
        found = torch.cat(eyes.encode(items))
        alone = torch.cat([eyes.encode([item])[0] for item in items])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)


def test_number_of_tokens_of_the_small_checkpoint() -> None:
    """500 sizes have as many tokens as in transformers."""
    anyres.check_numbers(anyres.processor_of(PROOF.directory), PROOF.processor, 3000)


def test_number_of_tokens_of_real_checkpoints(tmp_path: Path) -> None:
    """500 sizes have as many tokens as in transformers with tiles of 336 pixels."""
    size = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    reference = transformers.LlavaNextProcessor(
        image_processor=LlavaNextImageProcessorPil(**size),
        tokenizer=tiny_tokenizer(),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    ours = load_processor(_write(tmp_path, size), {"model_type": "llava_next"})
    anyres.check_numbers(ours, reference, 9000)
    assert ours.picture(672, 672, Bounds()).layout.num_features == 2928


def test_tiles_are_exactly_those_of_transformers() -> None:
    """The whole picture and its tiles equal those of transformers' Pillow backend."""
    reference = PROOF.processor.image_processor
    anyres.check_pixels(anyres.processor_of(PROOF.directory), reference)


def test_frames_are_pictures() -> None:
    """Without clips of its own, LLaVA-NeXT sees a frame as it sees a picture."""
    ours = anyres.processor_of(PROOF.directory)
    frames = [FrameFacts(90, 40 + n, Fraction(n)) for n in range(3)]
    plans = ours.clip(frames, Bounds())
    assert [plan.frames for plan in plans] == [(0,), (1,), (2,)]
    for plan, frame in zip(plans, frames, strict=True):
        assert replace(plan, frames=(0,)) == ours.picture(frame.width, frame.height, Bounds())


def test_bounds_choose_among_canvases() -> None:
    """A picture is laid on a canvas within its bounds; bounds that none keeps are refused."""
    ours = anyres.processor_of(PROOF.directory)
    tile = SIDE**2
    assert ours.picture(500, 500, Bounds()).recipe == ("canvas", 56, 56)
    assert ours.picture(500, 500, Bounds(max_pixels=3 * tile)).recipe == ("canvas", 28, 56)
    assert ours.picture(900, 200, Bounds()).recipe == ("canvas", 28, 84)
    assert ours.picture(900, 200, Bounds(max_pixels=2 * tile)).recipe == ("canvas", 28, 56)
    assert ours.picture(5, 5, Bounds(min_pixels=3 * tile)).recipe == ("canvas", 84, 28)
    for bounds, field in (
        (Bounds(max_pixels=2 * tile - 1), "max_pixels"),
        (Bounds(min_pixels=4 * tile + 1), "min_pixels"),
        (Bounds(max_pixels=4 * tile - 1, min_pixels=3 * tile + 1), "max_pixels"),
    ):
        with pytest.raises(BadRequest) as caught:
            ours.picture(9, 9, bounds)
        assert caught.value.param == field


@pytest.mark.parametrize(
    ("settings", "changes", "error"),
    [
        ({"size": {"shortest_edge": 224}}, {}, ModelRefused),
        ({"crop_size": 224}, {}, ModelRefused),
        ({"image_grid_pinpoints": PINPOINTS[:2]}, {}, ModelRefused),
        ({}, {"image_grid_pinpoints": [[336, 700]]}, UnsupportedModel),
        ({"image_processor_type": "CLIPImageProcessor"}, {}, UnsupportedModel),
    ],
)
def test_processors_that_do_not_fit_are_refused(
    tmp_path: Path, settings: dict[str, Any], changes: dict[str, Any], error: type[Exception]
) -> None:
    """Tiles of another size than the tower's, and canvases that are not whole tiles."""
    plain = {"size": {"shortest_edge": 336}, "crop_size": 336}
    config = {"model_type": "llava_next", "image_grid_pinpoints": PINPOINTS, **changes}
    with pytest.raises(error):
        load_processor(_write(tmp_path, {**plain, **settings}), config)


@pytest.mark.parametrize(
    ("directory", "changes", "words"),
    [
        (PROOF.directory, {"vision_feature_select_strategy": "full"}, "one feature a patch"),
        (CLIPS.directory, {"spatial_pool_mode": "conv"}, "spatial_pool_mode"),
    ],
)
def test_models_not_computed_are_refused(
    directory: Path, changes: dict[str, Any], words: str
) -> None:
    """A class token among tiles, and pooling by learned weights, are refused by name."""
    with pytest.raises(UnsupportedModel, match=words):
        build_model(anyres.checkpoint_of(directory, changes))


def test_a_directory_without_settings_takes_the_towers(tmp_path: Path) -> None:
    """Without a processor's file, tiles have the tower's size and CLIP's colours."""
    ours = load_processor(tmp_path, {"model_type": "llava_next"})
    assert isinstance(ours.tile, ImageProcessor)
    assert ours.tile.steps.size == (336, 336)
    assert ours.canvases == tuple(map(tuple, PINPOINTS))
