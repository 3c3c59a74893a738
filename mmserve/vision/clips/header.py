"""What is known of a clip before its frames are decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmserve.core.config import ClipDecoder
from mmserve.vision.sampling import FrameTimes

__all__ = ["ClipHeader", "Numbering"]

Numbering = Literal["times", "packets", "frames"]
_DIGEST_DIGITS = 32


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
        numbering: what tells decoded frames apart: their timestamps, the place of their
            packet among the packets, or, where frames are reordered without timestamps, their
            place in the decoder's output.
        container: name of its container's format.
        layout: name of its pixels' layout.
        decoder: which library decodes its frames (see `decoders`).
        key_frames: numbers of the frames that stand alone, rising.
        entries: numbers of the key frames at which decoding may begin, rising; empty if
            reading must begin at the clip's start.
        frame_digests: 32 hexadecimal digits a frame, over the stream as far as the frame needs
            it, the same in a file that grew; empty if only the whole file's digest will do.
    """

    codec: str
    width: int
    height: int
    turn: str
    times: FrameTimes
    first_tick: int | None
    num_frames: int
    numbering: Numbering = "times"
    container: str = ""
    layout: str = ""
    decoder: ClipDecoder = "av"
    key_frames: tuple[int, ...] = field(default=(), repr=False)
    entries: tuple[int, ...] = field(default=(), repr=False)
    frame_digests: str = field(default="", repr=False)

    @property
    def num_unreadable(self) -> int:
        """Frames that the container should hold and the decoder does not give. Pure."""
        return self.num_frames - len(self.times.ticks)

    @property
    def is_whole(self) -> bool:
        """Whether only the whole file's digest tells its frames apart. Pure."""
        return not self.frame_digests

    def frame_digest(self, number: int) -> bytes:
        """16 bytes that stand for frame `number`, or none if `is_whole`. Pure."""
        at = number * _DIGEST_DIGITS
        return bytes.fromhex(self.frame_digests[at : at + _DIGEST_DIGITS])

    def numbers(self) -> dict[int, int]:
        """Number of each frame by the mark that a decoded frame bears. Pure."""
        if self.numbering == "frames":
            return {number: number for number in range(len(self.times.ticks))}
        first = self.first_tick or 0
        return {first + tick: number for number, tick in enumerate(self.times.ticks)}
