"""Families that see pictures through transformers' modules and processors, against them."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.families.hosted_pictures import FAMILIES
from support.proof import Proof, check_goldens, picture

from mmserve.cli.models import HOSTED
from mmserve.core import BadRequest, MediaLayout, MediaRefused
from mmserve.models import FAMILIES as LEAN
from mmserve.vision import Bounds, FrameFacts, ItemPlan, Processor, load_processor

_NUM_SIZES = 500


_BY_NAME = {family.name: family for family in FAMILIES}
_EACH = pytest.mark.parametrize("name", _BY_NAME)


@functools.cache
def _proof(name: str) -> Proof:
    return Proof(_BY_NAME[name])


def _processor(name: str) -> Processor:
    directory = _proof(name).directory
    config = json.loads((directory / "config.json").read_text())
    return load_processor(directory, config)


def test_no_family_here_has_a_file_of_its_own() -> None:
    """What is proved here goes through transformers' modules; the list of models says so."""
    assert not set(_BY_NAME) & set(LEAN)
    assert set(_BY_NAME) <= set(HOSTED)


@_EACH
def test_hosted_pictures_answer_as_in_transformers(name: str) -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    _proof(name).check_everyhow()


@_EACH
def test_hosted_pictures_goldens(name: str) -> None:
    """What transformers says of each small checkpoint is written down, to be read."""
    check_goldens(_proof(name))


@_EACH
def test_layouts_of_sizes_are_those_of_pictures_in_a_sentence(name: str) -> None:
    """What a size alone says stands in the prompt where a picture of it does, 500 sizes."""
    ours, theirs = _processor(name), _proof(name).processor
    random = np.random.default_rng(0)
    tokenizer = theirs.tokenizer
    feature = tokenizer.convert_ids_to_tokens(ours.style.image_token_id)
    for _ in range(_NUM_SIZES // 4):
        sizes = random.integers(8, 160, (4, 2)).tolist()
        pictures = [Image.new("RGB", (width, height), "teal") for width, height in sizes]
        text = "".join(f"see {theirs.image_token}now" for _ in pictures)
        made = theirs(images=pictures, text=[text], add_special_tokens=False)
        layouts = [ours.picture(width, height, Bounds()).layout for width, height in sizes]
        written = "".join(f"see {_written(layout.pieces, feature)}now" for layout in layouts)
        wanted = tokenizer.encode(written, add_special_tokens=False)
        assert list(made["input_ids"][0]) == wanted, sizes


def _written(pieces: tuple[str | int, ...], feature: str) -> str:
    return "".join(feature * one if isinstance(one, int) else one for one in pieces)


@_EACH
def test_arrays_are_those_of_the_checkpoints_processor(name: str) -> None:
    """The encoder gets exactly what transformers' processor makes of the same pixels."""
    ours, theirs = _processor(name), _proof(name).processor
    for seed, (width, height) in enumerate([(64, 64), (131, 47), (33, 90)]):
        pixels = picture(seed, width, height)
        made: Any = theirs(
            images=[Image.fromarray(pixels)], text=[theirs.image_token], return_tensors="pt"
        )
        found = ours.inputs([pixels], ours.picture(width, height, Bounds()).recipe)
        assert set(found) == set(made) - {"input_ids", "attention_mask", "token_type_ids"}
        for key, array in found.items():
            np.testing.assert_array_equal(array, made[key].numpy())


def test_frames_stand_as_pictures() -> None:
    """A clip is its frames, each planned and encoded as a picture of its size."""
    processor = _processor("aya_vision")
    frames = [FrameFacts(64, 48, 0), FrameFacts(64, 48, 1)]  # type: ignore[arg-type]
    alone = processor.picture(64, 48, Bounds())
    plans = processor.clip(frames, Bounds())
    assert [plan.frames for plan in plans] == [(0,), (1,)]
    assert {plan.layout for plan in plans} == {alone.layout}
    assert processor.style.video_token_id is None


def test_a_picture_with_other_features_than_its_size_says_is_refused() -> None:
    """A processor that looks at colours cannot put features where none are planned."""
    processor: Any = _processor("aya_vision")
    processor._plans[64, 48] = ItemPlan(MediaLayout((3,)), 1)
    with pytest.raises(MediaRefused, match="20 features, pictures of its size have 3"):
        processor.inputs([picture(0, 64, 48)], ())


def test_bounds_are_refused() -> None:
    """A processor that chooses sizes itself cannot be told how many pixels to use."""
    processor = _processor("aya_vision")
    with pytest.raises(BadRequest, match="max_pixels = 4096"):
        processor.picture(64, 64, Bounds(max_pixels=4096))


def test_fingerprint_follows_the_settings(tmp_path: Any) -> None:
    """The same files give the same fingerprint, another setting another one."""
    directory = _proof("aya_vision").directory
    config = json.loads((directory / "config.json").read_text())
    for path in directory.iterdir():
        if path.suffix in (".json", ".jinja"):
            (tmp_path / path.name).write_text(path.read_text())
    first = load_processor(tmp_path, config).fingerprint
    assert first == _processor("aya_vision").fingerprint
    file = tmp_path / "processor_config.json"
    settings = json.loads(file.read_text())
    settings["image_processor"]["image_mean"] = [0.1, 0.2, 0.3]
    file.write_text(json.dumps(settings))
    assert load_processor(tmp_path, config).fingerprint != first
