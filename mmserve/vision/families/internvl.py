r"""Pictures of InternVL: stretched to the grid of tiles of nearest proportions, and seen whole.

    <img> x x x  x x x  x x x  x x x  x x x </img>      2 x 2 tiles, then the whole as one more
    Frame1: <img> x x x </img>\nFrame2: <img> x x x </img>                   a clip's frames

A picture that is one tile is that tile alone; frames of clips always are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import BadRequest, MediaLayout, MediaStyle, ModelRefused, UnsupportedModel
from mmserve.vision.families.llava import ImageProcessor
from mmserve.vision.families.settings import (
    clip_settings,
    per_channel,
    picture_settings,
    processor_settings,
    token_spelling,
)
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import (
    Bounds,
    FrameFacts,
    Inputs,
    ItemPlan,
    Recipe,
    check_fixed_size,
)

__all__ = ["InternVLProcessor", "InternVLWords", "load"]

_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "size": {"height": 384, "width": 384},
    "min_patches": 1,
    "max_patches": 12,
    "resample": Image.Resampling.BICUBIC,
    "rescale_factor": 1 / 255,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}

Grid = tuple[int, int]
"""Columns and rows of tiles."""


@dataclass(frozen=True, slots=True)
class InternVLWords:
    """What is written around features.

    Args:
        num_tokens: of a tile.
        start: control token before a picture or frame.
        end: control token behind it.
        video: what templates write in a clip's place.
    """

    num_tokens: int
    start: str = "<img>"
    end: str = "</img>"
    video: str = "<video>"


@dataclass(frozen=True)
class InternVLProcessor:
    """See `Processor`. Recipes: ("tiles", columns, rows) of pictures, ("frame",).

    Args:
        pictures: resizes to one tile and gives its values; `pictures.output` is a tile's size.
        clips: the same of frames.
        min_tiles: of a picture, without the whole.
        max_tiles: of a picture, without the whole.
        words: what is written around features.
        image_token_id: placeholder of features.
    """

    pictures: ImageProcessor
    clips: ImageProcessor
    min_tiles: int
    max_tiles: int
    words: InternVLWords
    image_token_id: int

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        return MediaStyle(
            image_token_id=self.image_token_id,
            video_token_id=self.image_token_id,
            video_text=self.words.video,
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes over every setting that a result depends on."""
        finishes = (self.pictures.fingerprint, self.clips.fingerprint)
        fields = (self.min_tiles, self.max_tiles, self.words, finishes)
        return stable_digest("internvl", repr(fields))

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """See `Processor.picture`; bounds are kept by numbers of tiles to choose from.

        They speak of the pixels of all tiles together, without the whole.
        """
        side = self.pictures.output[0]
        columns, rows = _nearest((width, height), side, *self._limits(bounds))
        num_tiles = _num_tiles((columns, rows))
        words = self.words
        return ItemPlan(
            MediaLayout((words.start, num_tiles * words.num_tokens, words.end)),
            num_tiles * self.pictures.num_patches,
            ("tiles", columns, rows),
        )

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: each frame by itself, numbered from 1."""
        check_fixed_size(*self.clips.output, bounds)
        words, plans = self.words, []
        for place in range(len(frames)):
            label = f"Frame{place + 1}: {words.start}"
            layout = MediaLayout((label, words.num_tokens, words.end))
            if place:
                layout = MediaLayout(("\n", *layout.pieces))
            plans.append(ItemPlan(layout, self.clips.num_patches, ("frame",), (place,)))
        return tuple(plans)

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """{"pixel_values": float32 [tiles, 3, side, side]}; see `Processor.inputs`."""
        if recipe == ("frame",):
            return {"pixel_values": self.clips.inputs(frames, ())["pixel_values"][None]}
        grid = int(recipe[1]), int(recipe[2])
        tiles = list(_cut(frames[0], grid, self.pictures))
        if len(tiles) > 1:
            tiles.append(frames[0])
        values = [self.pictures.inputs([tile], ())["pixel_values"] for tile in tiles]
        return {"pixel_values": np.stack(values)}

    def _limits(self, bounds: Bounds) -> tuple[int, int]:
        """Fewest and most tiles that a request wants and the model takes."""
        height, width = self.pictures.output
        area, most, fewest = height * width, self.max_tiles, 1
        if bounds.max_pixels is not None:
            most = min(most, bounds.max_pixels // area)
        if not most:
            _refuse("max_pixels", bounds.max_pixels, f"at least {area}")
        if bounds.min_pixels is not None:
            fewest = -(-bounds.min_pixels // area)
        if fewest > most:
            _refuse("min_pixels", bounds.min_pixels, f"at most {most * area}")
        return min(max(self.min_tiles, fewest), most), most


def load(directory: Path, config: Mapping[str, Any]) -> InternVLProcessor:
    """The processor of a model of type `internvl`.

    Args:
        directory: holds the settings, see `settings`.
        config: the model's config.json.

    Raises:
        UnsupportedModel: settings of another kind.
        ModelRefused: tiles do not fit the model, or give it another number of tokens.
    """
    patch_size = _patch_size(config.get("vision_config") or {})
    settings = picture_settings(directory, _DEFAULTS, ("GotOcr2ImageProcessor",))
    pictures = _one_tile(settings, patch_size)
    clips = _one_tile(clip_settings(directory, _DEFAULTS), patch_size)
    ratio, patches = float(config.get("downsample_ratio", 0.5)), pictures.num_patches
    num_tokens = int(patches**0.5 * ratio) ** 2
    wanted = int(processor_settings(directory).get("image_seq_length", num_tokens))
    if num_tokens != patches * ratio**2 or wanted != num_tokens:
        message = (
            f"{directory.name} speaks of {wanted} tokens a tile; tiles of {patches} patches, "
            f"merged by {ratio} a side, have {patches * ratio**2:g}"
        )
        raise ModelRefused(message)
    if clips.output != pictures.output:
        raise ModelRefused(
            f"{directory.name} shows frames at {clips.output} pixels and tiles at "
            f"{pictures.output}; both must be equal"
        )
    return InternVLProcessor(
        pictures,
        clips,
        int(settings["min_patches"]),
        max(1, int(settings["max_patches"])),
        _words(directory, num_tokens),
        int(config.get("image_token_id", 151667)),
    )


def _words(directory: Path, num_tokens: int) -> InternVLWords:
    words = InternVLWords(num_tokens)
    return replace(
        words,
        start=token_spelling(directory, "start_image_token", words.start),
        end=token_spelling(directory, "end_image_token", words.end),
        video=token_spelling(directory, "video_token", words.video),
    )


def _patch_size(vision: Mapping[str, Any]) -> int:
    size = vision.get("patch_size", 14)
    sides = {int(size)} if isinstance(size, int) else set(map(int, size))
    if len(sides) > 1:
        message = f"patches of {size} pixels are not supported, only squares"
        raise UnsupportedModel(message, architecture="internvl")
    return sides.pop()


def _one_tile(settings: Mapping[str, Any], patch_size: int) -> ImageProcessor:
    size = settings["size"]
    is_square = set(size) == {"height", "width"} and size["height"] == size["width"]
    if not is_square or not settings["do_resize"] or settings["do_center_crop"]:
        message = f"pictures of size {size!r} are not supported, only ones resized to a square"
        raise UnsupportedModel(message, architecture="internvl")
    shape = int(size["height"]), int(size["width"])
    return ImageProcessor(replace(per_channel(settings), size=shape), shape, patch_size)


def _refuse(field: str, bound: int | None, num_pixels: str) -> NoReturn:
    message = f"asks for {field} = {bound}, but this model sees it in {num_pixels} pixels"
    raise BadRequest(message, field=field, reason="range")


def _num_tiles(grid: Grid) -> int:
    """Tiles of a picture, with the whole behind several."""
    num_cut = grid[0] * grid[1]
    return num_cut if num_cut == 1 else num_cut + 1


def _nearest(size: tuple[int, int], side: int, fewest: int, most: int) -> Grid:
    """The grid whose proportions are nearest to those of a picture (width, height).

    Among equally near ones the smallest, unless the picture has more than half the pixels of a
    larger one.
    """
    width, height = size
    best, gap = (1, 1), float("inf")
    for columns, rows in _grids(fewest, most):
        distance = abs(width / height - columns / rows)
        is_filled = width * height > 0.5 * side * side * columns * rows
        if distance < gap or (distance == gap and is_filled):
            best, gap = (columns, rows), distance
    return best


def _grids(fewest: int, most: int) -> list[Grid]:
    """All grids of so many tiles, small ones first, narrow ones first among equals."""
    numbers = range(1, most + 1)
    grids = [(c, r) for c in numbers for r in numbers if fewest <= c * r <= most]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def _cut(
    pixels: NDArray[np.uint8], grid: Grid, finish: ImageProcessor
) -> Iterator[NDArray[np.uint8]]:
    """Tiles row by row of the picture stretched to the grid."""
    columns, rows = grid
    height, width = finish.output
    resample = Image.Resampling(finish.steps.resample)
    stretched = Image.fromarray(pixels).resize((columns * width, rows * height), resample)
    for row in range(rows):
        for column in range(columns):
            left, top = column * width, row * height
            yield np.asarray(stretched.crop((left, top, left + width, top + height)))
