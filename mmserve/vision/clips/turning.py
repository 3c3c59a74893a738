"""Rotation that a container stores beside the pixels.

A turn is a word of letters, applied in this order: `t` swaps rows and columns, `x` mirrors left
and right, `y` mirrors top and bottom. The empty word leaves pixels as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import cast

import numpy as np
from av.sidedata.sidedata import SideData, Type
from av.video.frame import VideoFrame
from numpy.typing import NDArray

__all__ = ["display_turn", "turned"]


def display_turn(frame: VideoFrame) -> str:
    """The turn that a frame's display matrix asks for; other than right angles are ignored.

    The matrix takes pixel (p, q) to (a p + c q, b p + d q), so that a = d = 0 swaps the axes
    and a negative entry mirrors the axis it leads to. Pure.
    """
    entries = cast("Iterable[SideData]", frame.side_data)
    matrices = [bytes(entry) for entry in entries if entry.type == Type.DISPLAYMATRIX]
    if not matrices:
        return ""
    a, b, c, d = (int(entry) for entry in struct.unpack("=iixxxxii", matrices[0][:20]))
    if a == d == 0 and b and c:
        return "t" + "x" * (c < 0) + "y" * (b < 0)
    if b == c == 0 and a and d:
        return "x" * (a < 0) + "y" * (d < 0)
    return ""


def turned(pixels: NDArray[np.uint8], turn: str) -> NDArray[np.uint8]:
    """Pixels [H, W, 3] after `turn`, contiguous. Pure."""
    if "t" in turn:
        pixels = pixels.transpose(1, 0, 2)
    if "x" in turn:
        pixels = pixels[:, ::-1]
    if "y" in turn:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
