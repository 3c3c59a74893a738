"""Whether a picture of a stream may come as two fields in two packets.

Source: ITU-T H.264 (2021), 7.3.2.1.1; H.262 (2012), 6.2.2.3.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

__all__ = ["FieldWatch"]

_LONGEST = 64  # what is asked for stands in the first bytes of a parameter set
_HEADS = {
    "h264": re.compile(rb"\x00\x00\x01(?=[\x07\x27\x47\x67])"),
    "mpeg2video": re.compile(rb"\x00\x00\x01\xb5(?=[\x10-\x1f])"),
}
_FINE_PROFILES = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})
_UNIT_TYPE, _PARAMETER_SET = 31, 7


class FieldWatch:
    """Looks at the parameter sets of a stream. `is_possible` tells what they allow so far.

    H.264 and MPEG-2 are looked at, VC-1 always may; other codecs keep a picture in a packet.
    """

    def __init__(self, codec: VideoCodecContext) -> None:
        name = codec.codec.canonical_name
        extra = codec.extradata or b""
        self._heads = _HEADS.get(name)
        self._is_h264 = name == "h264"
        self.is_possible = name in ("vc1", "wmv3")
        if self._is_h264 and extra[:1] == b"\1":
            self._heads = None
            self._see_configuration(extra)
        self.look(extra)

    def look(self, payload: bytes | memoryview) -> None:
        """Take note of parameter sets behind start codes. Changes: `is_possible`."""
        if self._heads is None or self.is_possible:
            return
        for found in self._heads.finditer(payload):
            unit = bytes(payload[found.end() : found.end() + _LONGEST])
            self.is_possible |= (
                _has_fields(unit) if self._is_h264 else not unit[1:2] or not unit[1] & 8
            )

    def look_at_unit(self, unit: memoryview) -> None:
        """Take note of a unit of H.264 without its length. Changes: `is_possible`."""
        if self._is_h264 and unit[0] & _UNIT_TYPE == _PARAMETER_SET and not self.is_possible:
            self.is_possible = _has_fields(bytes(unit[:_LONGEST]))

    def _see_configuration(self, extra: bytes) -> None:
        """The parameter sets of the record that MP4 and Matroska keep."""
        at = 6
        for _ in range(extra[5] & 31 if len(extra) > at else 0):
            unit = memoryview(extra)[at + 2 :]
            if len(unit):
                self.look_at_unit(unit)
            at += 2 + int.from_bytes(extra[at : at + 2], "big")


class _Bits:
    """Reads a parameter set bit by bit; IndexError at its end."""

    def __init__(self, content: bytes) -> None:
        self._bits = "".join(f"{byte:08b}" for byte in content)
        self._at = 0

    def flag(self) -> bool:
        """The next bit."""
        self._at += 1
        return self._bits[self._at - 1] == "1"

    def number(self) -> int:
        """The next unsigned Exp-Golomb number."""
        length = 0
        while not self.flag():
            length += 1
        value = 1
        for _ in range(length):
            value = 2 * value + self.flag()
        return value - 1


def _has_fields(unit: bytes) -> bool:
    """Whether a parameter set of H.264 allows field pictures; if in doubt, yes. Pure."""
    plain = unit.replace(b"\0\0\3", b"\0\0")
    bits = _Bits(plain[4:])
    try:
        bits.number()  # its id
        if plain[1] in _FINE_PROFILES:
            if bits.number() == 3:  # colour in full resolution
                bits.flag()
            bits.number()  # depth of brightness
            bits.number()  # depth of colour
            bits.flag()
            if bits.flag():  # scaling matrices, which are not read here
                return True
        bits.number()  # of frames
        order = bits.number()
        if order == 1:
            return True
        if order == 0:
            bits.number()
        bits.number()  # of references
        bits.flag()
        bits.number()  # width
        bits.number()  # height
        return not bits.flag()
    except IndexError:
        return True
