"""What one training step of the language model is made of."""

import random
from collections.abc import Callable

import numpy as np

from mmserve.testing.scenes_stories import Story, sample_story
from mmserve.testing.scenes_world import Layout, sample_layout
from training.labels import layout_labels
from training.packing import Pack, pack
from training.trees import (
    Teller,
    Tree,
    clip_tree,
    late_picture_tree,
    pair_tree,
    picture_tree,
)

# Tokens of questions and answers about one picture, pair or clip.
PICTURE_ROOM, PAIR_ROOM, CLIP_ROOM = 210, 140, 120


class Shelf:
    """The layouts behind the picture keys of one pack, drawn by lot."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.layouts: list[Layout] = []

    def picture(self) -> tuple[Layout, int]:
        """A new layout and its key."""
        self.layouts.append(sample_layout(self.rng))
        return self.layouts[-1], len(self.layouts) - 1

    def story(self) -> tuple[Story, list[int]]:
        """A new story and the keys of its frames; changes of colour, the hardest, abound."""
        story = sample_story(self.rng)
        while story.event != "turned" and self.rng.random() < 0.3:
            story = sample_story(self.rng)
        start = len(self.layouts)
        self.layouts += story.layouts
        return story, list(range(start, len(self.layouts)))

    def labels(self, pack: Pack) -> np.ndarray:
        """[n, 9, 6] int8 labels of the pack's pictures."""
        return np.stack([layout_labels(self.layouts[key]) for key in pack.pictures])


Lesson = Callable[[Teller, Shelf, random.Random, int], Pack]


def pictures_lesson(teller: Teller, shelf: Shelf, rng: random.Random, num_rows: int) -> Pack:
    """Rows of one picture and its questions; one row in eight has the question first."""
    rows: list[list[Tree]] = []
    for _ in range(num_rows):
        if rng.random() < 1 / 8:
            rows.append(late_row(teller, shelf, rng))
        else:
            layout, key = shelf.picture()
            rows.append([picture_tree(teller, layout, key, PICTURE_ROOM, rng)])
    return pack(rows)


def late_row(teller: Teller, shelf: Shelf, rng: random.Random) -> list[Tree]:
    """A row of several short trees, each a question before its picture."""
    row: list[Tree] = []
    used = 0
    while True:
        layout, key = shelf.picture()
        tree = late_picture_tree(teller, layout, key, rng)
        used += tree.num_tokens
        if row and used > PICTURE_ROOM:
            return row
        row.append(tree)


def pairs_lesson(teller: Teller, shelf: Shelf, rng: random.Random, num_rows: int) -> Pack:
    """Rows of two pictures and comparisons of them."""
    rows = []
    for _ in range(num_rows):
        (first, first_key), (second, second_key) = shelf.picture(), shelf.picture()
        keys = [first_key, second_key]
        rows.append([pair_tree(teller, (first, second), keys, PAIR_ROOM, rng)])
    return pack(rows)


def clips_lesson(teller: Teller, shelf: Shelf, rng: random.Random, num_rows: int) -> Pack:
    """Rows of one clip and its questions."""
    rows = []
    for _ in range(num_rows):
        story, keys = shelf.story()
        rows.append([clip_tree(teller, story, keys, CLIP_ROOM, rng)])
    return pack(rows)
