"""Identified media: what the rest of the house handles instead of pictures."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.core import FrameReport
from mmserve.vision.frames import ClipHeader
from mmserve.vision.header import PictureHeader
from mmserve.vision.refusal import MediaKind

__all__ = ["FrameOrigin", "MediaItem", "PictureOrigin", "ResolvedMedia"]


@dataclass(frozen=True, slots=True, eq=False)
class PictureOrigin:
    """Where a picture's pixels come from; `index` is the media part's place in its request."""

    content: bytes = field(repr=False)
    header: PictureHeader
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class FrameOrigin:
    """Where the pixels of frame `number` come from; `clip_digest` stands for its file."""

    content: bytes = field(repr=False)
    clip: ClipHeader = field(repr=False)
    clip_digest: bytes
    number: int
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class MediaItem:
    """One picture or one frame, identified and sized, not decoded.

    Args:
        digest: 16 bytes over content, decode options, processor, model and salt.
        kind: which sort of part it belongs to.
        num_tokens: tokens of the prompt that stand for it.
        num_patches: patches that encoding it takes.
        width: pixels across, upright, before processing.
        height: pixels down, upright, before processing.
        timestamp_s: seconds from the clip's first frame; None for a picture.
        origin: how to get its pixels; private to this room. Keeps the file's bytes alive.
    """

    digest: bytes
    kind: MediaKind
    num_tokens: int
    num_patches: int
    width: int
    height: int
    timestamp_s: float | None
    origin: PictureOrigin | FrameOrigin = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedMedia:
    """A media part as items in time order; `clip` tells of the frames of a clip."""

    items: tuple[MediaItem, ...]
    clip: FrameReport | None
    fetch_ms: float
    probe_ms: float
