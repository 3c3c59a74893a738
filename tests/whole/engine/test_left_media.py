"""Media that nobody needs any more, and clips that others do not wait for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from plan.vision.making import brightening, clip_of
from whole.engine.test_early import settings
from whole.engine.test_engine import ask, picture

from mmserve.core import BytesSource, TextPart, VideoPart
from mmserve.engine import Engine, collect

CLIP = VideoPart(BytesSource(clip_of(brightening(10))), num_frames=4)


class Gate:
    """Stands before the decoder's passes or looks, and lets the first in when it is opened."""

    def __init__(self, work) -> None:
        self.work = work
        self.came = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *args):
        """The work, once the gate is open."""
        self.came.set()
        self.opened.wait(30)
        return self.work(*args)


@pytest.fixture
def fresh(tiny_directory) -> Iterator[Engine]:
    """An engine of its own."""
    with Engine.from_config(settings(tiny_directory)) as engine:
        yield engine


def test_a_cancelled_request_stops_its_decoding(fresh: Engine, monkeypatch) -> None:
    """A clip that only a cancelled request needed is not decoded; asked again, it is."""
    decoder = fresh._parts.plane._decoder
    gate = Gate(decoder.frames)
    monkeypatch.setattr(decoder, "frames", gate)
    ticket = ask(fresh, CLIP, TextPart("What?"))
    assert gate.came.wait(30)
    ticket.cancel()
    assert fresh._loop.call(lambda: fresh._parts.plane._pool._waiting).result() == {}
    gate.opened.set()
    assert collect(ask(fresh, CLIP, TextPart("What?")).outputs()).text


def test_what_another_request_needs_is_decoded_on(fresh: Engine, monkeypatch) -> None:
    """One of two requests for a clip leaves; the other gets its frames from the same pass."""
    decoder = fresh._parts.plane._decoder
    gate = Gate(decoder.frames)
    monkeypatch.setattr(decoder, "frames", gate)
    leaving = ask(fresh, CLIP, TextPart("What?"))
    staying = ask(fresh, CLIP, TextPart("Where?"))
    assert gate.came.wait(30)
    leaving.report(), staying.report()
    leaving.cancel()
    fresh._loop.call(lambda: None).result()
    gate.opened.set()
    assert collect(staying.outputs()).text
    assert fresh.counters()["media_decodes_total"] == 1


def test_pictures_do_not_wait_for_looks_at_clips(fresh: Engine, monkeypatch) -> None:
    """More clips being looked at than there are threads keep no picture from its answer."""
    decoder = fresh._parts.plane._decoder
    gate = Gate(decoder.clip)
    monkeypatch.setattr(decoder, "clip", gate)
    clips = [ask(fresh, VideoPart(BytesSource(clip_of(brightening(2 + n))))) for n in range(10)]
    assert gate.came.wait(30)
    assert collect(ask(fresh, picture(1), TextPart("Which?")).outputs()).text
    gate.opened.set()
    for ticket in clips:
        collect(ticket.outputs())
