"""Wanted frames of a clip, in one pass from its start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from mmserve.vision.container import decoded, flushed, no_video, opened_clip, packets
from mmserve.vision.sampling import FrameTimes
from mmserve.vision.turning import turned

__all__ = ["ClipHeader", "decode_frames", "walk_frames"]

_LOG = logging.getLogger(__name__)
_SPARE_PIXELS = 1 << 20  # a codec's own frame may be larger than what is shown of it

_Frame = TypeVar("_Frame")


@dataclass(frozen=True, slots=True)
class ClipHeader:
    """Facts of a clip; its readable frames are numbered from 0 in the order they are shown.

    Args:
        codec: name of its codec.
        width: pixels across, after turning.
        height: pixels down, after turning.
        turn: how decoded pixels are turned to be upright (see `turning`).
        times: when each readable frame is shown.
        first_tick: the container's timestamp of time 0, or None if it gives no timestamps.
        num_frames: frames that the container should hold, readable or not.
    """

    codec: str
    width: int
    height: int
    turn: str
    times: FrameTimes
    first_tick: int | None
    num_frames: int

    @property
    def num_unreadable(self) -> int:
        """Frames that the container should hold and the decoder does not give."""
        return self.num_frames - len(self.times.ticks)


def decode_frames(
    content: bytes, clip: ClipHeader, next_wanted: Callable[[int], int | None]
) -> Generator[tuple[int, NDArray[np.uint8]], None, None]:
    """Wanted frames in the order they are shown, as (number, uint8 [height, width, 3] RGB).

    `next_wanted(position)` gives the lowest wanted number from `position` on, or None; it is
    asked anew for every frame, so wishes may join while the pass runs. Holds two frames at a
    time. A frame that fails to decode is replaced by the nearest one that did, with a warning.

    Raises MediaRefused if no frame decodes. Cost: decoding up to the last wanted frame.
    """
    position, previous = 0, None
    for number, frame in walk_frames(content, clip):
        while (wanted := next_wanted(position)) is not None and wanted <= number:
            source = _nearest(clip.times, wanted, previous, (number, frame))
            yield wanted, _to_rgb(source, clip)
            position = wanted + 1
        if wanted is None:
            return
        previous = (number, frame)
    if previous is None:
        raise no_video()
    while (wanted := next_wanted(position)) is not None:
        yield wanted, _to_rgb(_nearest(clip.times, wanted, previous, previous), clip)
        position = wanted + 1


def walk_frames(content: bytes, clip: ClipHeader) -> Iterator[tuple[int, VideoFrame]]:
    """(number, frame) of every frame that decodes, in the order shown. Raises MediaRefused.

    Without timestamps, frames are numbered in the order in which the decoder gives them.
    """
    first = clip.first_tick or 0
    numbers = {first + tick: number for number, tick in enumerate(clip.times.ticks)}
    limit = _SPARE_PIXELS + 4 * clip.width * clip.height
    with opened_clip(content, limit) as (container, stream):
        stream.thread_type = "AUTO"
        batches = (decoded(packet) for packet in packets(container, stream))
        place = -1
        for batch in _chain(batches, lambda: flushed(stream)):
            for frame in batch:
                place += 1
                mark = place if clip.first_tick is None else frame.pts
                number = None if mark is None else numbers.get(mark)
                if number is not None:
                    yield number, frame


def _chain(
    batches: Iterator[list[VideoFrame]], last: Callable[[], list[VideoFrame]]
) -> Iterator[list[VideoFrame]]:
    yield from batches
    yield last()


def _nearest(
    times: FrameTimes, wanted: int, before: tuple[int, _Frame] | None, after: tuple[int, _Frame]
) -> _Frame:
    """The frame `wanted` if `after` is it, else the nearer in time of the two around it."""
    if after[0] == wanted:
        return after[1]
    _LOG.warning("frame %d of a clip is unreadable, its nearest neighbour stands in", wanted)
    if before is None:
        return after[1]
    to_before = times.ticks[wanted] - times.ticks[before[0]]
    to_after = abs(times.ticks[after[0]] - times.ticks[wanted])
    return before[1] if to_before <= to_after else after[1]


def _to_rgb(frame: VideoFrame, clip: ClipHeader) -> NDArray[np.uint8]:
    width, height = (clip.height, clip.width) if "t" in clip.turn else (clip.width, clip.height)
    has_alpha = any(part.is_alpha for part in frame.format.components)
    layout = "rgba" if has_alpha else "rgb24"
    shown = frame.to_ndarray(format=layout, width=width, height=height)
    pixels = shown.astype(np.uint8, copy=False)
    if has_alpha:
        alpha = pixels[..., 3:].astype(np.uint16)
        pixels = ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return turned(pixels, clip.turn)
