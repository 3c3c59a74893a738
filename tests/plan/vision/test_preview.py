"""Small pictures of what items show."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from plan.vision.making import (
    GREEN,
    RED,
    brightening,
    clip_of,
    flat,
    new_plane,
    png_chunk,
    saved,
)

from mmserve.core import BytesSource, FramesSource, ImagePart, MediaRefused, VideoPart
from mmserve.vision import MediaItem, MediaPlane


@pytest.fixture
def plane() -> Iterator[MediaPlane]:
    """A plane that decodes in children, as a server does."""
    plane = new_plane()
    yield plane
    plane.close()


def items_of(plane: MediaPlane, *parts: ImagePart | VideoPart) -> list[MediaItem]:
    """Items of all parts, in order."""
    resolved = (plane.resolve(part, salt="", index=k) for k, part in enumerate(parts))
    return [item for one in resolved for item in one.items]


def seen(content: bytes) -> np.ndarray:
    """Pixels of a JPEG."""
    picture = Image.open(io.BytesIO(content))
    assert picture.format == "JPEG"
    return np.asarray(picture.convert("RGB")).astype(int)


def test_a_picture_is_scaled_to_224_pixels(plane: MediaPlane) -> None:
    """The longest side at most, in proportion, and in its colours."""
    (item,) = items_of(plane, ImagePart(BytesSource(saved(flat(300, 600, RED)))))
    (content,) = plane.previews([item])[item.digest]
    pixels = seen(content)
    assert pixels.shape == (112, 224, 3)
    assert np.abs(pixels - RED).max() < 12


def test_a_small_picture_stays_as_it_is(plane: MediaPlane) -> None:
    """Nothing is scaled up."""
    (item,) = items_of(plane, ImagePart(BytesSource(saved(flat(6, 5, GREEN)))))
    (content,) = plane.previews([item])[item.digest]
    assert seen(content).shape == (6, 5, 3)


def test_sampled_frames_are_shown_in_one_pass(plane: MediaPlane) -> None:
    """Each frame that was taken of a clip has its own picture."""
    part = VideoPart(BytesSource(clip_of(brightening(10))), num_frames=4)
    items = items_of(plane, part)
    found = plane.previews(items)
    lights = [round(seen(found[item.digest][0]).mean()) for item in items]
    numbers = [round(item.timestamps_s[0] * 5) for item in items]
    assert len(set(numbers)) == 4
    for light, number in zip(lights, numbers, strict=True):
        assert abs(light - 25 * number) < 8


def test_the_same_picture_twice_is_shown_once(plane: MediaPlane) -> None:
    """As frames of a clip it is the same picture, too."""
    frames = tuple(BytesSource(saved(flat(4, 4, colour))) for colour in (RED, GREEN, RED))
    items = items_of(plane, VideoPart(FramesSource(frames)))
    found = plane.previews(items)
    assert found[items[0].digest] == found[items[2].digest] != found[items[1].digest]


def test_at_most_64_pictures_are_shown(plane: MediaPlane) -> None:
    """The first ones; later items are left out."""
    frames = tuple(BytesSource(saved(flat(2, 2, (k, 0, 0)))) for k in range(70))
    items = items_of(plane, VideoPart(FramesSource(frames)))
    found = plane.previews(items)
    assert set(found) == {item.digest for item in items[:64]}


def test_an_item_of_several_frames_is_shown_whole(plane: MediaPlane) -> None:
    """A group of frames has a picture for each, in order."""
    part = VideoPart(BytesSource(clip_of(brightening(4))), num_frames=2)
    first, second = items_of(plane, part)
    sources = (*first.origin.sources, *second.origin.sources)
    group = replace(first, origin=replace(first.origin, sources=sources))
    dark, bright = plane.previews([group])[group.digest]
    assert seen(dark).mean() < seen(bright).mean()


def test_a_bad_picture_is_refused_by_its_place(plane: MediaPlane) -> None:
    """As a request with it would be."""
    png = saved(flat(64, 64, RED))
    start = png.index(b"IDAT") - 4
    broken = png[:start] + png_chunk(b"IDAT", png[start + 8 : -30]) + png_chunk(b"IEND", b"")
    good, bad = saved(flat(4, 4, GREEN)), ImagePart(BytesSource(broken))
    items = items_of(plane, ImagePart(BytesSource(good)), bad)
    with pytest.raises(MediaRefused) as caught:
        plane.previews(items)
    assert caught.value.fields["index"] == 1
