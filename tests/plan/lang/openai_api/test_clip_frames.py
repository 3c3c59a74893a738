"""Clips as pictures: which frames are taken, and in what order."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    MediaRefused,
    UrlSource,
    VideoPart,
)
from mmserve.lang.backends.clip_frames import frame_pictures
from mmserve.testing.clips import encode_mp4

NUM_FRAMES = 10  # at two a second: 5 s


@pytest.fixture(scope="module")
def mp4() -> bytes:
    """A clip whose frame k has brightness 20 k."""
    shades = [np.full((64, 64, 3), 20 * k, np.uint8) for k in range(NUM_FRAMES)]
    return encode_mp4([Image.fromarray(shade) for shade in shades])


def numbers(pictures) -> list[int]:
    """Which frames these are, by their brightness."""
    found = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture.source.content)) as opened:
            assert opened.format == "PNG"
            found.append(round(float(np.asarray(opened.convert("L")).mean()) / 20))
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"num_frames": 4}, [0, 3, 6, 9]),
        ({"num_frames": 1}, [4]),
        ({"num_frames": 99}, list(range(NUM_FRAMES))),
        ({"fps": 1}, [0, 2, 4, 6, 8]),
        ({"fps": 1, "start_s": 1, "end_s": 3}, [2, 4]),
        ({"fps": 2, "num_frames": 3}, [0, 5, 9]),
        ({"num_frames": 2, "start_s": 2, "end_s": 4}, [4, 7]),
    ],
)
def test_frames_are_sampled_as_the_language_says(mp4, options, expected):
    """Evenly with both ends, on a grid, in a window; a thinned grid is spread evenly."""
    assert numbers(frame_pictures(VideoPart(BytesSource(mp4), **options))) == expected


def test_a_clip_by_data_address_is_read_here(mp4):
    """The same frames as its bytes; bounds go along with each."""
    url = f"data:video/mp4;base64,{base64.b64encode(mp4).decode()}"
    pictures = frame_pictures(VideoPart(UrlSource(url), 3, max_pixels=500))

    assert numbers(pictures) == numbers(frame_pictures(VideoPart(BytesSource(mp4), 3)))
    assert {picture.max_pixels for picture in pictures} == {500}


def test_given_frames_are_not_changed():
    """All of them, or thinned by number, or cut by their own rate."""
    frames = tuple(BytesSource(bytes([k])) for k in range(6))
    source = FramesSource(frames, fps=2.0)

    def taken(**options):
        return [p.source.content[0] for p in frame_pictures(VideoPart(source, **options))]

    assert taken() == [0, 1, 2, 3, 4, 5]
    assert taken(num_frames=3) == [0, 3, 5]
    assert taken(start_s=1.0, end_s=2.0) == [2, 3]


def test_what_is_no_clip_is_refused():
    """Bytes without frames, a server's id, values without meaning."""
    with pytest.raises(MediaRefused):
        frame_pictures(VideoPart(BytesSource(b"no clip")))
    with pytest.raises(MediaRefused, match="server"):
        frame_pictures(VideoPart(UrlSource("file-0123")))
    with pytest.raises(BadRequest):
        frame_pictures(VideoPart(FramesSource((BytesSource(b"a"),)), start_s=9.0))
