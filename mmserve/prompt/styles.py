"""How a family writes pictures and clips into a prompt, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["MediaItem", "PictureStyle", "Slot", "VideoStyle"]


class MediaItem(Protocol):
    """What a prompt needs to know of one picture or one frame.

    An item may also have `is_atomic: bool` (two-way attention inside); it is False if missing.
    """

    @property
    def digest(self) -> bytes:
        """16-byte identity."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens it takes in the prompt."""
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
class VideoStyle:
    """How a clip stands in a prompt.

    Args:
        frame_format: plain text before each frame's picture; may use `{number}`, from 1, and
            `{timestamp_s}`. Not used by models with clips of their own.
        token_id: placeholder token of a model with clips of its own, or None.
    """

    frame_format: str = "frame {number}:"
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the media part of this index, counted over the whole prompt, stands.

    `is_wrapped` says that the chat template already wrote what belongs around it.
    """

    index: int
    is_wrapped: bool = False
