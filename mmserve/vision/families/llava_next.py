"""LLaVA-NeXT's pictures, and LLaVA-NeXT-Video's clips, from a model directory.

LLaVA-NeXT has no clips of its own: frames stand as pictures, tiles included, so that a frame
means what it means as a picture. LLaVA-NeXT-Video has: frames seen whole and pooled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from mmserve.core import ModelRefused, UnsupportedModel
from mmserve.vision.families.anyres import AnyresProcessor, ClipFrames, Size
from mmserve.vision.families.llava import ImageProcessor
from mmserve.vision.families.settings import clip_settings, per_channel, picture_settings

__all__ = ["load", "load_video", "over", "read_frame", "read_tiles", "token_id"]

_CLASSES = ("LlavaNextImageProcessor",)
_CANVASES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_DEFAULTS: dict[str, Any] = {
    "vision_config": {"image_size": 336, "patch_size": 14},
    "image_grid_pinpoints": _CANVASES,
    "image_token_index": 32000,
}
_VIDEO_DEFAULTS = {**_DEFAULTS, "image_token_index": 32001, "video_token_index": 32000}
_COLOURS: dict[str, Any] = {
    "do_rescale": True,
    "do_normalize": True,
    "resample": Image.Resampling.BICUBIC,
    "rescale_factor": 1 / 255,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}


def load(directory: Path, config: Mapping[str, Any]) -> AnyresProcessor:
    """LLaVA-NeXT's processor. Raises UnsupportedModel, ModelRefused."""
    return read_tiles(directory, over(_DEFAULTS, config), _CLASSES)


def load_video(directory: Path, config: Mapping[str, Any]) -> AnyresProcessor:
    """LLaVA-NeXT-Video's processor. Raises UnsupportedModel, ModelRefused."""
    full = over(_VIDEO_DEFAULTS, config)
    pictures, frame = read_tiles(directory, full, _CLASSES), read_frame(directory, full)
    side = frame.output[0] // frame.patch_size // int(full.get("spatial_pool_stride", 2))
    clips = ClipFrames(frame, side**2, token_id(full, "video"), has_newline=False)
    return replace(pictures, clips=clips)


def read_tiles(
    directory: Path,
    config: Mapping[str, Any],
    classes: tuple[str, ...],
    max_tiles: int | None = None,
) -> AnyresProcessor:
    """A processor of pictures of any resolution.

    Args:
        directory: of the model.
        config: its config.json over what the family takes by default.
        classes: names in transformers of the family's picture processors.
        max_tiles: see `AnyresProcessor`.

    Raises UnsupportedModel, ModelRefused.
    """
    settings = picture_settings(directory, _COLOURS, classes)
    tile = _whole(settings, config, directory.name)
    canvases = config["image_grid_pinpoints"]
    if settings.get("image_grid_pinpoints", canvases) != canvases:
        raise ModelRefused(
            f"config.json and the picture processor of {directory.name} have different "
            "image_grid_pinpoints"
        )
    return AnyresProcessor(tile, _canvases(canvases, tile.output[0]), max_tiles)


def read_frame(directory: Path, config: Mapping[str, Any]) -> ImageProcessor:
    """What is done to frames of clips that are seen whole.

    Args:
        directory: of the model.
        config: as `read_tiles` takes it.

    Raises ModelRefused.
    """
    settings = clip_settings(directory, _COLOURS)
    frame = _whole(settings, config, directory.name)
    if "shortest_edge" not in settings.get("size", {}):
        return frame
    height, width = frame.output
    steps = replace(frame.steps, shortest_edge=height, size=None, crop=(height, width))
    return replace(frame, steps=steps)


def over(defaults: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json, and `defaults` where it says nothing or null. Pure."""
    return {**defaults, **{key: value for key, value in config.items() if value is not None}}


def token_id(config: Mapping[str, Any], kind: str) -> int:
    """Id of the placeholder of an image's or a video's features. Pure."""
    return int(config.get(f"{kind}_token_id") or config[f"{kind}_token_index"])


def _whole(settings: Mapping[str, Any], config: Mapping[str, Any], name: str) -> ImageProcessor:
    """Everything at the tower's size. Raises ModelRefused where settings name another."""
    tower = config["vision_config"]
    side = int(tower.get("image_size", 224))
    for key in ("size", "crop_size"):
        value = settings.get(key, side)
        sides = set(value.values()) if isinstance(value, Mapping) else {value}
        if sides != {side}:
            raise ModelRefused(
                f"the processor of {name} has {key} {value!r}, the vision tower takes {side}"
            )
    return ImageProcessor(
        replace(per_channel(settings), size=(side, side)),
        (side, side),
        int(tower.get("patch_size", 16 if "siglip" in tower.get("model_type", "") else 32)),
        image_token_id=token_id(config, "image"),
    )


def _canvases(pinpoints: list[list[int]], side: int) -> tuple[Size, ...]:
    """Sizes as pairs. Raises UnsupportedModel for one that is not whole tiles."""
    for pair in pinpoints:
        if len(pair) != 2 or pair[0] % side or pair[1] % side or min(pair) < side:
            raise UnsupportedModel(
                f"image_grid_pinpoints holds {pair}, which is not whole tiles of {side} pixels",
                architecture="processor",
            )
    return tuple((int(height), int(width)) for height, width in pinpoints)
