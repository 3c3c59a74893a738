"""The port that a family's processor implements: sizes to layouts, pixels to inputs.

sizes, times --picture() clip()--> ItemPlan(layout, num_patches, recipe)   from headers alone
pixels, recipe --inputs()--> what the family's encoder takes               on demand
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmserve.core import BadRequest, MediaLayout, MediaStyle

__all__ = [
    "Bounds",
    "FrameFacts",
    "Inputs",
    "ItemPlan",
    "Processor",
    "Recipe",
    "check_fixed_size",
]

Inputs = dict[str, NDArray[Any]]
"""What an encoder takes for one item, by name; arrays are read-only once handed over."""

Recipe = tuple[str | int, ...]
"""What is done to an item's pixels, in words of its family; part of the item's identity."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Pixels that a request wants a picture to be scaled to at most and at least."""

    max_pixels: int | None = None
    min_pixels: int | None = None


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """One sampled frame: width and height in pixels, upright, and its exact time in seconds.

    `duration` is its clip's length in seconds; None for frames that came one by one.
    """

    width: int
    height: int
    time: Fraction
    duration: Fraction | None = None


@dataclass(frozen=True, slots=True)
class ItemPlan:
    """One item to encode, known from headers.

    Args:
        layout: how it stands in the prompt.
        num_patches: what encoding it costs.
        recipe: what is done to the pixels.
        frames: places of the frames it shows among those sampled, in order; none for an item
            that looks the same in every prompt (a separator, say).
    """

    layout: MediaLayout
    num_patches: int
    recipe: Recipe = ()
    frames: tuple[int, ...] = (0,)


class Processor(Protocol):
    """A family's way with pictures and clips. Immutable; used from several threads at once."""

    @property
    def style(self) -> MediaStyle:
        """How the family writes media into prompts."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """16 bytes over every setting that a result depends on."""
        ...

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """A picture of this size, upright. Pure. Raises BadRequest for impossible bounds."""
        ...

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """The items of a clip with these frames, in order. Pure. Raises as `picture`.

        A frame whose plan does not depend on its neighbours is encoded once for all windows
        that show it.
        """
        ...

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """The encoder's inputs for one item.

        Args:
            frames: uint8 [H, W, 3] each, RGB, upright, as `ItemPlan.frames` lists them.
            recipe: of the item's plan.

        Pure.
        """
        ...


def check_fixed_size(width: int, height: int, bounds: Bounds) -> None:
    """Raise BadRequest if a family that sees every picture at this size breaks `bounds`."""
    num_pixels = width * height
    for field, bound, holds in (
        ("max_pixels", bounds.max_pixels, num_pixels <= (bounds.max_pixels or num_pixels)),
        ("min_pixels", bounds.min_pixels, num_pixels >= (bounds.min_pixels or 0)),
    ):
        if not holds:
            raise BadRequest(
                f"asks for {field} = {bound}, but this model always sees "
                f"{width} x {height} = {num_pixels} pixels",
                field=field,
                reason="range",
            )
