"""Reading a clip decodes little, and what it gives is right even where the file lies."""

import numpy as np
import pytest
from plan.vision.numbered import clip, encoded, number_in

from mmserve.core import MediaConfig
from mmserve.vision.clips import walk as walking
from mmserve.vision.frames import decode_frames
from mmserve.vision.video import probe_clip

GROUPS = {"preset": "ultrafast", "x264-params": "keyint=10:min-keyint=10:scenecut=0"}
LEAPING = ["mp4", "matroska", "mpegts", "avi", "flv"]


@pytest.fixture(scope="module")
def long_clips():
    """200 frames with a key frame every 10, by container."""
    return {name: encoded("libx264", name, num=200, options=GROUPS) for name in LEAPING}


def taken(content: bytes, found, numbers):
    """(number, carried number) of the wanted frames, in the order they come."""
    wanted = list(numbers)
    passed = decode_frames(
        content, found, lambda at: next((n for n in wanted if n >= at), None)
    )
    return [(number, number_in(pixels)) for number, pixels in passed]


def lowest_of(wanted: list[int]):
    """The lowest of `wanted` from a position on, also of those that are added later."""
    return lambda at: min((number for number in wanted if number >= at), default=None)


@pytest.fixture
def num_decoded(monkeypatch):
    """Counts packets given to PyAV's decoder."""
    counts = []
    decoded = walking.decoded
    monkeypatch.setattr(walking, "decoded", lambda packet: counts.append(1) or decoded(packet))
    return counts


@pytest.mark.parametrize("name", LEAPING)
def test_sparse_frames_are_leapt_to(long_clips, num_decoded, name):
    """Of a clip with many key frames only what lies behind those before wanted ones is read."""
    found = probe_clip(long_clips[name], MediaConfig())
    num_decoded.clear()
    assert taken(long_clips[name], found, [3, 64, 197]) == [(3, 3), (64, 64), (197, 197)]
    assert len(num_decoded) == 4 + 5 + 8


def test_near_frames_are_decoded_on(long_clips, num_decoded):
    """A key frame that is hardly nearer is not worth a leap."""
    found = probe_clip(long_clips["mp4"], MediaConfig())
    num_decoded.clear()
    taken(long_clips["mp4"], found, range(0, 100, 5))
    assert len(num_decoded) == 96


@pytest.mark.parametrize("name", ["groups", "mpeg2 transport", "hevc", "vp9 unshown"])
def test_frames_no_other_needs_are_left_out(name):
    """A wanted frame is the same whether the frames before it were decoded or left out."""
    found = probe_clip(clip(name).content, MediaConfig())
    size = range(len(found.times.ticks))
    assert [taken(clip(name).content, found, [n])[0] for n in size] == [(n, n) for n in size]


@pytest.mark.parametrize("name", ["hevc", "mpeg4, reordered"])
def test_index_that_lies_is_not_believed(name):
    """Where a container calls every frame a key frame, wanted frames are the right ones."""
    content = clip(name).content.replace(b"stss", b"free")
    found = probe_clip(content, MediaConfig())
    assert len(found.entries) == 40
    assert taken(content, found, [3, 25, 39]) == [(3, 3), (25, 25), (39, 39)]


@pytest.mark.parametrize("name", ["hevc", "mpeg4, reordered"])
def test_frame_is_the_same_after_a_lying_index(name):
    """What is read from the start after a failed leap is what a plain pass gives."""
    lying = clip(name).content.replace(b"stss", b"free")
    pixels = [
        [frame for _, frame in decode_frames(content, probe_clip(content, MediaConfig()), only)]
        for content in (lying, clip(name).content)
    ]
    assert np.array_equal(pixels[0], pixels[1])


def only(position: int) -> int | None:
    """Frame 27 is wanted."""
    return 27 if position <= 27 else None


def test_wish_ahead_joins_a_pass(long_clips):
    """A frame wished for while a pass runs comes in it if it lies ahead."""
    wanted = [5]
    found = probe_clip(long_clips["mp4"], MediaConfig())
    passed = decode_frames(long_clips["mp4"], found, lowest_of(wanted))
    assert next(passed)[0] == 5
    wanted.append(150)
    number, pixels = next(passed)
    assert (number, number_in(pixels)) == (150, 150)
    wanted.append(20)
    assert list(passed) == []


def test_wish_behind_is_never_served_by_another_frame(long_clips):
    """A frame wished for when the pass is beyond it is left to the next pass."""
    wanted = [40]
    content = long_clips["mp4"]

    def next_wanted(position: int) -> int | None:
        if position > 40:
            wanted.append(30)
        return next((n for n in sorted(wanted) if n >= position), None)

    found = probe_clip(content, MediaConfig())
    passed = [
        (n, number_in(pixels)) for n, pixels in decode_frames(content, found, next_wanted)
    ]
    assert passed == [(40, 40)]


def test_nothing_wanted_opens_nothing(num_decoded):
    """A pass for which nothing is wanted any more ends at once."""
    found = probe_clip(clip("groups").content, MediaConfig())
    num_decoded.clear()
    assert taken(clip("groups").content, found, []) == []
    assert num_decoded == []
