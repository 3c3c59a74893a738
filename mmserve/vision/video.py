"""The header of a clip: exact times, size and turn, decoding no more than its first frame.

Times are the container's own ticks, counted from the first frame shown. A stream without
timestamps (raw H.264, MJPEG) is timed by its frame rate, 25 a second if it has none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from av.container import InputContainer
from av.video.frame import VideoFrame

from mmserve.core import MediaConfig
from mmserve.vision.container import decoded, flushed, no_video, opened_clip, packets
from mmserve.vision.frames import ClipHeader, walk_frames
from mmserve.vision.packets import PacketCheck, is_cut
from mmserve.vision.probe import check_size, most_pixels
from mmserve.vision.refusal import refused
from mmserve.vision.sampling import FrameTimes
from mmserve.vision.turning import display_turn

if TYPE_CHECKING:
    from av.video.stream import VideoStream

__all__ = ["probe_clip"]

_LOG = logging.getLogger(__name__)
_DEFAULT_RATE = Fraction(25)
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Scan:
    """What the packets of a clip say: start and length of each, whether one looks damaged."""

    ticks: tuple[int | None, ...]
    lengths: tuple[int, ...]
    num_discarded: int
    is_damaged: bool
    first_frame: VideoFrame


def probe_clip(content: bytes, config: MediaConfig) -> ClipHeader:
    """Header of a clip: exact times from its packets, size and turn from its first frame.

    A clip whose packets are sound is not decoded further. If one is damaged, all of it is
    decoded once, so that only frames that can be had are counted.

    Raises:
        MediaRefused: `undecodable` (no decodable video stream), `unsupported` (no decoder),
            `too_large` (pixels, frames, seconds).
    """
    with opened_clip(content, most_pixels(config)) as (container, stream):
        codec = stream.codec_context.codec.canonical_name
        scan = _scan(container, stream, config)
        times, first_tick = _times(stream, scan)
        num_frames = len(times.ticks) + _num_missing(container, stream, scan, content, times)
    if times.duration > Fraction(config.max_duration_s):
        seconds, limit_s = float(times.duration), config.max_duration_s
        message = f"lasts {seconds:g} s, the limit is {limit_s:g} s"
        raise refused("too_large", message, limit_s=limit_s)
    frame = scan.first_frame
    turn = display_turn(frame)
    width, height = (frame.height, frame.width) if "t" in turn else (frame.width, frame.height)
    clip = ClipHeader(codec, width, height, turn, times, first_tick, num_frames)
    if scan.is_damaged:
        clip = _readable(content, clip)
    if clip.num_unreadable:
        _LOG.warning("%d of %d frames are unreadable", clip.num_unreadable, clip.num_frames)
    return clip


def _scan(container: InputContainer, stream: VideoStream, config: MediaConfig) -> _Scan:
    if stream.width and stream.height:
        check_size(stream.width, stream.height, config)
    check = PacketCheck(stream.codec_context)
    ticks: list[int | None] = []
    lengths: list[int] = []
    num_discarded = 0
    is_damaged = False
    first: VideoFrame | None = None
    for packet in packets(container, stream):
        if first is None:
            first = next(iter(decoded(packet)), None)
        if packet.is_discard:
            num_discarded += 1
            continue
        ticks.append(packet.pts)
        lengths.append(packet.duration or 0)
        is_damaged = is_damaged or not check.is_sound(packet)
        if len(ticks) > config.max_decode_frames:
            limit = config.max_decode_frames
            message = f"has more than {limit} frames, the limit"
            raise refused("too_large", message, limit_frames=limit)
    first = first or next(iter(flushed(stream)), None)
    if first is None or not ticks:
        raise no_video()
    check_size(first.width, first.height, config)
    return _Scan(tuple(ticks), tuple(lengths), num_discarded, is_damaged, first)


def _times(stream: VideoStream, scan: _Scan) -> tuple[FrameTimes, int | None]:
    """When the frames are shown, and the container's timestamp of the first of them."""
    rate = stream.average_rate or stream.guessed_rate or _DEFAULT_RATE
    known = sorted({tick for tick in scan.ticks if tick is not None})
    tick_s = stream.time_base
    if None in scan.ticks or not tick_s:
        count = len(scan.ticks)
        return FrameTimes(range(count), 1 / rate, count), None
    pairs = zip(scan.ticks, scan.lengths, strict=True)
    last = next(length for tick, length in pairs if tick == known[-1])
    gaps = len(known) - 1
    usual = (known[-1] - known[0]) // gaps if gaps else int(1 / (rate * tick_s))
    end = known[-1] - known[0] + max(last or usual, 1)
    return FrameTimes(tuple(tick - known[0] for tick in known), tick_s, end), known[0]


def _num_missing(
    container: InputContainer,
    stream: VideoStream,
    scan: _Scan,
    content: bytes,
    times: FrameTimes,
) -> int:
    """Frames that the container announces and does not hold, because its end is cut off."""
    num_held = len(scan.ticks)
    if stream.frames:
        return max(stream.frames - scan.num_discarded - num_held, 0)
    if not is_cut(content) or not container.duration:
        return 0
    announced = Fraction(container.duration, _MICROSECONDS)
    return max(round(announced * num_held / times.duration) - num_held, 0)


def _readable(content: bytes, clip: ClipHeader) -> ClipHeader:
    """The header reduced to frames that decode. Cost: a full decode."""
    numbers = sorted({number for number, _ in walk_frames(content, clip)})
    if not numbers:
        raise no_video()
    ticks = tuple(clip.times.ticks[number] for number in numbers)
    return replace(clip, times=replace(clip.times, ticks=ticks))
