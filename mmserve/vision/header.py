"""What a picture's header says, and the sniffing of formats by content."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

__all__ = [
    "SUPPORTED_FORMATS",
    "PictureHeader",
    "is_still",
    "sniff_picture",
    "sniff_unsupported",
]

SUPPORTED_FORMATS = ("JPEG", "PNG", "GIF", "WebP", "BMP", "Netpbm", "TIFF", "AVIF", "HEIC")

_PREFIXES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)
_NETPBM = re.compile(rb"P([1-7])\s+[#\d]")
_OTHER_PREFIXES = (
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"\0\0\1\0", "ICO"),
    (b"icns", "ICNS"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"8BPS", "PSD"),
    (b"DDS ", "DDS"),
    (b"qoif", "QOI"),
    (b"v/1\1", "OpenEXR"),
    (b"#?RADIANCE", "Radiance HDR"),
    (b"\x1a\x45\xdf\xa3", "Matroska or WebM video"),
)
_BINARY_NETPBM = frozenset({b"4", b"5", b"6"})
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_WEBP_ANIMATION = 2


@dataclass(frozen=True, slots=True)
class PictureHeader:
    """Facts of a picture file, known without decoding.

    `width` and `height` are in pixels, after `orientation` (EXIF's number, 1 to 8) is applied.
    """

    format: str
    width: int
    height: int
    orientation: int = 1


def sniff_picture(content: bytes) -> str | None:
    """Name of the supported picture format that `content` begins as, or None. Pure."""
    for prefix, name in _PREFIXES:
        if content.startswith(prefix):
            return name
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WebP"
    netpbm = _NETPBM.match(content)
    if netpbm is not None and netpbm[1] in _BINARY_NETPBM:
        return "Netpbm"
    brands = _brands(content)
    if brands & _AVIF_BRANDS:
        return "AVIF"
    return "HEIC" if brands & _HEIC_BRANDS else None


def sniff_unsupported(content: bytes) -> str | None:
    """Name of a known format that is not served as a picture, or None. Pure."""
    for prefix, name in _OTHER_PREFIXES:
        if content.startswith(prefix):
            return name
    if _NETPBM.match(content):
        return "Netpbm as text"
    return "MP4 video" if _brands(content) else _sniff_text(content[:1024])


def _sniff_text(start: bytes) -> str | None:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<svg", b"<?xml", b"<!doctype svg")):
        return "SVG"
    if text.startswith((b"<html", b"<!doctype html")):
        return "HTML"
    return "text" if text and _is_text(start) else None


def is_still(content: bytes) -> bool:
    """Whether a file given as a clip is one picture.

    GIF is none, nor are JPEGs in a row, PNG and WebP that say they are animated, and sequences
    of AVIF. Pure.
    """
    name = sniff_picture(content)
    if name == "JPEG":
        return b"\xff\xd9\xff\xd8\xff" not in content or b"MPF\0" in content[:65536]
    if name == "PNG":
        return _png_frames(content) <= 1
    if name == "WebP":
        flags = int.from_bytes(content[20:21], "big")
        return content[12:16] != b"VP8X" or not flags & _WEBP_ANIMATION
    if name == "AVIF":
        return content[8:12] != b"avis"
    return name is not None and name != "GIF"


def _png_frames(content: bytes) -> int:
    """Frames that a PNG's animation chunk announces, 1 if there is none before its pixels."""
    at, kind = 8, b""
    while kind != b"IDAT" and at + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        if kind == b"acTL":
            return int.from_bytes(content[at + 8 : at + 12], "big")
        at += 12 + length
    return 1


def _brands(content: bytes) -> set[bytes]:
    """Major and compatible brands of an ISO media file; empty for anything else."""
    if content[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(content[:4], "big"), 256)
    return {content[8:12]} | {content[at : at + 4] for at in range(16, end, 4)}


def _is_text(start: bytes) -> bool:
    return all(byte >= 0x20 or byte in b"\t\r\n\f" for byte in start) and b"\x7f" not in start
