"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: pictures of any size, clips in groups of two frames.

    picture  -> [1 grid]                      a token shows 2 x 2 patches
    clip     -> [grid] [grid] [grid] ...      an item a group: encoded once for all windows

`geometry` sizes, `clips` groups and times, `pixels` prepares, `settings` reads the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmserve.core import GridPlace, MediaLayout, MediaStyle, ModelRefused
from mmserve.vision.families.qwen_vl.clips import frame_gap, groups, time_position, timestamp
from mmserve.vision.families.qwen_vl.geometry import ClipLimits, Limits, Size
from mmserve.vision.families.qwen_vl.pixels import Patches
from mmserve.vision.families.qwen_vl.settings import clip_settings, picture_settings
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import Bounds, FrameFacts, Inputs, ItemPlan, Recipe

__all__ = ["QwenVlProcessor", "load"]

Clock = Literal["steps", "seconds", "words"]
"""How a family tells time, see `clips`."""

_CLOCKS: dict[str, Clock] = {
    "qwen2_vl": "steps",
    "qwen2_5_vl": "seconds",
    "qwen3_vl": "words",
}
_START, _END = "<|vision_start|>", "<|vision_end|>"
_PATCHES = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}


@dataclass(frozen=True)
class QwenVlProcessor:
    """See `Processor`.

    Args:
        limits: of pictures.
        patches: how a picture's pixels are prepared.
        clip_limits: of clips.
        clip_patches: how frames' pixels are prepared.
        clock: how the family tells time.
        positions_per_second: of the clock `seconds`.
        image_token_id: placeholder of pictures.
        video_token_id: placeholder of clips.
    """

    limits: Limits
    patches: Patches
    clip_limits: ClipLimits
    clip_patches: Patches
    clock: Clock
    positions_per_second: float
    image_token_id: int
    video_token_id: int

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        return MediaStyle(
            image_token_id=self.image_token_id,
            video_token_id=self.video_token_id,
            has_grid_positions=True,
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """See `Processor.fingerprint`."""
        return stable_digest("qwen-vl", repr(self))

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """See `Processor.picture`. Raises MediaRefused for a strip."""
        size = self.limits.narrowed(bounds).size(height, width)
        rows, columns = _grid(size, self.patches)
        layout = MediaLayout((rows * columns,), GridPlace(rows, columns))
        return ItemPlan(layout, _num_patches(size, self.patches), ("picture", *size))

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: an item for each group of frames.

        Frames of one clip have one size, or else each group has its first frame's. The
        distance of groups in seconds is part of the recipe where positions follow it, since
        KV of the same groups at other positions must not be taken for theirs.
        """
        times = [frame.time for frame in frames]
        gap = frame_gap(times) * self.clip_limits.group
        is_timed = self.clock == "seconds"
        pace = ("seconds", gap.numerator, gap.denominator) if is_timed else ()
        plans = []
        for step, places in enumerate(groups(len(frames), self.clip_limits.group)):
            first = frames[places[0]]
            size = self.clip_limits.size(first.height, first.width, len(frames), bounds)
            layout = self._layout(size, step, gap, [times[place] for place in places])
            num_patches = _num_patches(size, self.clip_patches)
            plans.append(ItemPlan(layout, num_patches, ("clip", *size, *pace), places))
        return tuple(plans)

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """{"pixel_values": float32 [M, 3 * T * P * P], "grid": int64 [3]}; see `Processor`.

        T frames are a group, a patch has P x P pixels; the grid counts groups, rows and columns
        of patches.
        """
        kind, height, width = recipe[:3]
        patches = self.patches if kind == "picture" else self.clip_patches
        tall, wide = int(height), int(width)
        grid = np.array([1, tall // patches.patch, wide // patches.patch], np.int64)
        return {"pixel_values": patches.rows(frames, (tall, wide)), "grid": grid}

    def _layout(
        self, size: Size, step: int, gap: Fraction, times: Sequence[Fraction]
    ) -> MediaLayout:
        rows, columns = _grid(size, self.clip_patches)
        num_tokens = rows * columns
        if self.clock == "words":
            pieces = (timestamp(times) + _START, num_tokens, _END)
            return MediaLayout(pieces, GridPlace(rows, columns))
        time = step
        if self.clock == "seconds":
            time = time_position(step, gap, self.positions_per_second)
        return MediaLayout((num_tokens,), GridPlace(rows, columns, time, step == 0))


def load(directory: Path, config: Mapping[str, Any]) -> QwenVlProcessor:
    """The processor of a checkpoint.

    Args:
        directory: holds the settings of its processors; what they leave out, and all of it
            where there are none, is as usual for their classes.
        config: the model's config.json.

    Raises:
        UnsupportedModel: processors of another family.
        ModelRefused: their patches are not those of the model.
    """
    family = str(config["model_type"])
    vision = config.get("vision_config") or {}
    limits, patches = picture_settings(directory)
    clip_limits, clip_patches = clip_settings(directory, family)
    for name, some in (("picture", patches), ("clip", clip_patches)):
        _check_fit(name, some, vision, family)
    return QwenVlProcessor(
        limits=limits,
        patches=patches,
        clip_limits=clip_limits,
        clip_patches=clip_patches,
        clock=_CLOCKS[family],
        positions_per_second=float(vision.get("tokens_per_second", 4)),
        image_token_id=int(config.get("image_token_id", 151655)),
        video_token_id=int(config.get("video_token_id", 151656)),
    )


def _check_fit(name: str, patches: Patches, vision: Mapping[str, Any], family: str) -> None:
    """Raise ModelRefused if the model takes other patches than the processor makes."""
    made = (patches.patch, patches.merge, patches.group)
    takes = (
        vision.get("patch_size", _PATCHES[family]),
        vision.get("spatial_merge_size", 2),
        vision.get("temporal_patch_size", 2),
    )
    if made != takes:
        raise ModelRefused(
            f"the {name} processor makes patches of {made} (pixels, patches a token, frames), "
            f"the model takes {takes}"
        )


def _grid(size: Size, patches: Patches) -> tuple[int, int]:
    """Rows and columns of tokens."""
    return size[0] // patches.unit, size[1] // patches.unit


def _num_patches(size: Size, patches: Patches) -> int:
    return (size[0] // patches.patch) * (size[1] // patches.patch)
