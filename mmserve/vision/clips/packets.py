"""A look at packets, far cheaper than decoding them, that sees zeroed and cut payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmserve.vision.clips.fields import FieldWatch

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

__all__ = ["PacketCheck", "is_cut"]

_LOOKED_AT_BYTES = 64
_PLACE_OF_LENGTH_SIZE = {"h264": 4, "hevc": 21}
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_ISO_STARTS = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")


class PacketCheck:
    """Judges packets of a stream; units of H.264 and HEVC in MP4 and Matroska are walked."""

    def __init__(self, codec: VideoCodecContext) -> None:
        extra = codec.extradata or b""
        place = _PLACE_OF_LENGTH_SIZE.get(codec.codec.canonical_name)
        has_lengths = place is not None and len(extra) > place and extra[0] == 1
        self._length_bytes = (extra[place] & 3) + 1 if place is not None and has_lengths else 0
        self._fields = FieldWatch(codec)

    @property
    def may_be_fields(self) -> bool:
        """Whether a picture of the packets seen may be in two of them. Pure."""
        return self._fields.is_possible

    def is_sound(self, packet: Packet[VideoStream]) -> bool:
        """Whether the packet may well decode. Changes: `may_be_fields`."""
        view = memoryview(packet)
        self._fields.look(view)
        if packet.is_corrupt or not any(view[:_LOOKED_AT_BYTES]):
            return False
        return not self._length_bytes or self._fills(view)

    def _fills(self, view: memoryview) -> bool:
        """Whether the length-prefixed units fill the packet exactly, none of them empty."""
        at = 0
        while at + self._length_bytes < len(view):
            length = int.from_bytes(view[at : at + self._length_bytes], "big")
            if not length:
                return False
            self._fields.look_at_unit(view[at + self._length_bytes :])
            at += self._length_bytes + length
        return at == len(view)


def is_cut(content: bytes) -> bool:
    """Whether an MP4, Matroska, WebM or AVI file announces more bytes than there are. Pure."""
    if content.startswith(b"RIFF"):
        return 8 + int.from_bytes(content[4:8], "little") > len(content)
    if content[4:8] in _ISO_STARTS:
        return _last_box_end(content) > len(content)
    at = content.find(_SEGMENT, 0, 4096) + len(_SEGMENT)
    if not content.startswith(_EBML) or at < len(_SEGMENT) or at >= len(content):
        return False
    num_bytes = 9 - content[at].bit_length()  # leading zero bits say how long the number is
    size = int.from_bytes(content[at : at + num_bytes], "big") & ((1 << 7 * num_bytes) - 1)
    is_open = size == (1 << 7 * num_bytes) - 1
    return not is_open and at + num_bytes + size > len(content)


def _last_box_end(content: bytes) -> int:
    """Where the last of an MP4's outermost boxes says that it ends. Pure."""
    at, size = 0, 8
    while size >= 8 and at + 8 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        if size == 1:  # the length follows the name, in eight bytes
            size = int.from_bytes(content[at + 8 : at + 16], "big")
        at += size
    return at
