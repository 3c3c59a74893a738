"""Sizes through which Idefics3 and SmolVLM take a picture, rounded as in transformers.

300 x 400 --scaled_size, edge 1456--> 1092 x 1456 --tile_grid, side 364--> 3 x 4 tiles
"""

from __future__ import annotations

import math

__all__ = ["LARGEST_EDGE", "Size", "scaled_size", "tile_grid"]

LARGEST_EDGE = 4096
"""Of any scaled picture or frame, in pixels."""

Size = tuple[int, int]
"""Height and width, in pixels or in tiles."""


def scaled_size(size: Size, edge: int) -> Size:
    """Size of a picture whose longer side becomes `edge`, at most 4096, the other side even.

    With 0 for `edge` it keeps its size. Pure.
    """
    height, width = size
    if not edge:
        return size
    if width >= height:
        height, width = max(_even(int(edge / (width / height))), 1), edge
    else:
        height, width = edge, max(_even(int(edge * (width / height))), 1)
    ratio = width / height
    if width >= height and width > LARGEST_EDGE:
        height, width = int(LARGEST_EDGE / ratio), LARGEST_EDGE
    elif height > LARGEST_EDGE:
        height, width = LARGEST_EDGE, int(LARGEST_EDGE * ratio)
    return max(height, 1), max(width, 1)


def tile_grid(size: Size, side: int) -> Size:
    """Rows and columns of the tiles that a scaled picture is stretched to. Pure."""
    height, width = size
    ratio = width / height
    if width >= height:
        columns = math.ceil(width / side)
        return math.ceil(int(columns * side / ratio) / side), columns
    rows = math.ceil(height / side)
    return rows, math.ceil(int(rows * side * ratio) / side)


def _even(length: int) -> int:
    return length + length % 2
