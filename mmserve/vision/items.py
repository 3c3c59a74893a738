"""Identified media: what the rest of the house handles instead of pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mmserve.core import FrameReport, MediaLayout
from mmserve.vision.frames import ClipHeader
from mmserve.vision.header import PictureHeader
from mmserve.vision.processor import Recipe
from mmserve.vision.refusal import MediaKind

__all__ = [
    "ClipFrame",
    "FileBytes",
    "MediaItem",
    "Origin",
    "PictureFile",
    "ResolvedMedia",
    "Source",
]


@dataclass(frozen=True, slots=True, eq=False)
class PictureFile:
    """A picture's file, and `digest` of its content; `read` gives the same bytes each time."""

    read: Callable[[], bytes] = field(repr=False)
    header: PictureHeader
    digest: bytes

    @property
    def content(self) -> bytes:
        """The file's bytes. Cost: the first time, reading base64, if all else was known."""
        return self.read()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class FileBytes:
    """A file's content, held for as long as an item is made of it."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class ClipFrame:
    """Frame `number` of a clip; `digest` stands for the clip's file."""

    file: FileBytes
    clip: ClipHeader = field(repr=False)
    digest: bytes
    number: int

    @property
    def content(self) -> bytes:
        """The file's bytes. Pure."""
        return self.file.content

    @property
    def frame_digest(self) -> bytes:
        """What stands for the frame: its stream as far as it needs it, or its file. Pure."""
        return self.clip.frame_digest(self.number) or self.digest


Source = PictureFile | ClipFrame


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """How to get an item's inputs; private to this room. Keeps files' bytes alive.

    Args:
        sources: pixels it is made of, in order.
        recipe: what the processor does to them.
        index: the media part's place in its request, from 0.
    """

    sources: tuple[Source, ...]
    recipe: Recipe
    index: int

    @property
    def contents(self) -> tuple[bytes, ...]:
        """Files it keeps alive. Pure."""
        return tuple(source.content for source in self.sources)


@dataclass(frozen=True, slots=True, eq=False)
class MediaItem:
    """One picture, frame or group of frames, identified and sized, not decoded.

    Args:
        digest: 16 bytes over content, decode options, recipe, processor, model and salt.
        kind: which sort of part it belongs to.
        layout: how it stands in the prompt.
        num_patches: patches that encoding it takes.
        width: pixels across, upright, before processing.
        height: pixels down, upright, before processing.
        timestamps_s: of its frames, in seconds from the clip's first; none for a picture.
        origin: how to get its pixels.
    """

    digest: bytes
    kind: MediaKind
    layout: MediaLayout
    num_patches: int
    width: int
    height: int
    timestamps_s: tuple[float, ...]
    origin: Origin = field(repr=False)

    @property
    def num_tokens(self) -> int:
        """Features it has when encoded. Pure."""
        return self.layout.num_features

    @property
    def timestamp_s(self) -> float | None:
        """Time of its first frame; None for a picture. Pure."""
        return self.timestamps_s[0] if self.timestamps_s else None


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedMedia:
    """A media part as items in time order; `clip` tells of the frames of a clip."""

    items: tuple[MediaItem, ...]
    clip: FrameReport | None
    fetch_ms: float
    probe_ms: float
