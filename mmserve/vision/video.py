"""The header of a clip: exact times, size and turn, decoding no more than its first frame.

Times are the container's own ticks, counted from the first frame shown. A stream without
timestamps (raw H.264) is timed by its frame rate, 25 a second if it has none.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from mmserve.core import MediaConfig
from mmserve.vision.clips.chain import digests_shown
from mmserve.vision.clips.container import no_video, opened_clip
from mmserve.vision.clips.decoders import choose_decoder
from mmserve.vision.clips.header import ClipHeader, Numbering
from mmserve.vision.clips.packets import is_cut
from mmserve.vision.clips.scan import Scan, scan
from mmserve.vision.clips.turning import display_turn
from mmserve.vision.clips.walk import walk
from mmserve.vision.probe import most_pixels
from mmserve.vision.refusal import refused
from mmserve.vision.sampling import FrameTimes

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["probe_clip"]

_LOG = logging.getLogger(__name__)
_DEFAULT_RATE = Fraction(25)
_MICROSECONDS = 1_000_000
_CLEAN_STARTS = frozenset(
    {"h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mpeg1video", "mjpeg"}
)
"""Codecs in which a key frame makes the decoder forget all before it. Not GIF and APNG, whose
frames are drawn over each other whatever their packets are marked as."""
_ONLY_IN_ORDER = frozenset({"avi"})
"""Containers that know when packets are decoded, not when frames are shown."""


def probe_clip(content: bytes, config: MediaConfig) -> ClipHeader:
    """Header of a clip: exact times from its packets, size and turn from its first frame.

    A clip whose packets are sound is not decoded further. If one is damaged, or the first frame
    does not decode, all of it is decoded once, so that only frames that can be had are counted.

    Raises:
        MediaRefused: `undecodable` (no decodable video stream), `unsupported` (no decoder),
            `too_large` (pixels, frames, seconds).
    """
    with opened_clip(content, most_pixels(config)) as (container, stream):
        found, frame = scan(container, stream, config)
        numbering = _numbering(container, stream, found)
        times, first_tick = _times(stream, found)
        num_frames = len(times.ticks) + _num_missing(container, stream, found, content, times)
        codec, format_name = stream.codec_context.codec.canonical_name, container.format.name
    if times.duration > Fraction(config.max_duration_s):
        seconds, limit_s = float(times.duration), config.max_duration_s
        message = f"lasts {seconds:g} s, the limit is {limit_s:g} s"
        raise refused("too_large", message, limit_s=limit_s)
    turn = display_turn(frame)
    width, height = (frame.height, frame.width) if "t" in turn else (frame.width, frame.height)
    clip = ClipHeader(
        codec=codec,
        width=width,
        height=height,
        turn=turn,
        times=times,
        first_tick=first_tick,
        num_frames=num_frames,
        numbering=numbering,
        container=format_name,
        layout=frame.format.name,
        key_frames=_key_frames(found, numbering),
    )
    clip = _readable(content, clip) if _is_damaged(found, frame, clip) else _sound(found, clip)
    clip = replace(clip, decoder=choose_decoder(content, clip, config.clip_decoder))
    if clip.num_unreadable:
        _LOG.warning("%d of %d frames are unreadable", clip.num_unreadable, clip.num_frames)
    return clip


def _numbering(container: InputContainer, stream: VideoStream, found: Scan) -> Numbering:
    is_timed = None not in found.ticks and bool(stream.time_base)
    is_reordered = bool(stream.codec_context.has_b_frames)
    if is_timed and not (is_reordered and container.format.name in _ONLY_IN_ORDER):
        return "times"
    return "frames" if is_reordered else "packets"


def _marks(found: Scan, numbering: Numbering) -> list[int]:
    """What tells frames apart, packet by packet: their timestamps, or their places."""
    if numbering == "times":
        return [tick for tick in found.ticks if tick is not None]
    return list(range(len(found.ticks)))


def _times(stream: VideoStream, found: Scan) -> tuple[FrameTimes, int | None]:
    """When the frames are shown, and the container's timestamp of the first of them."""
    rate = stream.average_rate or stream.guessed_rate or _DEFAULT_RATE
    tick_s, count = stream.time_base, len(found.ticks)
    known = sorted({tick for tick in found.ticks if tick is not None})
    if None in found.ticks or not tick_s:
        return FrameTimes(tuple(range(count)), 1 / rate, count), None
    pairs = zip(found.ticks, found.lengths, strict=True)
    last = next(length for tick, length in pairs if tick == known[-1])
    gaps = len(known) - 1
    usual = (known[-1] - known[0]) // gaps if gaps else int(1 / (rate * tick_s))
    end = known[-1] - known[0] + max(last or usual, 1)
    return FrameTimes(tuple(tick - known[0] for tick in known), tick_s, end), known[0]


def _key_frames(found: Scan, numbering: Numbering) -> tuple[int, ...]:
    """Numbers of frames that stand alone; of a reordered stream without times, the first."""
    if numbering == "frames":
        return (0,)
    marks = _marks(found, numbering)
    keys = {mark for mark, is_key in zip(marks, found.are_keys, strict=True) if is_key}
    return tuple(number for number, mark in enumerate(sorted(set(marks))) if mark in keys)


def _is_damaged(found: Scan, frame: VideoFrame, clip: ClipHeader) -> bool:
    """Whether some frame may not decode: a packet looks so, or frame 0 did not come first."""
    is_late = clip.numbering == "times" and frame.pts != clip.first_tick
    return found.is_damaged or is_late


def _sound(found: Scan, clip: ClipHeader) -> ClipHeader:
    """The header with where to enter, and frames' own digests.

    The whole file's digest stands for frames that may be in two packets, as fields, and for
    those of reordered streams without times, since nobody knows which packet they are in.
    """
    can_enter = clip.numbering == "times" and clip.codec in _CLEAN_STARTS
    entries = clip.key_frames if can_enter else ()
    if clip.numbering == "frames" or found.may_be_fields:
        return replace(clip, entries=entries)
    digests = digests_shown(_marks(found, clip.numbering), found.links)
    return replace(clip, entries=entries, frame_digests=digests)


def _num_missing(
    container: InputContainer,
    stream: VideoStream,
    found: Scan,
    content: bytes,
    times: FrameTimes,
) -> int:
    """Frames that the container announces and does not hold, because its end is cut off.

    An MP4 that is all there may announce more: those that its edit list hides.
    """
    num_held = len(found.ticks)
    if container.format.name.startswith("mov") and not is_cut(content):
        return 0
    if stream.frames:
        return max(stream.frames - found.num_discarded - num_held, 0)
    if not is_cut(content) or not container.duration:
        return 0
    announced = Fraction(container.duration, _MICROSECONDS)
    return max(round(announced * num_held / times.duration) - num_held, 0)


def _readable(content: bytes, clip: ClipHeader) -> ClipHeader:
    """The header reduced to frames that decode. Cost: a full decode."""
    numbers = sorted({number for number, _ in walk(content, clip)})
    if not numbers:
        raise no_video()
    ticks = tuple(clip.times.ticks[number] for number in numbers)
    keys = set(clip.key_frames)
    key_frames = tuple(place for place, number in enumerate(numbers) if number in keys)
    return replace(clip, times=replace(clip.times, ticks=ticks), key_frames=key_frames)
