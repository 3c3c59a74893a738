"""Harmed clips give wanted frames once each, or a refusal; equal digests are equal pixels."""

import random
from functools import cache

import av
import numpy as np
import pytest
from plan.vision.numbered import clip

from mmserve.core import MediaConfig, MediaRefused
from mmserve.vision import frames as reading
from mmserve.vision.frames import decode_frames
from mmserve.vision.video import probe_clip

CONFIG = MediaConfig()
KINDS = [
    "groups",
    "open groups",
    "transport",
    "matroska",
    "raw",
    "mpeg4, reordered",
    "vp9",
    "gif",
]


@pytest.fixture(autouse=True)
def quiet():
    """FFmpeg keeps its remarks about harmed files to itself."""
    level = av.logging.get_level()
    av.logging.set_level(av.logging.PANIC)
    yield
    av.logging.set_level(level)


def harmed(content: bytes, draw: random.Random) -> bytes:
    """A clip with some bytes changed, left out, or another place's in their stead."""
    first, other = draw.randrange(len(content) // 4, len(content)), draw.randrange(len(content))
    length = draw.randrange(1, 300)
    how = draw.randrange(4)
    if how == 0:
        return content[:first]
    if how == 1:
        return content[:first] + content[first + length :]
    if how == 2:
        return content[:first] + content[other : other + length] + content[first + length :]
    return content[:first] + bytes([draw.randrange(256)]) + content[first + 1 :]


def all_frames(content: bytes, found):
    """Pixels of all frames by number, from one pass; none may come twice."""
    size = len(found.times.ticks)
    passed = list(decode_frames(content, found, lambda at: at if at < size else None))
    assert sorted(number for number, _ in passed) == list(range(size))
    return dict(passed)


def named(found):
    """Number of each frame by what it is known by; none if the whole file is needed."""
    if found.is_whole:
        return {}
    size = range(len(found.times.ticks))
    return {(found.times.seconds(n), found.turn, found.frame_digest(n)): n for n in size}


@cache
def whole(kind: str):
    """Names and pixels of an unharmed clip's frames."""
    found = probe_clip(clip(kind).content, CONFIG)
    return named(found), all_frames(clip(kind).content, found)


@pytest.mark.parametrize("kind", KINDS)
def test_harmed_clips_never_give_another_clips_pixels(kind):
    """Of 40 harmed clips, every frame known by an old name has the old pixels."""
    draw = random.Random(f"harm {kind}")
    names, pixels = whole(kind)
    num_served = num_known = 0
    for _ in range(40):
        content = harmed(clip(kind).content, draw)
        try:
            found = probe_clip(content, CONFIG)
            frames = all_frames(content, found)
        except MediaRefused:
            continue
        num_served += 1
        for name, number in named(found).items():
            if name in names:
                num_known += 1
                assert np.array_equal(frames[number], pixels[names[name]])
    assert num_served > 5
    assert num_known > 20 or kind in ("groups", "open groups", "mpeg4, reordered")


def test_a_frame_that_comes_twice_is_given_once(monkeypatch):
    """Where a stream shows two frames at one time, the first of them is the frame."""
    found = probe_clip(clip("groups").content, CONFIG)
    walk = reading.walk
    monkeypatch.setattr(
        reading, "walk", lambda *args: (pair for pair in walk(*args) for _ in range(2))
    )
    monkeypatch.setattr(reading, "has_surely_wanted", lambda clip: False)
    assert len(all_frames(clip("groups").content, found)) == 40
