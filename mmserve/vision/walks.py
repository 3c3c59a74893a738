"""Walks over picture files: size, orientation, and whether the file is all there.

Each walk reads structure only (markers, chunks, blocks), raises MediaRefused if a piece is
missing or damaged, and costs far less than decoding: PNG is checked by its checksums at about
1 GB/s, the others by their lengths.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator

from mmserve.core import MediaRefused
from mmserve.vision.exif import exif_orientation
from mmserve.vision.header import PictureHeader
from mmserve.vision.refusal import refused

__all__ = ["WALKS", "png_chunks"]

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
_NETPBM_NUMBER = re.compile(rb"(?:\s|#[^\r\n]*+[\r\n])*+(\d{1,10})\s")


def walk_jpeg(content: bytes) -> PictureHeader:
    """JPEG: size from the frame header, orientation from EXIF, an end marker after the scan."""
    width = height = 0
    orientation, at = 1, 2
    while True:
        while content[at : at + 2] == b"\xff\xff":
            at += 1
        if content[at : at + 1] != b"\xff" or at + 4 > len(content):
            raise _cut_short("JPEG")
        marker = content[at + 1]
        if marker in _JPEG_BARE:
            at += 2
            continue
        length = int.from_bytes(content[at + 2 : at + 4], "big")
        body = content[at + 4 : at + 2 + length]
        if len(body) != length - 2 or marker == _EOI:
            raise _cut_short("JPEG")
        if marker in _JPEG_SIZES and length >= 8:
            height, width = struct.unpack_from(">HH", body, 1)
        if marker == _APP1 and body.startswith(b"Exif\0\0"):
            orientation = exif_orientation(body[6:])
        if marker == _SOS:
            break
        at += 2 + length
    if content.rfind(b"\xff\xd9", at) < 0:
        raise _cut_short("JPEG")
    return PictureHeader("JPEG", width, height, orientation)


def png_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end) of each chunk up to and with IEND; start is where its length stands.

    Raises MediaRefused at the first chunk that is cut or whose checksum is wrong.
    """
    at, kind = 8, b""
    view = memoryview(content)
    while kind != b"IEND":
        if at + 12 > len(content):
            raise _cut_short("PNG")
        length, kind = struct.unpack_from(">I4s", content, at)
        end = at + 12 + length
        if end > len(content):
            raise _cut_short("PNG")
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise _damaged("PNG", "a checksum is wrong")
        yield kind, at, end
        at = end


def walk_png(content: bytes) -> PictureHeader:
    """PNG: every chunk's checksum; orientation from eXIf."""
    kinds: set[bytes] = set()
    width = height = 0
    orientation = 1
    for kind, start, end in png_chunks(content):
        if not kinds:
            if kind != b"IHDR" or end - start != 25:
                raise _damaged("PNG", "it does not begin with its header")
            width, height = struct.unpack_from(">II", content, start + 8)
        kinds.add(kind)
        if kind == b"eXIf":
            orientation = exif_orientation(content[start + 8 : end - 4])
    if b"IDAT" not in kinds:
        raise _damaged("PNG", "it holds no picture")
    return PictureHeader("PNG", width, height, orientation)


def walk_gif(content: bytes) -> PictureHeader:
    """GIF: blocks up to the end of the first picture; the size covers screen and picture."""
    if len(content) < 13:
        raise _cut_short("GIF")
    width, height, flags = struct.unpack_from("<HHB", content, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while content[at : at + 1] == b"!":
        at = _after_blocks(content, at + 2)
    if content[at : at + 1] != b"," or at + 11 > len(content):
        raise _cut_short("GIF")
    left, top, wide, high, flags = struct.unpack_from("<HHHHB", content, at + 1)
    at += 10 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    _after_blocks(content, at + 1)
    return PictureHeader("GIF", max(width, left + wide), max(height, top + high))


def _after_blocks(content: bytes, at: int) -> int:
    while True:
        if at >= len(content):
            raise _cut_short("GIF")
        length = content[at]
        at += 1 + length
        if not length:
            return at


def walk_webp(content: bytes) -> PictureHeader:
    """WebP: the declared length is there; size from the first chunk, orientation from EXIF."""
    end = 8 + int.from_bytes(content[4:8], "little")
    if end > len(content) or len(content) < 30:
        raise _cut_short("WebP")
    size, orientation, at = (0, 0), 1, 12
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", content, at)
        if at + 8 + length > end:
            raise _cut_short("WebP")
        if at == 12:
            size = _webp_size(kind, content[at + 8 : at + 18])
        if kind == b"EXIF":
            body = content[at + 8 : at + 8 + length]
            orientation = exif_orientation(body.removeprefix(b"Exif\0\0"))
        at += 8 + length + (length & 1)
    return PictureHeader("WebP", size[0], size[1], orientation)


def _webp_size(kind: bytes, body: bytes) -> tuple[int, int]:
    body = body.ljust(10, b"\0")
    if kind == b"VP8X":
        sides = int.from_bytes(body[4:7], "little"), int.from_bytes(body[7:10], "little")
        return sides[0] + 1, sides[1] + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    wide, high = struct.unpack_from("<HH", body, 6)
    return wide & 0x3FFF, high & 0x3FFF


def walk_bmp(content: bytes) -> PictureHeader:
    """BMP: size from the header; rows of an uncompressed picture are all there."""
    if len(content) < 26:
        raise _cut_short("BMP")
    offset, header = struct.unpack_from("<II", content, 10)
    if header == 12:
        width, height, _, depth = struct.unpack_from("<HHHH", content, 18)
        compression = 0
    else:
        if len(content) < 34:
            raise _cut_short("BMP")
        width, height, _, depth, compression = struct.unpack_from("<iiHHI", content, 18)
    row_bytes = (width * depth + 31) // 32 * 4
    if compression in (0, 3) and offset + row_bytes * abs(height) > len(content):
        raise _cut_short("BMP")
    return PictureHeader("BMP", width, abs(height))


def walk_netpbm(content: bytes) -> PictureHeader:
    """Binary Netpbm (PBM, PGM, PPM): sides and largest sample; all rows are there."""
    kind = content[1:2]
    numbers: list[int] = []
    at = 2
    while len(numbers) < (2 if kind == b"4" else 3):
        found = _NETPBM_NUMBER.match(content, at)
        if found is None:
            raise _damaged("Netpbm", "its header does not hold its sides")
        numbers.append(int(found[1]))
        at = found.end()
    width, height = numbers[:2]
    row_bytes = (width + 7) // 8 if kind == b"4" else width * (3 if kind == b"6" else 1)
    row_bytes *= 2 if numbers[2:] > [255] else 1
    if at + row_bytes * height > len(content):
        raise _cut_short("Netpbm")
    return PictureHeader("Netpbm", width, height)


WALKS: dict[str, Callable[[bytes], PictureHeader]] = {
    "JPEG": walk_jpeg,
    "PNG": walk_png,
    "GIF": walk_gif,
    "WebP": walk_webp,
    "BMP": walk_bmp,
    "Netpbm": walk_netpbm,
}


def _cut_short(name: str) -> MediaRefused:
    return refused("undecodable", f"is cut short: the {name} file ends too early")


def _damaged(name: str, why: str) -> MediaRefused:
    return refused("undecodable", f"is a damaged {name} file: {why}")
