"""LLaVA-NeXT's pictures, and LLaVA-NeXT-Video's clips, from a model directory.

LLaVA-NeXT has no clips of its own: frames stand as pictures, tiles included, so that a frame
means what it means as a picture. LLaVA-NeXT-Video has: frames seen whole and pooled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmserve.core import ModelRefused, UnsupportedModel
from mmserve.vision.families.anyres import AnyresProcessor, ClipFrames, Size
from mmserve.vision.families.llava import ImageProcessor, ImageSteps
from mmserve.vision.families.llava_config import (
    TowerFacts,
    read_settings,
    read_whole,
    steps_of,
)

__all__ = ["load", "load_video", "read_tiles", "video_token"]

_TOWER = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
_CANVASES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
_DEFAULTS: dict[str, Any] = {"vision_config": _TOWER, "image_token_index": 32000}
_VIDEO_DEFAULTS = {**_DEFAULTS, "image_token_index": 32001, "video_token_index": 32000}


def load(directory: Path, config: Mapping[str, Any]) -> AnyresProcessor:
    """LLaVA-NeXT's processor. Raises UnsupportedModel, ModelRefused."""
    return read_tiles(directory, {**_DEFAULTS, **config}, ("LlavaNext",), _CANVASES)


def load_video(directory: Path, config: Mapping[str, Any]) -> AnyresProcessor:
    """LLaVA-NeXT-Video's processor. Raises UnsupportedModel, ModelRefused."""
    config = {**_VIDEO_DEFAULTS, **config}
    pictures = read_tiles(directory, config, ("LlavaNext",), _CANVASES)
    frame = read_whole(directory, config, ("LlavaNext", "LlavaNextVideo"), "video")
    stride = int(config.get("spatial_pool_stride", 2))
    side = frame.output[0] // frame.patch_size // stride
    clips = ClipFrames(frame, side**2, video_token(config), has_newline=False)
    return replace(pictures, clips=clips)


def read_tiles(
    directory: Path,
    config: Mapping[str, Any],
    classes: Collection[str],
    canvases: list[list[int]],
    max_tiles: int | None = None,
) -> AnyresProcessor:
    """A processor of pictures of any resolution.

    Args:
        directory: of the model.
        config: its config.json, with what the family takes by default.
        classes: see `read_settings`.
        canvases: `image_grid_pinpoints` where the directory gives none.
        max_tiles: see `AnyresProcessor`.

    Raises UnsupportedModel, ModelRefused.
    """
    tower = TowerFacts.parse(config)
    if tower.num_extra_tokens:
        strategy = config.get("vision_feature_select_strategy", "default")
        raise UnsupportedModel(
            f"vision_feature_select_strategy {strategy!r} with a {tower.family} tower is not "
            "supported: tiles must be one feature a patch",
            architecture=str(config.get("model_type")),
        )
    settings = read_settings(directory, tower, classes)
    size = (tower.side, tower.side)
    tile = ImageProcessor(
        _tile_steps(settings, size, directory.name),
        size,
        tower.patch_size,
        image_token_id=int(config.get("image_token_id", config["image_token_index"])),
    )
    own = config.get("image_grid_pinpoints") or canvases
    if (settings.get("image_grid_pinpoints") or own) != own:
        raise ModelRefused(
            f"config.json and the picture processor of {directory.name} disagree on "
            "image_grid_pinpoints"
        )
    return AnyresProcessor(tile, _canvases(own, tower.side), max_tiles)


def video_token(config: Mapping[str, Any]) -> int:
    """Id of the placeholder of a clip's features. Pure."""
    return int(config.get("video_token_id", config["video_token_index"]))


def _tile_steps(settings: Mapping[str, Any], size: Size, name: str) -> ImageSteps:
    """What is done to a tile that has its size. Raises ModelRefused for another size."""
    has_crop = settings.get("crop_size") is not None
    steps = steps_of({**settings, "do_resize": True, "do_center_crop": has_crop})
    edge = steps.shortest_edge
    resized = steps.size if edge is None else (edge, edge)
    if {resized, steps.crop or size} != {size}:
        raise ModelRefused(
            f"the processor of {name} makes tiles of size {steps.crop or resized} out of "
            f"{resized}, the vision tower takes {size}"
        )
    return replace(steps, shortest_edge=None, size=size, crop=None)


def _canvases(pinpoints: list[list[int]], side: int) -> tuple[Size, ...]:
    """Sizes as pairs. Raises UnsupportedModel for one that is not whole tiles."""
    for pair in pinpoints:
        if len(pair) != 2 or pair[0] % side or pair[1] % side or min(pair) < side:
            raise UnsupportedModel(
                f"image_grid_pinpoints holds {pair}, which is not whole tiles of {side} pixels",
                architecture="processor",
            )
    return tuple((int(height), int(width)) for height, width in pinpoints)
