"""Wanted frames by decord, an optional second library.

It ignores rotation, doubles frames of 10-bit clips, seeks wrongly in VP8 and VP9, takes a first
timestamp other than 0 for a frame's time, and gives up on cut files; so it is asked only for
what it was seen to read right, and believed only where its times are the header's.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.walk import Astray, NextWanted

__all__ = ["read_with_decord", "suits_decord"]

_MOST_PIXELS = 320 * 240
_MOST_ENTRIES = 1
_CONTAINERS = frozenset({"mov,mp4,m4a,3gp,3g2,mj2"})
_CODECS = frozenset({"h264"})
_LAYOUTS = frozenset({"yuv420p"})
_MAGIC, _MAGIC_AT = b"ftyp", 4


def suits_decord(content: bytes, clip: ClipHeader) -> bool:
    """Whether decord is installed, reads such a clip right, and reads it faster. Pure.

    It is faster in small pictures without a key frame to leap to, by the time that PyAV spends
    on handing each frame to Python. The first bytes keep other formats from its own probing.
    """
    is_right = (
        clip.codec in _CODECS
        and clip.layout in _LAYOUTS
        and clip.container in _CONTAINERS
        and clip.numbering == "times"
        and not (clip.first_tick or clip.turn or clip.is_whole or clip.num_unreadable)
        and content[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC
    )
    is_faster = clip.width * clip.height <= _MOST_PIXELS and len(clip.entries) <= _MOST_ENTRIES
    return is_right and is_faster and importlib.util.find_spec("decord") is not None


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
