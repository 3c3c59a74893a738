"""LLaVA-OneVision's pictures and clips, from a model directory.

    picture   tiles as in LLaVA-NeXT, features interpolated to at most 9 full tiles' worth
    clip      frame, frame, ..., newline: each frame seen whole, its features pooled 2 x 2

Every picture is tiled, also beside others; transformers does so too, unless it is told which
pictures belong to one conversation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmserve.core import UnsupportedModel
from mmserve.vision.families.anyres import AnyresProcessor, ClipFrames
from mmserve.vision.families.llava_config import read_whole
from mmserve.vision.families.llava_next import read_tiles, video_token

__all__ = ["load"]

_STEPS = range(384, 2305, 384)
_CANVASES = [[height, width] for height in _STEPS for width in _STEPS]
_DEFAULTS: dict[str, Any] = {
    "vision_config": {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14},
    "vision_feature_select_strategy": "full",
    "vision_aspect_ratio": "anyres_max_9",
    "image_token_index": 151646,
    "video_token_index": 151647,
}


def load(directory: Path, config: Mapping[str, Any]) -> AnyresProcessor:
    """LLaVA-OneVision's processor. Raises UnsupportedModel, ModelRefused."""
    config = {**_DEFAULTS, **config}
    ratio = str(config["vision_aspect_ratio"])
    match = re.fullmatch(r"anyres_max_([1-9][0-9]*)", ratio)
    if match is None:
        raise UnsupportedModel(
            f"vision_aspect_ratio {ratio!r} is not supported, anyres_max_N is",
            architecture="llava_onevision",
        )
    classes = ("LlavaOnevision",)
    pictures = read_tiles(directory, config, classes, _CANVASES, int(match[1]))
    frame = read_whole(directory, config, classes, "video")
    side = frame.output[0] // frame.patch_size
    num_tokens = math.ceil(side / 2) ** 2
    clips = ClipFrames(frame, num_tokens, video_token(config), has_newline=True)
    return replace(pictures, clips=clips)
