"""Which decoder reads a clip: the first in the table that suits it, judged by its header."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.clips.decord_reader import read_with_decord, suits_decord
from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.pixels import rgb
from mmserve.vision.clips.walk import NextWanted, leap

__all__ = ["DECODERS", "Decoder"]


@dataclass(frozen=True, slots=True)
class Decoder:
    """A way to read wanted frames.

    Args:
        name: what it is called.
        suits: whether it reads a clip right, from the bytes and the header.
        read: (number, RGB pixels) of the wanted frames, rising; raises Astray if one does not
            come as the header says.
    """

    name: str
    suits: Callable[[bytes, ClipHeader], bool]
    read: Callable[[bytes, ClipHeader, NextWanted], Iterator[tuple[int, NDArray[np.uint8]]]]


def _suits_leaping(_: bytes, clip: ClipHeader) -> bool:
    """A sound stream whose frames are known by their marks."""
    is_sound = bool(clip.frame_digests or clip.entries)
    return is_sound and clip.numbering != "frames"


def _read_leaping(
    content: bytes, clip: ClipHeader, next_wanted: NextWanted
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    return ((number, rgb(frame, clip)) for number, frame in leap(content, clip, next_wanted))


DECODERS: tuple[Decoder, ...] = (
    Decoder("decord", suits_decord, read_with_decord),
    Decoder("av", _suits_leaping, _read_leaping),
)
