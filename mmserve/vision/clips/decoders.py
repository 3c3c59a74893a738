"""Which library decodes a clip: judged by its header alone, when the header is made.

            reads right                         left out because it
  av        everything that can be opened
  decord    H.264, 8 bits, MP4, upright,        turns nothing, doubles frames of 10-bit clips,
            first timestamp 0, undamaged,       takes timestamps as they are, gives up on cut
            one key frame                       files; where it seeks it gives wrong frames in
                                                silence, also of plain H.264

`av` was faster or as fast for all of them (docs/decisions/0031-reading-clips.md), so `decord`
is used only where the settings ask for it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.core.config import ClipDecoder
from mmserve.vision.clips.decord_reader import read_with_decord
from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.pixels import rgb
from mmserve.vision.clips.walk import NextWanted, leap

__all__ = ["READERS", "choose_decoder", "has_surely_wanted"]

Reader = Callable[[bytes, ClipHeader, NextWanted], Iterator[tuple[int, NDArray[np.uint8]]]]
"""Gives (number, RGB pixels) of wanted frames, rising; raises Astray if one does not come as
the header says."""


@dataclass(frozen=True, slots=True)
class _Suits:
    """What a clip has to be for a library to read it right; frames are known by their times."""

    codecs: frozenset[str]
    layouts: frozenset[str]
    containers: frozenset[str]
    most_key_frames: int
    magic: tuple[int, bytes]
    """Bytes at a place of the file that keep the library from taking it for another format."""

    def accepts(self, content: bytes, clip: ClipHeader) -> bool:
        """Whether a clip is so. Pure."""
        at, magic = self.magic
        return (
            clip.codec in self.codecs
            and clip.layout in self.layouts
            and clip.container in self.containers
            and content[at : at + len(magic)] == magic
            and clip.numbering == "times"
            and len(clip.key_frames) <= self.most_key_frames
            and not (clip.first_tick or clip.turn or clip.is_whole or clip.num_unreadable)
        )


_DECORD = _Suits(
    codecs=frozenset({"h264"}),
    layouts=frozenset({"yuv420p"}),
    containers=frozenset({"mov,mp4,m4a,3gp,3g2,mj2"}),
    most_key_frames=1,
    magic=(4, b"ftyp"),
)


def choose_decoder(content: bytes, clip: ClipHeader, asked: ClipDecoder) -> ClipDecoder:
    """The library that decodes a clip: `asked` if it reads it right, else av. Pure."""
    is_right = asked == "decord" and _DECORD.accepts(content, clip)
    return asked if is_right and importlib.util.find_spec("decord") is not None else "av"


def has_surely_wanted(clip: ClipHeader) -> bool:
    """Whether wanted frames can be told from others as they come: of a sound stream. Pure."""
    return bool(clip.frame_digests or clip.entries) and clip.numbering != "frames"


def _read_with_av(
    content: bytes, clip: ClipHeader, next_wanted: NextWanted
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    return ((number, rgb(frame, clip)) for number, frame in leap(content, clip, next_wanted))


READERS: dict[ClipDecoder, Reader] = {"av": _read_with_av, "decord": read_with_decord}
