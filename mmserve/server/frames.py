"""Encoded pictures that stand one after another in one run of bytes.

PNG:  signature, then chunks [length 4 | name 4 | content | check 4] up to IEND
JPEG: FF D8, then segments [FF xx | length 2 | content], coded data after FF DA, up to FF D9
"""

from __future__ import annotations

from mmserve.core import MediaRefused

__all__ = ["split_frames"]

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_JPEG_END = 0xD9
_JPEG_SCAN = 0xDA
_MAX_FRAMES = 10_000


def split_frames(content: bytes, name: str) -> list[bytes]:
    """The PNG and JPEG pictures that `content` is made of, in order.

    Raises MediaRefused where something else stands, or where a picture is cut. Pure.
    """
    frames: list[bytes] = []
    start = 0
    while start < len(content):
        if len(frames) == _MAX_FRAMES:
            raise _refused(name, start, f"more than {_MAX_FRAMES} frames")
        if content.startswith(_PNG, start):
            end = _png_end(content, start)
        elif content.startswith(_JPEG, start):
            end = _jpeg_end(content, start)
        else:
            raise _refused(name, start, "neither a PNG nor a JPEG picture")
        if end > len(content):
            raise _refused(name, start, "a picture that is cut")
        frames.append(content[start:end])
        start = end
    return frames


def _refused(name: str, start: int, what: str) -> MediaRefused:
    message = f"{name} holds {what} at byte {start}"
    return MediaRefused(message, field=name, reason="undecodable")


def _png_end(content: bytes, start: int) -> int:
    position = start + len(_PNG)
    while position + 12 <= len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        is_last = content[position + 4 : position + 8] == b"IEND"
        position += 12 + length
        if is_last:
            return position
    return len(content) + 1


def _jpeg_end(content: bytes, start: int) -> int:
    position = start + len(_JPEG)
    while position + 2 <= len(content) and content[position] == 0xFF:
        marker = content[position + 1]
        if marker == _JPEG_END:
            return position + 2
        if marker == 0xFF:
            position += 1
            continue
        position += 2 + int.from_bytes(content[position + 2 : position + 4], "big")
        if marker == _JPEG_SCAN:
            position = _after_coded(content, position)
    return len(content) + 1


def _after_coded(content: bytes, position: int) -> int:
    """Where the next marker stands that is not stuffing (FF 00) or a restart (FF D0..D7)."""
    while True:
        position = content.find(b"\xff", position)
        if position < 0 or position + 1 >= len(content):
            return len(content)
        follower = content[position + 1]
        if follower != 0 and not 0xD0 <= follower <= 0xD7:
            return position
        position += 2
