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
from mmserve.vision.families.llava_next import over, read_frame, read_tiles, token_id

__all__ = ["load"]

_STEPS = range(384, 2305, 384)
_CLASSES = ("LlavaOnevisionImageProcessor",)
_DEFAULTS: dict[str, Any] = {
    "vision_config": {"image_size": 384, "patch_size": 14},
    "image_grid_pinpoints": [[height, width] for height in _STEPS for width in _STEPS],
    "vision_aspect_ratio": "anyres_max_9",
    "image_token_index": 151646,
    "video_token_index": 151647,
}


def load(directory: Path, config: Mapping[str, Any]) -> AnyresProcessor:
    """LLaVA-OneVision's processor. Raises UnsupportedModel, ModelRefused."""
    full = over(_DEFAULTS, config)
    ratio = str(full["vision_aspect_ratio"])
    match = re.fullmatch(r"anyres_max_([1-9][0-9]*)", ratio)
    if match is None:
        raise UnsupportedModel(
            f"vision_aspect_ratio {ratio!r} is not supported, anyres_max_N is",
            architecture="llava_onevision",
        )
    pictures = read_tiles(directory, full, _CLASSES, int(match[1]))
    frame = read_frame(directory, full)
    num_tokens = math.ceil(frame.output[0] // frame.patch_size / 2) ** 2
    clips = ClipFrames(frame, num_tokens, token_id(full, "video"), has_newline=True)
    return replace(pictures, clips=clips)
