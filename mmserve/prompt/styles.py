"""How media stand in a prompt, as far as it is the prompt's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from mmserve.core import MediaLayout

__all__ = ["MediaItem", "PictureStyle", "Slot"]


class MediaItem(Protocol):
    """What a prompt needs to know of one picture, frame, or group of frames."""

    @property
    def digest(self) -> bytes:
        """16-byte identity."""
        ...

    @property
    def layout(self) -> MediaLayout:
        """How it is written."""
        ...

    @property
    def kind(self) -> Literal["image", "video"]:
        """Whether it is counted as picture or as clip."""
        ...

    @property
    def timestamp_s(self) -> float | None:
        """Time of a frame in its clip, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class PictureStyle:
    """Template text around a picture where no chat template places it (`<|vision_start|>`)."""

    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the media part of this index, counted over the whole prompt, stands.

    `is_wrapped` says that the chat template already wrote what belongs around it.
    """

    index: int
    is_wrapped: bool = False
