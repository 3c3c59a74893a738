"""The content of each cell as numbers, and the 49 yes-or-no facts derived from it.

A cell's label is six small integers: kind, shape, colour, size, tens digit, ones digit, with
-1 for "does not apply". A fact vector holds +1 for each fact true of a patch, -1 otherwise.
"""

import numpy as np

from mmserve.testing.scenes_world import COLOURS, PLACES, SHAPES, SIZES, Layout, Thing

GROUPS = {
    "kind": 3,  # empty, thing, number
    "shape": len(SHAPES),
    "colour": len(COLOURS),
    "size": len(SIZES),
    "tens": 11,  # the digit, or 10 for "none"
    "ones": 10,
    "cell": len(PLACES),
}
NUM_FACTS = sum(GROUPS.values())
STARTS = dict(zip(GROUPS, np.cumsum([0, *GROUPS.values()]).tolist(), strict=False))
EMPTY = (0, -1, -1, -1, -1, -1)

# PATCH_CELLS[p] is the cell that patch p of the 6 x 6 patches lies in.
PATCH_CELLS = np.array([(p // 6 // 2) * 3 + (p % 6) // 2 for p in range(36)])


def thing_label(thing: Thing) -> tuple[int, ...]:
    """The label of a cell that holds `thing`."""
    return (
        1,
        SHAPES.index(thing.shape),
        COLOURS.index(thing.colour),
        SIZES.index(thing.size),
        -1,
        -1,
    )


def number_label(number: int) -> tuple[int, ...]:
    """The label of a cell that holds the card of `number`."""
    tens, ones = divmod(number, 10)
    return (2, -1, -1, -1, tens or 10, ones)


def layout_labels(layout: Layout) -> np.ndarray:
    """[9, 6] int8, the labels of the cells in raster order."""
    labels = np.tile(np.array(EMPTY, np.int8), (len(PLACES), 1))
    for thing in layout.things:
        labels[PLACES.index(thing.place)] = thing_label(thing)
    if layout.number is not None and layout.number_place is not None:
        labels[PLACES.index(layout.number_place)] = number_label(layout.number)
    return labels


def patch_facts(labels: np.ndarray) -> np.ndarray:
    """[n, 36, NUM_FACTS] float32 of +1 and -1, for [n, 9, 6] cell labels."""
    num = len(labels)
    facts = np.full((num, 9, NUM_FACTS), -1, np.float32)
    rows, cells = np.divmod(np.arange(num * 9), 9)
    flat = labels.reshape(-1, 6).astype(np.int64)
    for column, name in enumerate(list(GROUPS)[:6]):
        known = flat[:, column] >= 0
        facts[rows[known], cells[known], STARTS[name] + flat[known, column]] = 1
    facts[:, np.arange(9), STARTS["cell"] + np.arange(9)] = 1
    return facts[:, PATCH_CELLS]
