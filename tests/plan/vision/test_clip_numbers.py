"""Frames of clips in every odd form carry the right numbers, however they are asked for."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from plan.vision.numbered import NAMES, TURNS_BACK, clip, encoded, number_in

from mmserve.core import BadRequest, BytesSource, MediaConfig, VideoPart
from mmserve.vision.clips.pixels import rgb
from mmserve.vision.clips.walk import walk
from mmserve.vision.frames import decode_frames
from mmserve.vision.sampling import choose_frames
from mmserve.vision.video import probe_clip

CONFIG = MediaConfig()
DECORD = MediaConfig(clip_decoder="decord")
SOURCE = BytesSource(b"")
WISHES = {
    "count": {"num_frames": 6},
    "two": {"num_frames": 2},
    "one": {"num_frames": 1},
    "rate": {"fps": 7.0},
    "times": {"times_s": (0.0, 0.21, 0.2, 0.3)},
    "window": {"num_frames": 3, "start_s": 0.25, "end_s": 0.75},
    "key frames": {"num_frames": 9, "key_frames": True},
}


@cache
def header(name: str, config: MediaConfig = CONFIG):
    """Header of a clip, made once."""
    return probe_clip(clip(name).content, config)


@cache
def whole_pass(name: str):
    """Pixels of all frames, by number, from one pass."""
    found = header(name)
    return {n: rgb(frame, found) for n, frame in walk(clip(name).content, found)}


def taken(content: bytes, found, numbers) -> dict[int, np.ndarray]:
    """Pixels of frames, by number, from a pass that wants just these."""
    wanted = sorted(numbers)
    return dict(
        decode_frames(content, found, lambda at: next((n for n in wanted if n >= at), None))
    )


@pytest.mark.parametrize("name", NAMES)
def test_frames_are_numbered_and_timed(name):
    """Every frame of a clip carries the number that belongs to the time that is told of it."""
    back = TURNS_BACK.get(name, lambda pixels: pixels)
    made, found = clip(name), header(name)
    frames = taken(made.content, found, range(len(found.times.ticks)))
    carried = [number_in(back(frames[n])) for n in sorted(frames)]
    assert [made.starts_s[n] for n in carried] == [found.times.seconds(n) for n in frames]
    if not made.is_cut:
        assert carried == list(range(len(made.starts_s)))


@pytest.mark.parametrize("name", NAMES)
def test_wanted_frames_are_those_of_a_whole_pass(name):
    """However frames are asked for, exactly those of a pass over everything are given."""
    made, found = clip(name), header(name)
    every = whole_pass(name)
    for label, wishes in WISHES.items():
        part = VideoPart(SOURCE, **wishes)
        chosen = choose_frames(found.times, part, CONFIG, found.key_frames)
        frames = taken(made.content, found, chosen)
        assert tuple(frames) == chosen, label
        assert all(np.array_equal(frames[n], every[n]) for n in chosen), label


def test_edited_clip_begins_where_its_list_says():
    """What an edit list leaves out is neither counted nor shown, though it is decoded."""
    found = header("edited")
    frames = taken(clip("edited").content, found, range(len(found.times.ticks)))
    assert [number_in(pixels) for pixels in frames.values()] == list(range(5, 40))


def test_first_of_several_picture_streams_is_taken():
    """Of several streams of moving pictures the first is the clip."""
    content = encoded("libx264", "matroska", before=["mjpeg"])
    found = probe_clip(content, CONFIG)
    assert (found.codec, len(found.times.ticks)) == ("mjpeg", 1)
    assert number_in(taken(content, found, [0])[0]) == 255


@pytest.mark.parametrize("name", ["one key frame", "slow"])
def test_decord_gives_what_av_gives(name):
    """Where decord is asked for and chosen, its frames are those of PyAV, bit for bit."""
    found = header(name, DECORD)
    assert found.decoder == "decord"
    frames = taken(clip(name).content, found, range(0, len(found.times.ticks), 7))
    assert frames
    assert all(np.array_equal(frames[n], whole_pass(name)[n]) for n in frames)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("one key frame", "slow")]
)
def test_decord_is_not_chosen_for_what_it_reads_wrong(name):
    """Turned, late, deep and damaged clips, other codecs, clips to seek in are PyAV's."""
    assert header(name, DECORD).decoder == "av"


def test_decord_that_disagrees_is_not_believed():
    """Where decord tells other times than the header, PyAV decodes the clip."""
    found = header("one key frame", DECORD)
    shifted = replace(found.times, tick_s=found.times.tick_s * 2)
    frames = taken(clip("one key frame").content, replace(found, times=shifted), [9])
    assert number_in(frames[9]) == 9


def test_decord_is_not_used_unless_asked_for():
    """PyAV decodes by default."""
    assert header("one key frame").decoder == "av"


@pytest.mark.parametrize("fact", [0, 3, 15, 200])
def test_colours_without_meaning_are_ignored(fact):
    """Frames whose table of colours does not fit their layout are shown all the same."""
    content = bytearray(clip("prores").content)
    at = content.find(b"icpf")
    while at >= 0:
        content[at + 18 : at + 21] = bytes([fact]) * 3
        at = content.find(b"icpf", at + 1)
    found = probe_clip(bytes(content), CONFIG)
    frames = taken(bytes(content), found, [0, 9, 25])
    assert [number_in(pixels) for pixels in frames.values()] == [0, 9, 25]


def test_other_decoders_are_refused():
    """The setting names one of the two libraries."""
    with pytest.raises(BadRequest, match="allowed is av, decord"):
        MediaConfig(clip_decoder="ffmpeg")
