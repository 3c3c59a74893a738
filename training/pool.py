"""Renders training pictures once into memory-mapped arrays.

    python -m training.pool FOLDER --kind dense|natural|clips --first 0 --count 12000

`dense` pictures fill nearly every cell, half of them with numbers, to teach seeing. `natural`
ones are those of `mmserve.testing.scene`, and `clips` the frames that a decoder gives for
`mmserve.testing.clip`, for the seeds [first, first + count). All are reduced to 96 x 96 as the
exported image processor does it.
"""

import argparse
import io
import random
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from PIL import Image

from mmserve.testing.clips import encode_mp4, paint_story
from mmserve.testing.scenes_draw import paint, paint_layout, paint_table
from mmserve.testing.scenes_stories import Story, sample_story
from mmserve.testing.scenes_world import MAX_NUMBER, PLACES, Layout, sample_layout, sample_thing
from training.labels import EMPTY, layout_labels, number_label, thing_label

SIDE = 96
Example = tuple[np.ndarray, np.ndarray]  # uint8 [SIDE, SIDE, 3] picture, int8 [9, 6] labels


def reduce_picture(picture: Image.Image) -> np.ndarray:
    """[96, 96, 3] uint8, bit for bit what the exported processor's resize gives."""
    return np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def dense_picture(seed: int) -> Iterator[Example]:
    """A crowded picture."""
    rng = random.Random(seed)
    things, numbers, labels = [], {}, []
    for place in PLACES:
        lot = rng.random()
        if lot < 0.45:
            numbers[place] = rng.randint(0, MAX_NUMBER)
            labels.append(number_label(numbers[place]))
        elif lot < 0.85:
            things.append(sample_thing(place, rng))
            labels.append(thing_label(things[-1]))
        else:
            labels.append(EMPTY)
    picture = paint(paint_table(rng), things, numbers, rng)
    yield reduce_picture(picture), np.array(labels, np.int8)


def natural_picture(seed: int) -> Iterator[Example]:
    """The picture of `mmserve.testing.scene`."""
    rng = random.Random(seed)
    layout = sample_layout(rng)
    yield reduce_picture(paint_layout(layout, rng)), layout_labels(layout)


def natural_layout(seed: int) -> Layout:
    """The layout of `natural_picture`."""
    return sample_layout(random.Random(seed))


def clip_pictures(seed: int) -> Iterator[Example]:
    """The decoded frames of `mmserve.testing.clip`."""
    rng = random.Random(f"clip {seed}")
    story = sample_story(rng)
    with av.open(io.BytesIO(encode_mp4(paint_story(story, rng)))) as container:
        for frame, layout in zip(container.decode(video=0), story.layouts, strict=True):
            yield reduce_picture(frame.to_image()), layout_labels(layout)


def clip_story(seed: int) -> Story:
    """The story of `clip_pictures`."""
    return sample_story(random.Random(f"clip {seed}"))


KINDS = {"dense": dense_picture, "natural": natural_picture, "clips": clip_pictures}


def main() -> None:
    """Renders one part of a pool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=12_000)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    pictures, labels, starts = [], [], []
    for seed in range(args.first, args.first + args.count):
        starts.append(len(pictures))
        for picture, label in KINDS[args.kind](seed):
            pictures.append(picture)
            labels.append(label)
    stem = f"{args.kind}-{args.first:07d}"
    np.save(args.folder / f"{stem}.labels.npy", np.stack(labels))
    np.save(args.folder / f"{stem}.starts.npy", np.array([*starts, len(pictures)]))
    np.save(args.folder / f"{stem}.part.npy", np.stack(pictures))
    (args.folder / f"{stem}.part.npy").rename(args.folder / f"{stem}.pictures.npy")


if __name__ == "__main__":
    main()
