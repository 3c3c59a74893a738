r"""Pictures of Idefics3 and SmolVLM: scaled to a longest edge, cut into tiles, and seen whole.

    <fake><row_1_col_1> x x x <fake><row_1_col_2> x x x \n
    <fake><row_2_col_1> x x x <fake><row_2_col_2> x x x \n
    \n<fake><global-img> x x x <fake>

A picture that fits one tile is shown as the whole alone. Frames of SmolVLM's clips are never
cut (see `smolvlm`); those of Idefics3, which knows no clips, are pictures.
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
from mmserve.vision.families.idefics3_sizes import (
    LARGEST_EDGE,
    Size,
    scaled_size,
    tile_grid,
)
from mmserve.vision.families.llava import ImageProcessor
from mmserve.vision.families.settings import (
    clip_settings,
    per_channel,
    picture_settings,
    processor_settings,
    token_spelling,
)
from mmserve.vision.families.smolvlm import frame_labels
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import (
    Bounds,
    FrameFacts,
    Inputs,
    ItemPlan,
    Recipe,
    check_fixed_size,
)

__all__ = ["Idefics3Processor", "TileSteps", "TileWords", "load"]

_CLASSES = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_image_splitting": True,
    "do_rescale": True,
    "do_normalize": True,
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "resample": Image.Resampling.LANCZOS,
    "rescale_factor": 1 / 255,
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
}


@dataclass(frozen=True, slots=True)
class TileSteps:
    """What is done to a picture or frame.

    Args:
        longest_edge: it is scaled to, in pixels; None: its own size is kept.
        is_split: whether it is cut into tiles; else it is squeezed into one.
        finish: what is done to the values of tiles, which have the size `finish.output`.
    """

    longest_edge: int | None
    is_split: bool
    finish: ImageProcessor

    @property
    def side(self) -> int:
        """Of a tile, in pixels. Pure."""
        return self.finish.output[0]


@dataclass(frozen=True, slots=True)
class TileWords:
    """What is written around tiles.

    Args:
        num_tokens: of a tile.
        fake: control token around pictures.
        whole: control token before a picture seen whole.
        video: what templates write in a clip's place.
    """

    num_tokens: int
    fake: str = "<fake_token_around_image>"
    whole: str = "<global-img>"
    video: str = "<video>"

    def around(self, grid: Size) -> tuple[str | int, ...]:
        """Pieces of a picture of this many rows and columns of tiles. Pure."""
        pieces: list[str | int] = []
        before = ""
        rows, columns = (0, 0) if grid == (1, 1) else grid
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                label = f"{before}{self.fake}<row_{row}_col_{column}>"
                pieces += [label, self.num_tokens]
                before = ""
            before = "\n"
        before += "\n" if rows else ""
        return (*pieces, f"{before}{self.fake}{self.whole}", self.num_tokens, self.fake)


@dataclass(frozen=True)
class Idefics3Processor:
    """See `Processor`. Recipes: ("picture", longest edge, or 0 for its own size), ("frame",).

    Args:
        pictures: what is done to them.
        clips: what is done to their frames; None: they are pictures.
        words: what is written around both.
        image_token_id: placeholder of features.
    """

    pictures: TileSteps
    clips: TileSteps | None
    words: TileWords
    image_token_id: int

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        if self.clips is None:
            return MediaStyle(image_token_id=self.image_token_id)
        return MediaStyle(
            image_token_id=self.image_token_id,
            video_token_id=self.image_token_id,
            video_text=self.words.video,
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes over every setting that a result depends on."""
        fields = [repr(self.words)]
        for steps in (self.pictures, self.clips):
            if steps is not None:
                fields += [repr((steps.longest_edge, steps.is_split, steps.finish.fingerprint))]
        return stable_digest("idefics3", *fields)

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """See `Processor.picture`; the largest longest edge that keeps the bounds is taken.

        They speak of the pixels of all tiles together, without the picture seen whole.
        """
        steps, grid = self.pictures, (1, 1)
        edge = steps.longest_edge or 0
        if steps.is_split:
            edge, grid = _edge_within((height, width), steps, bounds)
        else:
            check_fixed_size(steps.side, steps.side, bounds)
        num_tiles = 1 if grid == (1, 1) else grid[0] * grid[1] + 1
        return ItemPlan(
            MediaLayout(self.words.around(grid)),
            num_tiles * steps.finish.num_patches,
            ("picture", edge),
        )

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: each frame by itself, SmolVLM's behind its time."""
        if self.clips is None:
            plans = [self.picture(frame.width, frame.height, bounds) for frame in frames]
            return tuple(replace(plan, frames=(place,)) for place, plan in enumerate(plans))
        check_fixed_size(self.clips.side, self.clips.side, bounds)
        first, num_tokens, after = self.words.around((1, 1))
        plans = []
        for place, label in enumerate(frame_labels(frames)):
            end = "\n\n" if place + 1 == len(frames) else ""
            layout = MediaLayout((f"{label}{first}", num_tokens, f"{after}{end}"))
            plans.append(ItemPlan(layout, self.clips.finish.num_patches, ("frame",), (place,)))
        return tuple(plans)

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """{"pixel_values": float32 [tiles, 3, side, side]}; see `Processor.inputs`."""
        steps, edge = self.pictures, recipe[-1]
        if recipe == ("frame",) and self.clips is not None:
            steps, edge = self.clips, self.clips.longest_edge or 0
        shown = _shown(Image.fromarray(frames[0]), steps, int(edge))
        return {"pixel_values": np.concatenate([_tiles(one, steps.finish) for one in shown])}


def load(directory: Path, config: Mapping[str, Any]) -> Idefics3Processor:
    """The processor of a model of type `idefics3` or `smolvlm`.

    Args:
        directory: holds the settings, see `settings`.
        config: the model's config.json.

    Raises:
        UnsupportedModel: settings of another kind.
        ModelRefused: tiles do not fit the model, or give it another number of tokens.
    """
    vision = config.get("vision_config") or {}
    patch_size, scale = int(vision.get("patch_size", 32)), int(config.get("scale_factor", 2))
    pictures = _steps(picture_settings(directory, _DEFAULTS, _CLASSES), patch_size)
    num_cells, left = divmod(pictures.side // patch_size, scale)
    num_tokens = num_cells**2
    wanted = int(processor_settings(directory).get("image_seq_len", num_tokens))
    if left or wanted != num_tokens:
        message = (
            f"{directory.name} speaks of {wanted} tokens a tile; tiles of {pictures.side} "
            f"pixels a side in patches of {patch_size}, {scale} x {scale} a token, "
            f"{'cannot be merged' if left else f'have {num_tokens}'}"
        )
        raise ModelRefused(message)
    clips, words = None, TileWords(num_tokens)
    if config.get("model_type") == "smolvlm":
        clips = _clip_steps(clip_settings(directory, {}), patch_size)
        words = _own_words(directory, words)
    if clips is not None and clips.side != pictures.side:
        raise ModelRefused(
            f"{directory.name} shows frames at {clips.side} pixels a side and tiles at "
            f"{pictures.side}; both must be equal"
        )
    image_token_id = int(config.get("image_token_id", 128257))
    return Idefics3Processor(pictures, clips, words, image_token_id)


def _own_words(directory: Path, words: TileWords) -> TileWords:
    return replace(
        words,
        fake=token_spelling(directory, "fake_image_token", words.fake),
        whole=token_spelling(directory, "global_image_token", words.whole),
        video=token_spelling(directory, "video_token", words.video),
    )


def _steps(settings: Mapping[str, Any], patch_size: int) -> TileSteps:
    side = _edge(settings["max_image_size"])
    return TileSteps(
        longest_edge=_edge(settings["size"]) if settings["do_resize"] else None,
        is_split=bool(settings["do_image_splitting"]),
        finish=ImageProcessor(per_channel(settings), (side, side), patch_size),
    )


def _clip_steps(settings: Mapping[str, Any], patch_size: int) -> TileSteps:
    """Of frames, which `video_sampling` may size if `size` does not."""
    sampling = settings.get("video_sampling") or {}
    size = settings.get("size") or sampling.get("video_size") or _DEFAULTS["size"]
    settings = {**_DEFAULTS, **settings, "size": size, "do_image_splitting": False}
    steps = _steps(settings, patch_size)
    if steps.longest_edge is None:
        message = "frames at their own size (do_resize is false) are not supported"
        raise UnsupportedModel(message, architecture="smolvlm")
    return replace(steps, longest_edge=min(steps.longest_edge, LARGEST_EDGE))


def _edge(size: object) -> int:
    if not isinstance(size, Mapping) or set(size) != {"longest_edge"}:
        message = f"picture size {size!r} is not supported, only a longest edge"
        raise UnsupportedModel(message, architecture="idefics3")
    return int(size["longest_edge"])


def _edge_within(size: Size, steps: TileSteps, bounds: Bounds) -> tuple[int, Size]:
    """The longest edge to scale to, and rows and columns of tiles then."""
    own = steps.longest_edge or 0
    largest = ((own or max(size)) - 1) // steps.side * steps.side
    num_pixels, edge, grid = 0, 0, (1, 1)
    for edge in (own, *range(largest, 0, -steps.side)):
        grid = tile_grid(scaled_size(size, edge), steps.side)
        num_pixels = grid[0] * grid[1] * steps.side**2
        if num_pixels <= (bounds.max_pixels or num_pixels):
            break
    else:
        _refuse("max_pixels", bounds.max_pixels, f"at least {num_pixels}")
    if num_pixels < (bounds.min_pixels or 0):
        _refuse("min_pixels", bounds.min_pixels, f"at most {num_pixels}")
    return edge, grid


def _refuse(field: str, bound: int | None, num_pixels: str) -> NoReturn:
    message = f"asks for {field} = {bound}, but this model sees it in {num_pixels} pixels"
    raise BadRequest(message, field=field, reason="range")


def _shown(picture: Image.Image, steps: TileSteps, edge: int) -> Iterator[Image.Image]:
    """What is cut into tiles, one behind the other."""
    side = steps.side
    scaled = _resized(picture, scaled_size((picture.height, picture.width), edge), steps)
    if not steps.is_split:
        yield _resized(scaled, (side, side), steps)
        return
    rows, columns = tile_grid((scaled.height, scaled.width), side)
    stretched = _resized(scaled, (rows * side, columns * side), steps)
    yield stretched
    if (rows, columns) != (1, 1):
        yield _resized(stretched, (side, side), steps)


def _resized(picture: Image.Image, size: Size, steps: TileSteps) -> Image.Image:
    resample = Image.Resampling(steps.finish.steps.resample)
    return picture.resize((size[1], size[0]), resample)


def _tiles(picture: Image.Image, finish: ImageProcessor) -> NDArray[np.float32]:
    """float32 [tiles, 3, side, side], row by row, of a picture of whole tiles."""
    values = finish.inputs([np.asarray(picture)], ())["pixel_values"]
    side = finish.output[0]
    rows, columns = picture.height // side, picture.width // side
    cut = values.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)
    return cut.reshape(rows * columns, 3, side, side)
