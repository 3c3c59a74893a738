"""Painting a table-top scene with Pillow.

y 0   +----+----+----+      288 x 288 pixels, cells of 96 x 96. Whatever stands in a
      |  0 |  1 |  2 |      cell stays inside it, up to 5 pixels off its middle, so a
   96 +----+----+----+      picture reduced to 96 x 96 keeps cells of 32 x 32.
      |  3 |  4 |  5 |
  192 +----+----+----+
      |  6 |  7 |  8 |
  288 +----+----+----+
"""

import functools
import math
import random
from collections.abc import Iterable, Mapping

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmserve.testing.scenes_world import PLACES, Layout, Thing

__all__ = ["PICTURE_PIXELS", "paint", "paint_layout", "paint_table"]

PICTURE_PIXELS = 288
_CELL = PICTURE_PIXELS // 3
_OVERSAMPLE = 3
_OUTLINE = 2.6
_MAX_SHIFT = 5.0

_RADII = {"small": 18.0, "medium": 28.5, "large": 40.5}
_PAINTS = {
    "red": (214, 38, 40),
    "orange": (246, 134, 18),
    "yellow": (250, 222, 40),
    "green": (38, 158, 62),
    "blue": (38, 92, 218),
    "purple": (136, 48, 166),
    "white": (249, 249, 249),
    "black": (26, 26, 30),
}
# Mid tones of low saturation, so that white, black and every hue stand out.
_TABLES = (
    (150, 150, 150),
    (188, 174, 150),
    (168, 138, 108),
    (150, 168, 186),
    (156, 178, 158),
    (192, 166, 170),
    (124, 132, 142),
    (172, 164, 186),
)


def _ring(radii: Iterable[float], start: float) -> list[tuple[float, float]]:
    """Corners at equal angles around the origin, one for each radius."""
    spokes = list(radii)
    turns = [start + 2 * math.pi * step / len(spokes) for step in range(len(spokes))]
    return [
        (r * math.cos(turn), r * math.sin(turn)) for r, turn in zip(spokes, turns, strict=True)
    ]


def _cross(arm: float, half: float) -> list[tuple[float, float]]:
    """Corners of a plus sign."""
    quarter = [(half, -arm), (half, -half), (arm, -half)]
    turns = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    return [(c * x - s * y, s * x + c * y) for c, s in turns for x, y in quarter]


# Outlines of unit size: the distance from the middle to the farthest side is about 1.
_OUTLINES = {
    "circle": _ring([1.0] * 40, 0.0),
    "square": _ring([1.24] * 4, math.pi / 4),
    "triangle": [(x, y + 0.2) for x, y in _ring([1.2] * 3, -math.pi / 2)],
    "star": _ring([1.1, 0.48] * 5, -math.pi / 2),
    "cross": _cross(0.98, 0.34),
}


def paint_table(rng: random.Random) -> Image.Image:
    """An empty table: tone, gradient, grain and sometimes stripes. Changes: `rng`."""
    dice = np.random.default_rng(rng.getrandbits(32))
    steps = np.linspace(-1.0, 1.0, PICTURE_PIXELS, dtype=np.float32)
    tone = np.array(rng.choice(_TABLES), np.float32) + dice.uniform(-12, 12, 3)
    turn = rng.uniform(0, 2 * math.pi)
    slope = rng.uniform(0, 18)
    light = slope * (math.cos(turn) * steps[None, :] + math.sin(turn) * steps[:, None])
    if rng.random() < 0.4:
        waves = rng.uniform(4, 30)
        stripes = np.sin(steps * waves * math.pi + rng.uniform(0, 6)) * rng.uniform(2, 9)
        light = light + (stripes[None, :] if rng.random() < 0.5 else stripes[:, None])
    grain = dice.standard_normal(light.shape, dtype=np.float32) * rng.uniform(0, 8)
    pixels = tone.astype(np.float32) + (light + grain)[:, :, None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGB")


def paint_layout(layout: Layout, rng: random.Random) -> Image.Image:
    """The picture of `layout`, RGB, `PICTURE_PIXELS` a side. Changes: `rng`."""
    numbers = {}
    if layout.number is not None and layout.number_place is not None:
        numbers[layout.number_place] = layout.number
    return paint(paint_table(rng), layout.things, numbers, rng)


def paint(
    table: Image.Image,
    things: Iterable[Thing],
    numbers: Mapping[str, int],
    rng: random.Random,
) -> Image.Image:
    """A copy of `table` with `things`, and each of `numbers` on a card at its place.

    Changes: `rng`, which shifts, turns and tints what is painted.
    """
    picture = table.copy()
    for thing in things:
        _stamp(picture, thing, rng)
    for place, number in numbers.items():
        _card(picture, place, number, rng)
    return picture


def _corner(place: str) -> tuple[int, int]:
    row, column = divmod(PLACES.index(place), 3)
    return column * _CELL, row * _CELL


def _stamp(picture: Image.Image, thing: Thing, rng: random.Random) -> None:
    """Paints one thing: a darker outline, then its colour."""
    radius = _RADII[thing.size] * rng.uniform(0.96, 1.04)
    spare = min(_MAX_SHIFT, _CELL / 2 - 1.1 * radius)
    shift = (rng.uniform(-spare, spare), rng.uniform(-spare, spare))
    turn = rng.uniform(-0.12, 0.12)
    paint_rgb = tuple(c + rng.randint(-6, 6) for c in _PAINTS[thing.colour])
    edge_rgb = tuple(max(0, int(c * 0.6)) for c in paint_rgb)
    corner = _corner(thing.place)
    for rgb, inset in ((edge_rgb, 0.0), (paint_rgb, _OUTLINE)):
        mask = _mask(thing.shape, radius - inset, turn, shift)
        picture.paste(rgb, corner, mask)


def _mask(shape: str, radius: float, turn: float, shift: tuple[float, float]) -> Image.Image:
    """Coverage of one cell, 0 to 255, antialiased by oversampling."""
    side = _CELL * _OVERSAMPLE
    cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
    corners = [
        (
            (_CELL / 2 + shift[0] + cos * x - sin * y) * _OVERSAMPLE,
            (_CELL / 2 + shift[1] + sin * x + cos * y) * _OVERSAMPLE,
        )
        for x, y in _OUTLINES[shape]
    ]
    large = Image.new("L", (side, side))
    ImageDraw.Draw(large).polygon(corners, fill=255)
    return large.reduce(_OVERSAMPLE)


@functools.cache
def _font() -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size=54)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise TypeError("Pillow was built without FreeType, which numbers are drawn with")
    return font


def _card(picture: Image.Image, place: str, number: int, rng: random.Random) -> None:
    """Paints a white card with `number` in dark digits."""
    left, top = _corner(place)
    middle = (
        left + _CELL / 2 + rng.uniform(-3, 3),
        top + _CELL / 2 + rng.uniform(-3, 3),
    )
    draw = ImageDraw.Draw(picture)
    box = (middle[0] - 41, middle[1] - 30, middle[0] + 41, middle[1] + 30)
    shade = rng.randint(238, 255)
    draw.rounded_rectangle(box, radius=5, fill=(shade,) * 3, outline=(120, 120, 120), width=2)
    ink = tuple(rng.randint(0, 60) for _ in range(3))
    draw.text(middle, str(number), font=_font(), fill=ink, anchor="mm")
