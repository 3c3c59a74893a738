"""Pictures of Pixtral and Mistral 3: proportions kept, rows of tokens with words between them.

    width, height -> at most `longest_edge` a side -> up to whole units -> resize, normalise

    [IMG] [IMG] [IMG] [IMG_BREAK] [IMG] [IMG] [IMG] [IMG_END]     2 rows of 3 units

A unit is what one token shows: a patch, or `merge` patches a side of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import BadRequest, MediaLayout, MediaStyle, ModelRefused, UnsupportedModel
from mmserve.vision.families.llava import ImageProcessor, ImageSteps
from mmserve.vision.families.settings import (
    per_channel,
    picture_settings,
    processor_settings,
)
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import Bounds, FrameFacts, Inputs, ItemPlan, Recipe

__all__ = ["PixtralProcessor", "load"]

_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "size": {"longest_edge": 1024},
    "resample": Image.Resampling.BICUBIC,
    "rescale_factor": 1 / 255,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_WORDS = {
    "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}
_TOWER = {"patch_size": 14}
"""Of a Mistral 3 that does not say."""
_MERGES = {"llava": 1, "mistral3": 2}
_IMAGE_TOKENS = {"llava": 32000, "mistral3": 10}


@dataclass(frozen=True)
class PixtralProcessor:
    """See `Processor`; a picture's recipe is its height and width after resizing.

    Args:
        steps: what is done to the pixels once they have the picture's size.
        longest_edge: of a picture, in pixels, before it is brought up to whole units.
        patch_size: side of a patch in pixels.
        merge: patches along a side of what one token shows.
        image_token_id: placeholder of a picture's tokens.
        words: spellings of the placeholder, of what ends a row, of what ends the last one.
    """

    steps: ImageSteps
    longest_edge: int
    patch_size: int
    merge: int
    image_token_id: int
    words: tuple[str, str, str] = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")

    @property
    def unit(self) -> int:
        """Side in pixels of what one token shows. Pure."""
        return self.patch_size * self.merge

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        return MediaStyle(image_token_id=self.image_token_id, image_text=self.words[0])

    @cached_property
    def fingerprint(self) -> bytes:
        """See `Processor.fingerprint`."""
        fields = (astuple(self.steps), self.longest_edge, self.patch_size, self.merge)
        return stable_digest("pixtral", repr((fields, self.words)))

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """See `Processor.picture`."""
        tall, wide = self._target(width, height, bounds)
        rows, columns = tall // self.unit, wide // self.unit
        between, end = self.words[1:]
        pieces = (columns, between) * (rows - 1) + (columns, end)
        num_patches = rows * columns * self.merge**2
        return ItemPlan(MediaLayout(pieces), num_patches, (tall, wide))

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: every frame is a picture."""
        return tuple(
            replace(self.picture(frame.width, frame.height, bounds), frames=(place,))
            for place, frame in enumerate(frames)
        )

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """{"pixel_values": float32 [3, height, width]}; see `Processor.inputs`."""
        size = (int(recipe[0]), int(recipe[1]))
        steps = replace(self.steps, size=size)
        return ImageProcessor(steps, size, self.patch_size).inputs(frames, ())

    def _target(self, width: int, height: int, bounds: Bounds) -> tuple[int, int]:
        """Height and width after resizing: the family's own, unless `bounds` forbid these."""
        ratio = max(height, width) / self.longest_edge
        if ratio > 1:
            height = max(1, math.floor(height / ratio))
            width = max(1, math.floor(width / ratio))
        target = self._up(height), self._up(width)
        if bounds.max_pixels is not None and _area(target) > bounds.max_pixels:
            target = self._within(height, width, bounds.max_pixels)
        if bounds.min_pixels is not None and _area(target) < bounds.min_pixels:
            scale = math.sqrt(bounds.min_pixels / (height * width))
            target = self._up(height * scale), self._up(width * scale)
            largest = self._up(self.longest_edge)
            if max(target) > largest or _area(target) > (bounds.max_pixels or _area(target)):
                _refuse_bound("min_pixels", bounds.min_pixels, f"at most {largest} a side")
        return target

    def _within(self, height: int, width: int, max_pixels: int) -> tuple[int, int]:
        """Whole units of at most so many pixels, of about these proportions."""
        scale = min(1.0, math.sqrt(max_pixels / (height * width)))
        short = self._down(min(height, width) * scale)
        longest = max_pixels // short // self.unit * self.unit
        if longest == 0:
            _refuse_bound("max_pixels", max_pixels, f"at least {self.unit} a side")
        long = min(self._down(max(height, width) * scale), longest)
        return (short, long) if height <= width else (long, short)

    def _up(self, side: float) -> int:
        return max(1, math.ceil(side / self.unit)) * self.unit

    def _down(self, side: float) -> int:
        return max(1, math.floor(side / self.unit)) * self.unit


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _refuse_bound(field: str, value: int, sides: str) -> NoReturn:
    message = (
        f"asks for {field} = {value}, but a picture of this shape has {sides} pixels, "
        "in whole units of the model"
    )
    raise BadRequest(message, field=field, reason="range")


def load(directory: Path, config: Mapping[str, Any]) -> PixtralProcessor:
    """The processor of Mistral 3, or of Pixtral as transformers writes it (`llava`).

    Args:
        directory: holds processor_config.json, and perhaps preprocessor_config.json; what they
            do not say is as transformers has it.
        config: the model's config.json.

    Raises:
        UnsupportedModel: a processor of another family, or steps that are not computed.
        ModelRefused: its patches are not the model's.
    """
    family = str(config["model_type"])
    tower = config.get("vision_config") or _TOWER
    patch_size = int(tower.get("patch_size", 16))
    merge = int(config.get("spatial_merge_size", _MERGES[family]))
    outer = processor_settings(directory)
    settings = picture_settings(directory, _DEFAULTS, ("PixtralImageProcessor",))
    _check(settings)
    own = int(outer.get("patch_size", patch_size)), int(outer.get("spatial_merge_size", merge))
    if own != (patch_size, merge):
        raise ModelRefused(
            f"the processor of {directory.name} has patches of {own[0]} pixels, merged by "
            f"{own[1]}; the model has {patch_size}, merged by {merge}",
            hint="correct patch_size and spatial_merge_size in processor_config.json",
        )
    token = config.get("image_token_id", config.get("image_token_index", _IMAGE_TOKENS[family]))
    image, row_end, end = (str(outer.get(name) or word) for name, word in _WORDS.items())
    return PixtralProcessor(
        steps=per_channel(settings),
        longest_edge=int(settings["size"]["longest_edge"]),
        patch_size=patch_size,
        merge=merge,
        image_token_id=int(token),
        words=(image, row_end, end),
    )


def _check(settings: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for steps that are not computed."""
    for field, is_served in (
        ("do_resize", bool(settings["do_resize"])),
        ("do_center_crop", not settings["do_center_crop"]),
        ("size", isinstance(settings["size"], Mapping) and "longest_edge" in settings["size"]),
    ):
        if not is_served:
            message = (
                f"pictures of Pixtral with {field} = {settings[field]!r} are not supported"
            )
            raise UnsupportedModel(message, architecture="PixtralImageProcessor")
