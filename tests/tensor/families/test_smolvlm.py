"""SmolVLM: prompts, pixels and answers against transformers."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from num2words import num2words
from PIL import Image
from support.families.idefics3 import (
    check_eyes,
    check_pictures,
    loaded,
    random_sizes,
    resaved,
    written,
)
from support.families.smolvlm import FAMILY
from support.proof import Proof, check_goldens, picture
from transformers.video_utils import VideoMetadata

from mmserve.core import BadRequest, BytesSource, MediaConfig, ModelRefused, VideoPart
from mmserve.testing.clips import encode_mp4
from mmserve.vision import MediaPlane
from mmserve.vision.families.smolvlm import in_words
from mmserve.vision.processor import Bounds, FrameFacts, ItemPlan

PROOF = Proof(FAMILY)


def test_smolvlm_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_smolvlm_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


def test_smolvlm_pictures_as_in_transformers() -> None:
    """500 random sizes have the processor's text and exactly its pixels."""
    check_pictures(loaded(PROOF.directory), PROOF.processor, random_sizes(500, 400))


@pytest.mark.parametrize("duration", [None, 95.75, 90000.0])
@pytest.mark.parametrize(
    ("num", "fps", "places"),
    [
        (1, 1.0, [0]),
        (5, 2.0, [0, 1, 2, 3, 4]),
        (3, 30.0, [29, 60, 2700]),
        (130, 0.25, list(range(130))),
        (2, 0.001, [3, 90]),
    ],
)
def test_smolvlm_writes_clips_as_transformers(
    num: int, fps: float, places: list[int], duration: float | None
) -> None:
    """Number and length in the beginning, times before frames, newlines at the end."""
    metadata = VideoMetadata(
        total_num_frames=places[-1] + 1, fps=fps, frames_indices=places, duration=duration
    )
    seen = {"pixel_values": np.zeros((1, num, 3, 32, 32)), "video_metadata": [metadata]}
    expected = PROOF.processor.replace_video_token(seen, 0)
    rate = Fraction(fps).limit_denominator(1000)
    length = None if duration is None else Fraction(duration)
    plans = _clip([Fraction(place) / rate for place in places], length)
    assert "".join(written(plan, "<image>") for plan in plans) == expected
    assert [plan.frames for plan in plans] == [(place,) for place in range(num)]


def _clip(times: list[Fraction], duration: Fraction | None = None) -> tuple[ItemPlan, ...]:
    frames = [FrameFacts(72, 56, time, duration) for time in times]
    return loaded(PROOF.directory).clip(frames, Bounds())


def test_smolvlm_writes_a_file_by_its_own_length() -> None:
    """Six frames at two a second last three seconds, though the last begins at 2.5."""
    frames = [Image.fromarray(picture(number, 64, 64)) for number in range(6)]
    plane = MediaPlane(MediaConfig(), loaded(PROOF.directory), model_fingerprint=bytes(16))
    try:
        part = VideoPart(BytesSource(encode_mp4(frames)), num_frames=2)
        items = plane.resolve(part, salt="", index=0).items
    finally:
        plane.close()
    text = str(items[0].layout.pieces[0])
    assert "series of two frames from a 0:00:03 [H:MM:SS] video.\n\nFrame from 00:00:" in text


def test_smolvlm_frames_are_one_in_all_windows() -> None:
    """Only text outside of a frame's features says where in a clip it stands."""
    plans = [*_clip([Fraction(0)]), *_clip([Fraction(n) for n in range(3)])]
    assert {plan.recipe for plan in plans} == {("frame",)}
    assert all(isinstance(plan.layout.pieces[1], int) for plan in plans)
    assert {len(plan.layout.pieces) for plan in plans} == {3}


def test_smolvlm_frames_look_as_in_transformers() -> None:
    """Frames without harsh edges are as by torchvision, which transformers resizes them with.

    Overshoots at harsh edges are cut off in another order there.
    """
    ours = loaded(PROOF.directory)
    for number, (width, height) in enumerate(random_sizes(40, 400)):
        frame = picture(number, width + 8, height + 8) // 2 + 64
        expected = PROOF.processor.video_processor(
            frame[None], do_sample_frames=False, return_tensors="pt"
        )
        found = ours.inputs([frame], ("frame",))["pixel_values"]
        gap = np.abs(found - expected["pixel_values"][0].numpy())
        assert gap.max() < 2.5 * 2 / 255, (width, height)
        assert gap.mean() < 0.3 * 2 / 255, (width, height)


def test_smolvlm_counts_in_words() -> None:
    """Numbers are spelled as by the package that transformers uses."""
    numbers = [*range(1200), *range(1200, 10**6, 9973), 10**6, 2 * 10**6 + 5]
    assert [in_words(number) for number in numbers] == [num2words(n) for n in numbers]


def test_smolvlm_refuses_bounds_of_frames() -> None:
    """A frame is always one tile, which bounds cannot change."""
    with pytest.raises(BadRequest, match="32 x 32"):
        loaded(PROOF.directory).clip([FrameFacts(64, 64, Fraction(0))], Bounds(max_pixels=99))


def test_smolvlm_features_do_not_depend_on_company() -> None:
    """Tiles of several items are encoded together, and all-zero tiles with them."""
    check_eyes(PROOF.directory)


def test_smolvlm_reads_video_sampling(tmp_path: Path) -> None:
    """Frames are sized by `video_sampling` where nothing else sizes them."""
    sampling = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 48}}
    changes = {"video_processor": {"size": None, "video_sampling": sampling}}
    ours = loaded(resaved(PROOF.directory, tmp_path, **changes))
    frame = picture(3, 96, 64)
    small = ours.inputs([frame], ("frame",))["pixel_values"]
    large = loaded(PROOF.directory).inputs([frame], ("frame",))["pixel_values"]
    assert small.shape == large.shape
    assert not np.array_equal(small, large)


def test_smolvlm_reads_settings_of_transformers_4(tmp_path: Path) -> None:
    """Pictures' and clips' settings in preprocessor_config.json are read alike."""
    resaved(PROOF.directory, tmp_path)
    path = tmp_path / "processor_config.json"
    settings = json.loads(path.read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings["image_processor"]))
    path.write_text(json.dumps({"image_seq_len": 4}))
    assert loaded(tmp_path).fingerprint == loaded(PROOF.directory).fingerprint


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"max_image_size": {"longest_edge": 48}}, "both must be equal"),
        ({"size": {"height": 32, "width": 32}}, "longest edge"),
    ],
)
def test_smolvlm_refuses_settings(changes: dict[str, Any], word: str, tmp_path: Path) -> None:
    """Settings of clips that are not computed are refused by name."""
    directory = resaved(PROOF.directory, tmp_path, video_processor=changes)
    with pytest.raises(ModelRefused, match=word):
        loaded(directory)
