"""Which decoder serves, and what is said between parent and child."""

import socket
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
from plan.vision.making import brightening, clip_of, new_plane, noise, pixels_of, saved

from mmserve.core import BadRequest, BytesSource, ImagePart, MediaConfig
from mmserve.vision.children import decoders as decoders_module
from mmserve.vision.children.decoders import InThreads, new_decoder
from mmserve.vision.children.line import Line, packed, unpacked
from mmserve.vision.children.pool import shared_children
from mmserve.vision.header import PictureHeader
from mmserve.vision.video import probe_clip
from mmserve.vision.wishes import Wishes


def test_isolation_falls_back_where_children_cannot_be(monkeypatch, caplog):
    """A platform without children decodes in threads, and the log says so."""
    monkeypatch.setattr(decoders_module, "can_start", lambda: False)
    decoders_module._warn_once.cache_clear()
    assert isinstance(new_decoder(MediaConfig()), InThreads)
    assert "isolation='thread'" in caplog.text
    assert isinstance(new_decoder(MediaConfig(isolation="thread")), InThreads)


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_both_ways_serve(isolation):
    """A plane gives the same pixels with either setting."""
    plane = new_plane(isolation=isolation)
    part = ImagePart(BytesSource(saved(noise(6, 5))))
    (pixels,) = pixels_of(plane, plane.resolve(part, salt="", index=0).items)
    plane.close()
    assert np.array_equal(noise(6, 5), pixels)


@pytest.mark.parametrize(
    "settings",
    [
        {"isolation": "container"},
        {"decode_timeout_s": 0},
        {"clip_timeout_s": -1},
        {"decode_memory_bytes": 1},
        {"workers": 0},
    ],
)
def test_settings_without_meaning_are_refused(settings):
    """Limits with which nothing could be decoded are refused by name."""
    with pytest.raises(BadRequest, match=next(iter(settings))):
        MediaConfig(**settings)


def test_planes_use_the_children_of_the_process():
    """A plane's pictures are decoded by the shared children."""
    plane = new_plane()
    part = ImagePart(BytesSource(saved(noise(6, 5))))
    pixels_of(plane, plane.resolve(part, salt="", index=0).items)
    plane.close()
    assert shared_children().counters().num_alive >= 1


def test_values_travel_whole():
    """Headers, times and limits arrive equal to what was sent."""
    config = MediaConfig(allowed_hosts=("a", "b"), max_aspect_ratio=1.5)
    clip = probe_clip(clip_of(brightening(3)), config)
    header = PictureHeader("PNG", 3, 4, 6)
    message = {"config": config, "clip": clip, "header": header, "time": Fraction(1, 3)}
    actual = unpacked(packed(message))
    assert actual["config"] == config
    assert actual["header"] == header
    assert actual["time"] == Fraction(1, 3)
    for spec in fields(clip.times):
        expected, found = (
            getattr(clip.times, spec.name),
            getattr(actual["clip"].times, spec.name),
        )
        assert tuple(expected) == found if spec.name == "ticks" else expected == found


@pytest.mark.parametrize(
    "line",
    [b"", b"[1]", b"{", b'{"a":{"is":"os.system"}}', b'{"a":{"is":"PictureHeader","x":1}}'],
)
def test_messages_of_no_known_kind_are_refused(line):
    """Only listed kinds are made from what a child sends."""
    with pytest.raises(ValueError, match=r"message|JSON|Expecting"):
        unpacked(line)


def test_the_end_of_a_line_is_seen():
    """Who listens to a closed line is told at once."""
    ours, theirs = socket.socketpair()
    line = Line(ours)
    theirs.sendall(b'{"a":1}\n{"b"')
    theirs.close()
    assert line.receive(1) == {"a": 1}
    with pytest.raises(EOFError):
        line.receive(1)
    ours.close()


def test_wishes_are_sorted_and_told():
    """Wishes come rising, none twice, and a listener hears of each new one."""
    wishes, told = Wishes([5, 2, 5]), []
    wishes.listen(lambda: told.append(1))
    for number in (3, 5, 9):
        wishes.add(number)
    wishes.remove(3)
    assert (wishes.all_from(0), wishes.next_from(6), wishes.next_from(10)) == (
        [2, 5, 9],
        9,
        None,
    )
    assert len(told) == 2
