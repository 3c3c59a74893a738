"""What all Qwen-VL families are asked, and how transformers reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from transformers.video_utils import VideoMetadata

from support.families.qwen_checkpoints import load_processor, tiny_qwen_vl
from support.proof import CLIP_CASES, PICTURE_CASES, TEXT_CASES, Case, Clip, Family, picture

__all__ = ["CASES", "family", "fitted", "inputs"]


def _clip(seed: int, num_frames: int, fps: float, size: tuple[int, int] = (72, 56)) -> Clip:
    return Clip(tuple(picture(seed + k, *size) for k in range(num_frames)), fps)


CASES = (
    *TEXT_CASES,
    *PICTURE_CASES,
    *CLIP_CASES,
    Case(
        "strips",
        (("user", (picture(7, 400, 12), "or ", picture(8, 9, 300), "?")),),
    ),
    Case(
        "long clip",
        (
            ("user", (_clip(30, 9, 3.0), "What changes?")),
            ("assistant", ("The light.",)),
            ("user", ("And in ", _clip(50, 13, 0.7, (40, 40)), "?")),
        ),
    ),
    Case("one frame", (("user", (_clip(70, 1, 2.0), "When is this?")),)),
)


def inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case through transformers' processor, whose clips are taken frame by frame.

    It resizes frames with torchvision, which differs from Pillow by a level here and there; so
    frames come in the size that it gives them.
    """
    text = processor.apply_chat_template(
        case.messages, add_generation_prompt=True, tokenize=False
    )
    media: dict[str, Any] = {}
    if case.pictures:
        media["images"] = [Image.fromarray(p) for p in case.pictures]
    if case.clips:
        media["videos"] = [fitted(processor, clip) for clip in case.clips]
        media["video_metadata"] = [_times(clip) for clip in case.clips]
        media["cap_pixels_per_frame"] = False
    return processor(text=[text], return_tensors="pt", add_special_tokens=False, **media)


def fitted(processor: Any, clip: Clip) -> np.ndarray:
    """uint8 [frames, H, W, 3] resized by Pillow to what transformers makes of them."""
    frames = np.stack(_whole(clip))
    read = processor.video_processor(
        frames, video_metadata=_times(clip), cap_pixels_per_frame=False, return_tensors="pt"
    )
    patch = processor.video_processor.patch_size
    size = (read["video_grid_thw"][0, 1:] * patch).flip(0).tolist()
    resized = [Image.fromarray(f).resize(size, Image.Resampling.BICUBIC) for f in frames]
    return np.stack([np.asarray(frame) for frame in resized])


def _whole(clip: Clip) -> tuple[np.ndarray, ...]:
    """Frames of a clip; a single one twice, since some processors take no less."""
    return clip.frames * (2 if len(clip.frames) == 1 else 1)


def _times(clip: Clip) -> VideoMetadata:
    """When they are, the second of a single frame when the first is."""
    num = len(_whole(clip))
    places = list(range(num)) if len(clip.frames) > 1 else [0, 0]
    return VideoMetadata(total_num_frames=num, fps=clip.fps, frames_indices=places)


def family(name: str) -> Family:
    """The family of this word of config.json, to prove."""
    return Family(
        name, lambda: tiny_qwen_vl(name), CASES, inputs=inputs, processor=load_processor
    )
