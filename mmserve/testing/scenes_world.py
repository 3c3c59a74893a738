"""What a table-top scene may hold, and how one is drawn by lot.

A scene is a table of 3 x 3 cells. A cell is empty, holds one object or holds one printed
number. Nothing here touches pixels.
"""

import random
from dataclasses import dataclass

__all__ = [
    "COLOURS",
    "MAX_NUMBER",
    "MAX_THINGS",
    "PLACES",
    "SHAPES",
    "SIZES",
    "Layout",
    "Thing",
    "sample_layout",
    "sample_thing",
]

PLACES = (
    "top left",
    "top",
    "top right",
    "left",
    "centre",
    "right",
    "bottom left",
    "bottom",
    "bottom right",
)
SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SIZES = ("small", "medium", "large")
MAX_THINGS = 5
MAX_NUMBER = 99


@dataclass(frozen=True, slots=True)
class Thing:
    """One object on the table; each field is a word of the constants above."""

    place: str
    size: str
    colour: str
    shape: str

    @property
    def phrase(self) -> str:
        """The canonical words for it, such as "a small red circle"."""
        return f"a {self.size} {self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The ground truth of a picture.

    `things` are in raster order of their places, at most one a place. `number` and
    `number_place` are both None when no number is printed; the number's place holds no thing.
    """

    things: tuple[Thing, ...]
    number: int | None = None
    number_place: str | None = None

    def at(self, place: str) -> Thing | None:
        """The thing at `place`, if any."""
        return next((thing for thing in self.things if thing.place == place), None)


def sample_thing(place: str, rng: random.Random) -> Thing:
    """A thing at `place` with every other attribute uniform. Changes: `rng`."""
    return Thing(place, rng.choice(SIZES), rng.choice(COLOURS), rng.choice(SHAPES))


def sample_layout(rng: random.Random) -> Layout:
    """One to five things, and a number in half of the layouts. Changes: `rng`.

    A third of the layouts repeat attributes of earlier things, so that counts above one are
    common.
    """
    cells = rng.sample(range(len(PLACES)), rng.randint(1, MAX_THINGS) + 1)
    things: list[Thing] = []
    alike = rng.random() < 1 / 3
    for cell in sorted(cells[1:]):
        thing = sample_thing(PLACES[cell], rng)
        if alike and things:
            model = rng.choice(things)
            shape = model.shape if rng.random() < 0.6 else thing.shape
            colour = model.colour if rng.random() < 0.6 else thing.colour
            thing = Thing(thing.place, thing.size, colour, shape)
        things.append(thing)
    if rng.random() < 0.5:
        return Layout(tuple(things), rng.randint(0, MAX_NUMBER), PLACES[cells[0]])
    return Layout(tuple(things))
