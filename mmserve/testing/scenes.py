"""Generated table-top scenes with questions, answers and their ground truth.

`scene(seed)` is the same on every machine with the same Pillow. The embedded model tabletop
was trained on `TRAIN_SEEDS` only; measure on `TEST_SEEDS`.
"""

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

from PIL import Image

from mmserve.testing.scenes_draw import paint_layout
from mmserve.testing.scenes_questions import MAKERS, Question, compare_pictures
from mmserve.testing.scenes_world import (
    COLOURS,
    MAX_NUMBER,
    MAX_THINGS,
    PLACES,
    SHAPES,
    SIZES,
    Layout,
    Thing,
    sample_layout,
)

__all__ = [
    "SCENE_SCHEMA",
    "TEST_SEEDS",
    "TRAIN_SEEDS",
    "Layout",
    "Question",
    "Scene",
    "Thing",
    "scene",
]

TRAIN_SEEDS = range(1_000_000)
TEST_SEEDS = range(1_000_000, 1_100_000)

_THING_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"enum": list(PLACES)},
        "size": {"enum": list(SIZES)},
        "colour": {"enum": list(COLOURS)},
        "shape": {"enum": list(SHAPES)},
    },
    "required": ["place", "size", "colour", "shape"],
    "additionalProperties": False,
}

# The JSON schema of the answer to a question of kind "describe".
SCENE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "objects": {"type": "array", "items": _THING_SCHEMA, "maxItems": MAX_THINGS},
        "number": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
                {"type": "null"},
            ]
        },
    },
    "required": ["objects", "number"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture (RGB, 288 x 288), its ground truth and questions about it."""

    seed: int
    layout: Layout
    image: Image.Image
    questions: tuple[Question, ...]


def scene(seed: int) -> Scene:
    """The scene of `seed`, with at most one question of each kind.

    Cost: about 15 ms, for two pictures.
    """
    rng = random.Random(seed)
    layout = sample_layout(rng)
    image = paint_layout(layout, rng)
    dice = random.Random(f"questions {seed}")
    questions = [asked for ask in MAKERS.values() if (asked := ask(layout, dice))]
    other = sample_layout(dice)
    pair = compare_pictures(layout, other, dice)
    questions.append(dataclasses.replace(pair, other_image=paint_layout(other, dice)))
    return Scene(seed, layout, image, tuple(questions))
