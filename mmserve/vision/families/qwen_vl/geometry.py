"""How large pictures and frames are made: sides of whole units, pixels within limits.

    height, width -> nearest multiples of a unit -> too many pixels: smaller, rounded down
                                                 -> too few pixels: larger, rounded up

A unit is what one token shows. The numbers are those of transformers' processors, whose
rounding is part of what the models were trained with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mmserve.core import BadRequest
from mmserve.vision.processor import Bounds
from mmserve.vision.refusal import refused

__all__ = ["ClipLimits", "Limits", "Size"]

Size = tuple[int, int]
"""Height and width in pixels."""

_MAX_RATIO = 200
_OVER_MINIMUM = 1.05
_TOKENS_LEFT = 0.9


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one picture.

    Args:
        unit: side in pixels of what one token shows.
        min_pixels: a picture has after resizing, as far as whole units allow.
        max_pixels: the same, at most.
    """

    unit: int
    min_pixels: int
    max_pixels: int

    def narrowed(self, bounds: Bounds, num_frames: int = 1) -> Limits:
        """Limits that keep a request's bounds too, which are of one frame each.

        Pure. Raises BadRequest if nothing lies within both.
        """
        most, least = self.max_pixels, self.min_pixels
        if bounds.max_pixels is not None:
            most = min(most, bounds.max_pixels * num_frames)
            floor = max(-(-least // num_frames), self.unit**2)
            if bounds.max_pixels < floor:
                raise _out_of_range("max_pixels", bounds.max_pixels, f"at least {floor}")
        if bounds.min_pixels is not None:
            least = max(least, bounds.min_pixels * num_frames)
            if least > most:
                ceiling = f"at most {most // num_frames}"
                raise _out_of_range("min_pixels", bounds.min_pixels, ceiling)
        return replace(self, min_pixels=least, max_pixels=most)

    def size(self, height: int, width: int, num_frames: int = 1, num_whole: int = 1) -> Size:
        """Size after resizing.

        Args:
            height: in pixels.
            width: in pixels.
            num_frames: that share the limits.
            num_whole: the same, rounded to whole groups.

        Pure. Raises MediaRefused for a strip longer than 200 times its width.
        """
        if max(height, width) > _MAX_RATIO * min(height, width):
            raise refused(
                "unsupported",
                f"has {width} x {height} pixels; one side may be "
                f"{_MAX_RATIO} times as long as the other",
                hint="cut it in pieces",
                limit=_MAX_RATIO,
            )
        unit, num_pixels = self.unit, num_frames * height * width
        tall, wide = round(height / unit) * unit, round(width / unit) * unit
        if num_whole * tall * wide > self.max_pixels:
            shrink = math.sqrt(num_pixels / self.max_pixels)
            tall = max(unit, math.floor(height / shrink / unit) * unit)
            wide = max(unit, math.floor(width / shrink / unit) * unit)
        elif num_whole * tall * wide < self.min_pixels:
            stretch = math.sqrt(self.min_pixels / num_pixels)
            tall = math.ceil(height * stretch / unit) * unit
            wide = math.ceil(width * stretch / unit) * unit
        return tall, wide


@dataclass(frozen=True, slots=True)
class ClipLimits:
    """Limits of clips.

    Args:
        limits: of each frame, or of all frames of a clip together if `is_shared`.
        group: frames that are encoded as one.
        is_shared: see `limits`.
        max_tokens: None, or a further cap: if `is_shared` on the tokens of a frame, else on
            those of a clip.
    """

    limits: Limits
    group: int
    is_shared: bool
    max_tokens: int | None = None

    def size(self, height: int, width: int, num_frames: int, bounds: Bounds) -> Size:
        """Size of a frame after resizing, in a clip of so many frames like it.

        Pure. Raises BadRequest, MediaRefused.
        """
        num_frames = max(num_frames, self.group)
        if not self.is_shared:
            capped = self._capped_clip(num_frames).narrowed(bounds)
            return capped.size(height, width)
        limits = self._capped_frames(num_frames).narrowed(bounds, num_frames)
        unit = limits.unit
        if height < unit or width < unit:
            scale = max(unit / height, unit / width)
            height, width = int(height * scale), int(width * scale)
        num_whole = round(num_frames / self.group) * self.group
        return limits.size(height, width, num_frames, num_whole)

    def _capped_clip(self, num_frames: int) -> Limits:
        """Limits of a frame that has an even share of the clip's tokens at most."""
        limits = self.limits
        if self.max_tokens is None:
            return limits
        of_clip = int(self.max_tokens * limits.unit**2 * _TOKENS_LEFT)
        share = min(limits.max_pixels, of_clip * self.group // num_frames)
        least = int(limits.min_pixels * _OVER_MINIMUM)
        return replace(limits, max_pixels=max(share, least))

    def _capped_frames(self, num_frames: int) -> Limits:
        """Limits of a clip whose frames have so many tokens at most."""
        limits = self.limits
        if self.max_tokens is None:
            return limits
        of_frame = min(self.max_tokens * limits.unit**2, limits.max_pixels // num_frames)
        least = int(limits.min_pixels * _OVER_MINIMUM)
        return replace(limits, max_pixels=max(of_frame, least) * num_frames)


def _out_of_range(field: str, value: int, allowed: str) -> BadRequest:
    message = f"asks for {field} = {value}, this model can do {allowed}"
    return BadRequest(message, field=field, reason="range")
