"""Pictures of any resolution: the whole once, then again in tiles that show more.

    picture --> canvas of tiles that wastes least      tile size S, `side` patches along it
    +-----+-----+    the picture is scaled to touch two edges, black bars fill the rest;
    |:::::|:::::|    features of whole rows (or columns) of bars are left out again, and
    +-----+-----+    each row of features that is left ends with a newline feature
    |:::::|:::::|
    +-----+-----+    tokens: whole picture, row, newline, row, newline, ...

Source: LLaVA-NeXT (2024) and LLaVA-OneVision (2024), section 3; rounding as in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import BadRequest, MediaLayout, MediaStyle
from mmserve.vision.families.llava import ImageProcessor
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import (
    Bounds,
    FrameFacts,
    Inputs,
    ItemPlan,
    Recipe,
    check_fixed_size,
)

__all__ = ["AnyresProcessor", "ClipFrames", "Size", "Tiling", "choose_canvas", "fitted"]

Size = tuple[int, int]
"""Height and width."""

_NEWLINE: Recipe = ("newline",)
_FRAME: Recipe = ("frame",)
_SLACK = 1.1
"""Features are made fewer once their sides exceed the bound's by this factor."""


def choose_canvas(picture: Size, canvases: Sequence[Size]) -> Size:
    """The canvas that shows most of a picture; of several, the one that wastes least. Pure."""

    def worth(canvas: Size) -> tuple[int, int]:
        scale = min(canvas[1] / picture[1], canvas[0] / picture[0])
        shown = min(int(picture[1] * scale) * int(picture[0] * scale), _area(picture))
        return shown, shown - _area(canvas)

    return max(canvases, key=worth)


def fitted(picture: Size, canvas: Size) -> Size:
    """Size of a picture scaled into a canvas, proportions kept. Pure."""
    across, down = canvas[1] / picture[1], canvas[0] / picture[0]
    if across < down:
        return min(math.ceil(picture[0] * across), canvas[0]), canvas[1]
    return canvas[0], min(math.ceil(picture[1] * down), canvas[1])


@dataclass(frozen=True, slots=True)
class Tiling:
    """What becomes of the features of a canvas.

    Args:
        grid: rows and columns of tiles.
        start: first row and column of features that are not bars.
        kept: rows and columns of features from there.
        scaled: rows and columns that these are interpolated to, mostly as many.
    """

    grid: Size
    start: Size
    kept: Size
    scaled: Size

    @classmethod
    def of(cls, picture: Size, grid: Size, side: int, max_tiles: int | None = None) -> Tiling:
        """For a picture in so many tiles of `side` ** 2 features; at most `max_tiles` full."""
        rows, columns = grid[0] * side, grid[1] * side
        top = left = 0
        if picture[1] / picture[0] > columns / rows:
            top = (rows - int(round(picture[0] * (columns / picture[1]), 7))) // 2
        else:
            left = (columns - int(round(picture[1] * (rows / picture[0]), 7))) // 2
        kept = rows - 2 * top, columns - 2 * left
        scaled = kept
        if max_tiles is not None:
            ratio = math.sqrt(_area(kept) / (max_tiles * side**2))
            if ratio > _SLACK:
                scaled = int(kept[0] // ratio), int(kept[1] // ratio)
        return cls(grid, (top, left), kept, scaled)

    @property
    def num_features(self) -> int:
        """Features in rows that end with a newline. Pure."""
        return self.scaled[0] * (self.scaled[1] + 1)


@dataclass(frozen=True, slots=True)
class ClipFrames:
    """A family's own way with clips: pooled frames in one run.

    Args:
        frame: what is done to a frame's pixels.
        num_tokens: of one frame, after pooling.
        token_id: placeholder of a clip's features.
        has_newline: whether one newline feature ends a clip.
    """

    frame: ImageProcessor
    num_tokens: int
    token_id: int
    has_newline: bool


@dataclass(frozen=True)
class AnyresProcessor:
    """See `Processor`; the recipe of a picture names its canvas.

    A picture is tiled in the same way however many pictures a prompt has, so that it is encoded
    once for all prompts.

    Args:
        tile: what is done to the whole picture and to each tile.
        canvases: sizes in pixels, multiples of the tile's.
        max_tiles: full tiles that a picture has features for at most, or None.
        clips: None where frames are pictures.
    """

    tile: ImageProcessor
    canvases: tuple[Size, ...]
    max_tiles: int | None = None
    clips: ClipFrames | None = None

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        video = None if self.clips is None else self.clips.token_id
        return MediaStyle(image_token_id=self.tile.image_token_id, video_token_id=video)

    @cached_property
    def fingerprint(self) -> bytes:
        """See `Processor.fingerprint`."""
        clips = self.clips
        own = clips and (clips.frame.fingerprint, clips.num_tokens, clips.has_newline)
        fields = (self.tile.fingerprint, self.canvases, self.max_tiles, own)
        return stable_digest("anyres", repr(fields))

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """See `Processor.picture`; bounds choose among the canvases."""
        canvas = choose_canvas((height, width), self._within(bounds))
        tiling = self._tiling((height, width), canvas)
        layout = MediaLayout((self.tile.num_tokens + tiling.num_features,))
        num_patches = (1 + _area(tiling.grid)) * self.tile.num_patches
        return ItemPlan(layout, num_patches, ("canvas", *canvas))

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: an item a frame, and one of a newline if the family has it."""
        if self.clips is None:
            plans = [self.picture(frame.width, frame.height, bounds) for frame in frames]
        else:
            check_fixed_size(*self.tile.output, bounds)
            layout = MediaLayout((self.clips.num_tokens,))
            plans = [ItemPlan(layout, self.tile.num_patches, _FRAME)] * len(frames)
        items = [replace(plan, frames=(place,)) for place, plan in enumerate(plans)]
        if self.clips is not None and self.clips.has_newline:
            items.append(ItemPlan(MediaLayout((1,)), 0, _NEWLINE, frames=()))
        return tuple(items)

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """What an item shows, see `Processor.inputs`.

        Returns:
            A picture: "tiles" float32 [n, 3, S, S], the whole picture first, and the sizes of
            its `Tiling`, int64 [2] each. A frame: "frame" float32 [3, S, S]. A newline:
            "newline", empty.
        """
        if recipe == _NEWLINE:
            return {"newline": np.zeros(0, np.float32)}
        if recipe == _FRAME and self.clips is not None:
            return {"frame": self.clips.frame.inputs(frames, ())["pixel_values"]}
        pixels = frames[0]
        canvas = (int(recipe[1]), int(recipe[2]))
        tiling = self._tiling(pixels.shape[:2], canvas)
        shown = [pixels, *self._cut(pixels, canvas)]
        tiles = [self.tile.inputs([piece], ())["pixel_values"] for piece in shown]
        sizes = {name: getattr(tiling, name) for name in ("grid", "start", "kept", "scaled")}
        return {
            "tiles": np.stack(tiles),
            **{name: np.array(size, np.int64) for name, size in sizes.items()},
        }

    def _tiling(self, picture: Size, canvas: Size) -> Tiling:
        height, width = self.tile.output
        side = height // self.tile.patch_size
        grid = canvas[0] // height, canvas[1] // width
        return Tiling.of(picture, grid, side, self.max_tiles)

    def _within(self, bounds: Bounds) -> list[Size]:
        """Canvases that `bounds` allow. Raises BadRequest if none is left."""
        areas = [_area(canvas) for canvas in self.canvases]
        least, most = bounds.min_pixels or 0, bounds.max_pixels or max(areas)
        allowed = [c for c in self.canvases if least <= _area(c) <= most]
        if allowed:
            return allowed
        field = "min_pixels" if least > max(areas) or not bounds.max_pixels else "max_pixels"
        raise BadRequest(
            f"asks for {field} = {getattr(bounds, field)}, but this model lays pictures on "
            f"canvases of {min(areas)} to {max(areas)} pixels, and none fits",
            field=field,
            reason="range",
        )

    def _cut(self, pixels: NDArray[np.uint8], canvas: Size) -> list[NDArray[np.uint8]]:
        """Tiles of the picture in the middle of a black canvas, row by row."""
        height, width = fitted(pixels.shape[:2], canvas)
        kernel = Image.Resampling(self.tile.steps.resample)
        picture = Image.fromarray(pixels).resize((width, height), kernel)
        top, left = (canvas[0] - height) // 2, (canvas[1] - width) // 2
        plane = np.zeros((*canvas, 3), np.uint8)
        plane[top : top + height, left : left + width] = np.asarray(picture)
        tall, wide = self.tile.output
        return [
            plane[row : row + tall, column : column + wide]
            for row in range(0, canvas[0], tall)
            for column in range(0, canvas[1], wide)
        ]


def _area(size: Size) -> int:
    return size[0] * size[1]
