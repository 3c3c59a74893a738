"""Reading containers with PyAV, so that hostile or cut bytes end in a refusal or simply end.

Only formats that hold their own pictures are opened, and no protocol: a playlist cannot make
the server read other files or addresses.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame

from mmserve.core import MediaRefused
from mmserve.vision.header import sniff_picture
from mmserve.vision.refusal import refused

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

__all__ = ["decoded", "flushed", "no_video", "opened_clip", "packets"]

_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,apng,mpegts,mpeg,mpegvideo,ogg,flv,asf,"
    "h264,hevc,av1,obu,ivf,m4v,mjpeg,dv,mxf"
)
# the sample description of an MP4 track, or the codec of a Matroska track
_CODEC = re.compile(rb"stsd.{12}([\w ]{4})|(V_[A-Z0-9/_]+)", re.DOTALL)
_SOUND = frozenset({"mp4a", "ac-3", "Opus", "fLaC", "alac", "text", "tx3g"})
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": ""}


@contextmanager
def opened_clip(
    content: bytes, limit_pixels: int
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container and its first video stream that is not cover art; closed on leaving.

    A stream of one frame beside longer ones, as sequences of AVIF have it, is cover art.
    Raises MediaRefused: `undecodable` without such a stream, `unsupported` without a decoder.
    """
    if sniff_picture(content) == "WebP":
        message = "is an animated WebP, which is not read as a clip"
        raise refused("unsupported", message, hint="send it as GIF or MP4", format="WebP")
    try:
        container = av.open(io.BytesIO(content), "r", options=_OPTIONS)
    except (av.FFmpegError, ValueError):
        raise no_video() from None
    with container:
        streams = [s for s in container.streams.video if not _is_cover(s)]
        if not streams:
            raise no_video()
        stream = next((s for s in streams if s.frames != 1), streams[0])
        if cast("VideoCodecContext | None", stream.codec_context) is None:
            codec = _codec_name(content)
            message = f"has a video stream in a codec without a decoder: {codec}"
            raise refused("unsupported", message, codec=codec)
        stream.codec_context.options = {"max_pixels": str(limit_pixels)}
        yield container, stream


def packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets with content, as far as the container can be read; a cut file simply ends.

    So does one in which a stream turns up that was not announced: PyAV raises IndexError.
    """
    source = container.demux(stream)
    while True:
        try:
            packet = next(source)
        except (StopIteration, av.FFmpegError, IndexError):
            return
        if packet.size:
            yield packet


def decoded(packet: Packet[VideoStream]) -> list[VideoFrame]:
    """Good frames that this packet completes; none if the decoder rejects it."""
    try:
        return [frame for frame in packet.decode() if not frame.is_corrupt]
    except av.FFmpegError:
        return []


def flushed(stream: VideoStream) -> list[VideoFrame]:
    """Good frames that the decoder still holds after the last packet."""
    try:
        return [frame for frame in stream.codec_context.decode(None) if not frame.is_corrupt]
    except av.FFmpegError:
        return []


def no_video() -> MediaRefused:
    """The refusal of anything that holds no moving pictures. Pure."""
    return refused("undecodable", "has no decodable video stream")


def _codec_name(content: bytes) -> str:
    """What the container itself calls its video codec, as far as that can be told."""
    names = [(found[1] or found[2]).decode() for found in _CODEC.finditer(content)]
    return next((name for name in names if name not in _SOUND), "unknown")


def _is_cover(stream: VideoStream) -> bool:
    return bool(stream.disposition & Disposition.attached_pic)
