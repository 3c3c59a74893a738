"""Wanted frames of a clip, by the shortest way that surely gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from mmserve.vision.clips.container import no_video
from mmserve.vision.clips.decoders import READERS, has_surely_wanted
from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.pixels import rgb
from mmserve.vision.clips.walk import Astray, num_packets_until, walk

__all__ = ["ClipHeader", "decode_frames"]

_LOG = logging.getLogger(__name__)

_NextWanted = Callable[[int], int | None]
_Frames = Generator[tuple[int, NDArray[np.uint8]], None, None]


def decode_frames(content: bytes, clip: ClipHeader, next_wanted: _NextWanted) -> _Frames:
    """Wanted frames, each once, as (number, uint8 [height, width, 3] RGB).

    `next_wanted(position)` gives the lowest wanted number from `position` on, or None; it is
    asked anew as the pass goes on, so wishes may join while it runs. A wish behind the place
    that the pass has reached is not served: it needs another pass. Frames come in the order
    they are shown, but for those of a stream whose order is broken. Holds two frames at a time.

    A frame that fails to decode is replaced by the one shown before it, with a warning; what
    replaces it depends on nothing that its digest does not cover.

    Raises MediaRefused if no frame decodes. Cost: decoding from the key frame before a wanted
    frame if that is nearer than the frame decoded last, else from that one.
    """
    position = 0

    def next_left(least: int) -> int | None:
        return next_wanted(max(least, position))

    readers = dict.fromkeys((clip.decoder, "av")) if has_surely_wanted(clip) else {}
    for name in readers:
        try:
            for number, pixels in READERS[name](content, clip, next_left):
                position = number + 1
                yield number, pixels
        except Astray:
            continue
        return
    rest = _stand_ins_alike if clip.is_whole else _stand_ins_covered
    yield from rest(content, clip, next_left)


def _stand_ins_alike(content: bytes, clip: ClipHeader, next_wanted: _NextWanted) -> _Frames:
    """Wanted frames of one pass; what is missing is replaced as it is passed."""
    position, previous = 0, None
    for number, frame in walk(content, clip):
        while (wanted := next_wanted(position)) is not None and wanted <= number:
            is_there = wanted == number
            source = frame if is_there or previous is None else previous
            yield wanted, _shown(source, clip, wanted, is_there=is_there)
            position = wanted + 1
        if wanted is None:
            return
        position, previous = max(position, number + 1), frame
    if previous is None:
        raise no_video()
    while (wanted := next_wanted(position)) is not None:
        yield wanted, _shown(previous, clip, wanted, is_there=False)
        position = wanted + 1


def _stand_ins_covered(content: bytes, clip: ClipHeader, next_wanted: _NextWanted) -> _Frames:
    """Wanted frames that come in a pass; those that do not, each from what it covers alone."""
    came: set[int] = set()
    for number, frame in walk(content, clip):
        if number not in came and next_wanted(number) == number:
            yield number, rgb(frame, clip)
        came.add(number)
        if next_wanted(0) is None:
            return
    position = 0
    while (wanted := next_wanted(position)) is not None:
        if wanted not in came:
            yield wanted, _covered(content, clip, wanted)
        position = wanted + 1


def _covered(content: bytes, clip: ClipHeader, wanted: int) -> NDArray[np.uint8]:
    """Frame `wanted`, or the last one before it, of the packets that its digest covers."""
    best: tuple[int, VideoFrame] | None = None
    for number, frame in walk(content, clip, num_packets_until(content, clip, wanted)):
        if number <= wanted and (best is None or number > best[0]):
            best = (number, frame)
    if best is None:
        raise no_video()
    return _shown(best[1], clip, wanted, is_there=best[0] == wanted)


def _shown(
    frame: VideoFrame, clip: ClipHeader, wanted: int, *, is_there: bool
) -> NDArray[np.uint8]:
    if not is_there:
        _LOG.warning("frame %d of a clip is unreadable, the one before stands in", wanted)
    return rgb(frame, clip)
