"""Picture processors of the CLIP and SigLIP families: RGB pixels -> the tower's input.

    pad to square -> resize -> centre crop -> x factor -> (x - mean) / std
    ('LLaVA 1.5')    (Pillow)                  one look-up table per channel

Every step is optional, and the result equals transformers' Pillow backend bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import MediaLayout, MediaStyle
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import (
    Bounds,
    FrameFacts,
    Inputs,
    ItemPlan,
    Recipe,
    check_fixed_size,
)

__all__ = ["ImageProcessor", "ImageSteps"]

_LEVELS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSteps:
    """What is done to a picture; sizes are (height, width) in pixels, None skips the step.

    Args:
        pad_colour: RGB of the bars that make a picture square first.
        shortest_edge: length of the shorter side after resizing, proportions kept.
        size: size after resizing, proportions not kept; used when `shortest_edge` is None.
        resample: Pillow's number of the resampling filter.
        crop: size cut from the middle, padded with black where the picture is smaller.
        factor: pixel values are multiplied by it.
        mean: subtracted per channel.
        std: divided by per channel.
    """

    pad_colour: tuple[int, int, int] | None = None
    shortest_edge: int | None = None
    size: tuple[int, int] | None = None
    resample: int = Image.Resampling.BICUBIC
    crop: tuple[int, int] | None = None
    factor: float | None = 1 / 255
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ImageProcessor:
    """Turns pixels into a model's inputs, and knows their number of tokens beforehand.

    Args:
        steps: what is done to the picture; the result always has size `output`.
        output: (height, width) that the tower takes.
        patch_size: side of a patch in pixels.
        num_extra_tokens: tokens of a picture beyond one per patch: 1 where a class token is
            kept, -1 where the model drops the first patch.
        image_token_id: placeholder of a picture's tokens.
    """

    steps: ImageSteps
    output: tuple[int, int]
    patch_size: int
    num_extra_tokens: int = 0
    image_token_id: int = 0

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        return MediaStyle(image_token_id=self.image_token_id)

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes over every setting that the result depends on."""
        fields = (astuple(self.steps), self.output, self.patch_size, self.num_extra_tokens)
        return stable_digest("clip-like", repr(fields))

    @property
    def num_patches(self) -> int:
        """Patches that the tower computes for a picture. Pure."""
        return (self.output[0] // self.patch_size) * (self.output[1] // self.patch_size)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt that a picture stands for. Pure."""
        return self.num_patches + self.num_extra_tokens

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:  # noqa: ARG002
        """See `Processor.picture`: the tower sees every picture at one size."""
        check_fixed_size(self.output[1], self.output[0], bounds)
        return ItemPlan(MediaLayout((self.num_tokens,)), self.num_patches)

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: every frame is a picture."""
        plan = self.picture(0, 0, bounds)
        return tuple(replace(plan, frames=(place,)) for place in range(len(frames)))

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:  # noqa: ARG002
        """{"pixel_values": float32 [3, height, width]}; see `Processor.inputs`.

        Cost: 3 ms for a 640 x 480 picture on one core.
        """
        shaped = self._shaped(frames[0])
        values = np.empty((3, *shaped.shape[:2]), np.float32)
        for channel in range(3):
            np.take(self._levels[channel], shaped[..., channel], out=values[channel])
        return {"pixel_values": values}

    def _shaped(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if self.steps.pad_colour is not None:
            pixels = _padded_to_square(pixels, self.steps.pad_colour)
        size = self._resized_to(*pixels.shape[:2])
        if size is not None:
            picture = Image.fromarray(pixels)
            picture = picture.resize((size[1], size[0]), Image.Resampling(self.steps.resample))
            pixels = np.asarray(picture)
        return pixels if self.steps.crop is None else _centre(pixels, self.steps.crop)

    def _resized_to(self, height: int, width: int) -> tuple[int, int] | None:
        edge = self.steps.shortest_edge
        if edge is None:
            return self.steps.size
        long = int(edge * max(height, width) / min(height, width))
        return (long, edge) if width <= height else (edge, long)

    @cached_property
    def _levels(self) -> NDArray[np.float32]:
        """Result for each value of a channel, float32 [3, 256], rounded as in transformers."""
        level = np.arange(_LEVELS, dtype=np.float64)
        if self.steps.factor is not None:
            level = level * self.steps.factor
        levels = np.tile(level.astype(np.float32), (3, 1))
        if self.steps.mean is not None and self.steps.std is not None:
            mean = np.array(self.steps.mean, np.float32)[:, None]
            levels = (levels - mean) / np.array(self.steps.std, np.float32)[:, None]
        return levels


def _padded_to_square(
    pixels: NDArray[np.uint8], colour: tuple[int, int, int]
) -> NDArray[np.uint8]:
    height, width = pixels.shape[:2]
    side = max(height, width)
    canvas = np.empty((side, side, 3), np.uint8)
    canvas[:] = colour
    top, left = (side - height) // 2, (side - width) // 2
    canvas[top : top + height, left : left + width] = pixels
    return canvas


def _centre(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The middle of a picture, on black where it does not reach.

    Along one axis, for a picture of n pixels and a cut of m: cut at (n - m) // 2 if n >= m,
    otherwise placed at ceil((m - n) / 2).
    """
    canvas = np.zeros((*size, 3), np.uint8)
    takes, places = [], []
    for have, want in zip(pixels.shape[:2], size, strict=True):
        skip = max((have - want) // 2, 0)
        place = max(-((have - want) // 2), 0)
        length = min(have, want)
        takes.append(slice(skip, skip + length))
        places.append(slice(place, place + length))
    canvas[places[0], places[1]] = pixels[takes[0], takes[1]]
    return canvas
