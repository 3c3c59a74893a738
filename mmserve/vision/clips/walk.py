"""Wanted frames by PyAV: decoding on, or leaping to a key frame when that is shorter.

entries    |E           |E           |E           |E         decoding may begin here
wanted           w0                      w1  w2
decoded    ======*                   ====*===*               what is between is not read

A leap is believed only if the decoder then gives the very key frame that was aimed at, known by
its timestamp; otherwise the walk gives up (`Astray`) and whoever asked reads from the start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import av
from av.video.frame import VideoFrame

from mmserve.vision.clips.container import decoded, flushed, opened_clip, packets
from mmserve.vision.clips.header import ClipHeader, Numbering

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

__all__ = ["Astray", "NextWanted", "leap", "marked", "num_packets_until", "walk"]

NextWanted = Callable[[int], int | None]

_SPARE_PIXELS = 1 << 20  # a codec's own frame may be larger than what is shown of it
_LEAP_FRAMES = 12  # a leap costs as much as decoding so many small frames (2 ms, 320 x 240)
_THREADED_PIXELS = 500_000  # threads halve the speed of smaller frames, and help larger ones
_MOST_THREADS = 4
_NOWHERE = -_LEAP_FRAMES - 1  # an emptied decoder can only leap
_SPARABLE = frozenset({"h264", "mpeg4", "mpeg2video", "mpeg1video"})
"""Codecs in which a frame that no other refers to says so, and may be left out."""


class Astray(Exception):
    """A frame did not come where it should: reading has to begin at the start."""


def walk(
    content: bytes, clip: ClipHeader, num_packets: int | None = None
) -> Iterator[tuple[int, VideoFrame]]:
    """(number, frame) of every frame that decodes, in the decoder's order. Raises MediaRefused.

    With `num_packets`, of what decodes from so many packets, and nothing behind them.
    """
    numbers = clip.numbers()
    with opened_clip(content, _limit(clip)) as (container, stream):
        _set_threads(stream, clip)
        source = marked(packets(container, stream), clip.numbering)
        if num_packets is not None:
            source = (packet for packet, _ in zip(source, range(num_packets), strict=False))
        batches = chain(map(decoded, source), map(flushed, (stream,)))
        for place, frame in enumerate(chain.from_iterable(batches)):
            mark = place if clip.numbering == "frames" else frame.pts
            number = None if mark is None else numbers.get(mark)
            if number is not None:
                yield number, frame


def marked(
    source: Iterator[Packet[VideoStream]], numbering: Numbering
) -> Iterator[Packet[VideoStream]]:
    """The same packets; if they are numbered by place, that is their timestamp."""
    if numbering != "packets":
        yield from source
        return
    place = 0
    for packet in source:
        packet.pts = None if packet.is_discard else place
        place += not packet.is_discard
        yield packet


def leap(
    content: bytes, clip: ClipHeader, next_wanted: NextWanted
) -> Iterator[tuple[int, VideoFrame]]:
    """(number, frame) of the wanted frames, rising, decoding as little as can be.

    Raises Astray if a wanted frame does not come, and MediaRefused. Needs frames that are
    numbered by times or packets.
    """
    if next_wanted(0) is None:
        return
    with opened_clip(content, _limit(clip)) as (container, stream):
        _set_threads(stream, clip)
        yield from _Walk(container, stream, clip, next_wanted).frames()


class _Walk:
    """A decoder that stands somewhere in a clip. `aim` is the frame it is on the way to."""

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        clip: ClipHeader,
        next_wanted: NextWanted,
    ) -> None:
        self._container = container
        self._stream = stream
        self._clip = clip
        self._next_wanted = next_wanted
        self._numbers = clip.numbers()
        self._source = marked(packets(container, stream), clip.numbering)
        self._may_spare = clip.codec in _SPARABLE
        self._is_sparing = False
        self._fed = -1
        self._entry: int | None = None
        self._aim = next_wanted(0)

    def frames(self) -> Iterator[tuple[int, VideoFrame]]:
        """Wanted frames, until no more is wanted."""
        while self._aim is not None:
            entry = self._worth_leaping(self._aim)
            if entry is not None:
                self._leap_to(entry)
            yield from self._to_aim(self._aim)

    def _to_aim(self, aim: int) -> Iterator[tuple[int, VideoFrame]]:
        """Frames on the way to `aim`, and `aim`, as far as wanted; the next aim is set."""
        is_last = False
        while not is_last:
            frames, is_last = self._step(aim)
            for frame in frames:
                number = self._numbers.get(frame.pts) if frame.pts is not None else None
                if number is None or not self._has_entered(number, frame):
                    continue
                if number > aim:
                    raise Astray
                if number < aim and self._next_wanted(number) == number:
                    yield number, frame
                if number == aim:
                    yield number, frame
                    self._aim = self._next_wanted(aim + 1)
                    if self._aim is None or self._worth_leaping(self._aim) is not None:
                        return
                    aim = self._aim
        raise Astray

    def _step(self, aim: int) -> tuple[list[VideoFrame], bool]:
        """What the next packet completes, and whether the decoder is empty after it."""
        packet = next(self._source, None)
        if packet is None:
            return flushed(self._stream), True
        number = self._numbers.get(packet.pts) if packet.pts is not None else None
        self._spare(number is not None and number < aim)
        if number is not None:
            self._fed = max(self._fed, number)
        frames = decoded(packet)
        if number == aim and self._ends_with(aim):
            self._fed = _NOWHERE
            return frames + flushed(self._stream), True
        return frames, False

    def _ends_with(self, aim: int) -> bool:
        """Whether nothing is read on behind `aim`, so that the decoder may be emptied."""
        following = self._next_wanted(aim + 1)
        return following is None or self._worth_leaping(following) is not None

    def _spare(self, is_sparing: bool) -> None:  # noqa: FBT001
        """Leave out, or decode, frames that no other needs. Changes: the decoder."""
        if self._may_spare and is_sparing != self._is_sparing:
            self._stream.codec_context.skip_frame = "NONREF" if is_sparing else "DEFAULT"
            self._is_sparing = is_sparing

    def _worth_leaping(self, wanted: int) -> int | None:
        """The entry from which `wanted` is nearer than from here, if there is one."""
        place = bisect_right(self._clip.entries, wanted) - 1
        if place < 0 or self._clip.entries[place] <= self._fed + _LEAP_FRAMES:
            return None
        return self._clip.entries[place]

    def _leap_to(self, entry: int) -> None:
        """Begin to read at the packet of `entry`. Raises Astray if it is not found."""
        tick = (self._clip.first_tick or 0) + self._clip.times.ticks[entry]
        try:
            self._container.seek(tick, stream=self._stream)
        except av.FFmpegError:
            raise Astray from None
        source = packets(self._container, self._stream)
        found = next((p for p in source if p.pts == tick and p.is_keyframe), None)
        if found is None:
            raise Astray
        self._source = chain((found,), source)
        self._fed = self._entry = entry

    def _has_entered(self, number: int, frame: VideoFrame) -> bool:
        """Whether a frame counts: not if shown before the entry. Raises Astray."""
        if self._entry is None:
            return True
        if number < self._entry:
            return False
        if number > self._entry or not frame.key_frame:
            raise Astray
        self._entry = None
        return True


def _limit(clip: ClipHeader) -> int:
    return _SPARE_PIXELS + 4 * clip.width * clip.height


def _set_threads(stream: VideoStream, clip: ClipHeader) -> None:
    codec = stream.codec_context
    if clip.width * clip.height < _THREADED_PIXELS:
        codec.thread_count = 1
        return
    codec.thread_type = "AUTO"
    codec.thread_count = _MOST_THREADS


def num_packets_until(content: bytes, clip: ClipHeader, number: int) -> int:
    """Packets that the digest of frame `number` covers. Cost: reading all packets."""
    numbers = clip.numbers()
    last = 0
    with opened_clip(content, _limit(clip)) as (container, stream):
        for place, packet in enumerate(marked(packets(container, stream), clip.numbering)):
            own = None if packet.pts is None else numbers.get(packet.pts)
            if own is not None and own <= number:
                last = place + 1
    return last
