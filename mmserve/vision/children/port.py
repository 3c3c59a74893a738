"""What decoders of files are to the rest of the room, in children or not."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.header import PictureHeader
from mmserve.vision.wishes import Wishes

__all__ = ["Decoder", "Frames"]

Frames = Generator[tuple[int, NDArray[np.uint8]], None, None]
"""(number, uint8 [height, width, 3] RGB) of frames of a clip."""


class Decoder(Protocol):
    """What touches the content of files beyond the walks of `walks`. Safe from any thread.

    All raise MediaRefused for files that are bad or need more than they may take.
    """

    def warm(self) -> None:
        """Something is going to be decoded. Returns at once."""

    def header(self, content: bytes, name: str) -> PictureHeader:
        """Header of a picture in a format that needs a library; sides as stored."""

    def picture(self, content: bytes, header: PictureHeader) -> NDArray[np.uint8]:
        """Pixels of a picture: uint8 [height, width, 3], RGB, upright."""

    def clip(self, content: bytes) -> ClipHeader:
        """Header of a clip."""

    def frames(self, content: bytes, clip: ClipHeader, wishes: Wishes) -> Frames:
        """Wanted frames in one pass, as `decode_frames`; wishes may join while it runs.

        Whoever gets a frame removes its number from `wishes`.
        """
