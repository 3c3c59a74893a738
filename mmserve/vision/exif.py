"""The one EXIF field that changes what a picture shows."""

from __future__ import annotations

import struct

__all__ = ["exif_orientation", "swaps_sides"]

_ORIENTATION = 0x0112


def exif_orientation(block: bytes) -> int:
    """Orientation, 1 to 8, in an EXIF block (a TIFF header and its first directory). Pure.

    1, upright, if the field is missing or the block is damaged.
    """
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None or len(block) < 10:
        return 1
    (at,) = struct.unpack_from(order + "I", block, 4)
    if at + 2 > len(block):
        return 1
    (num_fields,) = struct.unpack_from(order + "H", block, at)
    for field in range(at + 2, min(at + 2 + 12 * num_fields, len(block) - 11), 12):
        tag, kind, _, value = struct.unpack_from(order + "HHIH", block, field)
        if tag == _ORIENTATION:
            return value if kind == 3 and 1 <= value <= 8 else 1
    return 1


def swaps_sides(orientation: int) -> bool:
    """Whether applying `orientation` swaps width and height. Pure."""
    return orientation >= 5
