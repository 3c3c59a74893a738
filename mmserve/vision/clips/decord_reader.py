"""Wanted frames by decord, an optional second library.

It is asked only for what it reads right (see `decoders`), and believed only where the times it
tells are the header's. Its errors carry paths of its sources and are never passed on.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.walk import Astray, NextWanted

__all__ = ["read_with_decord"]


def read_with_decord(
    content: bytes, clip: ClipHeader, next_wanted: NextWanted
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(number, RGB pixels) of the wanted frames, rising.

    Raises Astray where decord fails or its times are not the header's.
    """
    import decord  # noqa: PLC0415  an optional package

    decord.logging.set_level(decord.logging.QUIET)
    position = 0
    try:
        reader = decord.VideoReader(io.BytesIO(content), ctx=decord.cpu(0), num_threads=1)
        if len(reader) != len(clip.times.ticks):
            raise Astray
        while (wanted := next_wanted(position)) is not None:
            if not _is_at(float(reader.get_frame_timestamp(wanted)[0]), clip, wanted):
                raise Astray
            pixels = reader[wanted].asnumpy()
            if pixels.shape != (clip.height, clip.width, 3):
                raise Astray
            yield wanted, pixels
            position = wanted + 1
    except (decord.DECORDError, RuntimeError, IndexError):
        raise Astray from None


def _is_at(seconds: float, clip: ClipHeader, number: int) -> bool:
    tick_s = float(clip.times.tick_s)
    return abs(seconds - float(clip.times.seconds(number))) <= max(tick_s / 2, 1e-3)
