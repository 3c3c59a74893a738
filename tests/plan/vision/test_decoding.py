"""Pixels on demand: who waits for whom, what ends with whom, what is held."""

import threading
from dataclasses import replace

import pytest
from plan.vision.making import (
    Answers,
    RawProcessor,
    brightening,
    clip_of,
    flat,
    new_plane,
    noise,
    pixels_of,
    saved,
)

from mmserve.core import Aborted, BytesSource, ImagePart, MediaConfig, PathSource, VideoPart
from mmserve.vision import plane as plane_module
from mmserve.vision.refusal import refused
from mmserve.vision.video import probe_clip
from mmserve.vision.wishes import Wishes

CLIP = BytesSource(clip_of(brightening(10)))


class HeldDecoder:
    """A decoder whose passes wait behind frame 5 until `gate` opens, and fail at frame 9."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waits = threading.Semaphore(0)
        self.wishes: list[Wishes] = []

    def warm(self) -> None:
        """Nothing needs to start."""

    def header(self, content, name):
        """No format of these tests needs a library."""
        raise AssertionError(name)

    def picture(self, content, header):
        """Black pixels."""
        return flat(header.height, header.width, (0, 0, 0))

    def clip(self, content):
        """The header as it is."""
        return probe_clip(content, MediaConfig())

    def frames(self, content, clip, wishes):
        """Black frames."""
        self.wishes.append(wishes)
        position = 0
        while (number := wishes.next_from(position)) is not None:
            if number == 9:
                raise refused("undecodable", "crashed")
            yield number, flat(clip.height, clip.width, (0, 0, 0))
            position = number + 1
            if number == 5:
                self.waits.release()
                self.gate.wait(10)


@pytest.fixture
def held(monkeypatch):
    """A plane of one worker with such a decoder, and the decoder."""
    decoder = HeldDecoder()
    monkeypatch.setattr(plane_module, "new_decoder", lambda config: decoder)
    plane = new_plane(workers=1)
    yield plane, decoder
    decoder.gate.set()
    plane.close()


def at(plane, *times_s: float):
    """Frames of the clip, five a second."""
    return plane.resolve(VideoPart(CLIP, times_s=times_s), salt="", index=0).items


def picture(plane, seed: int = 0):
    """A small picture."""
    part = ImagePart(BytesSource(saved(noise(6, 5, seed))))
    return plane.resolve(part, salt="", index=0).items


def asked(plane, items) -> Answers:
    """Who waits for items."""
    answers = Answers()
    plane.request_pixels(items, answers)
    return answers


def test_pictures_do_not_wait_for_clips(held):
    """A picture is decoded while passes over clips take all the workers that they may."""
    plane, decoder = held
    asked(plane, at(plane, 1.0))
    assert decoder.waits.acquire(timeout=10)
    pixels_of(plane, picture(plane))


def test_a_pass_fails_nobody_who_came_too_late_for_it(held):
    """A frame wanted when the pass had gone by it is served by the next one, not refused."""
    plane, decoder = held
    first = asked(plane, at(plane, 1.0, 1.8))
    assert decoder.waits.acquire(timeout=10)
    late = asked(plane, at(plane, 0.0))
    decoder.gate.set()
    late.wait(1), first.wait(2)
    assert (len(late.errors), len(first.errors)) == (0, 1)
    assert plane.counters().num_clip_passes == 2


def test_a_picture_that_stands_twice_in_an_item_is_decoded_once():
    """A still in a group of two frames is decoded once, and given twice."""

    class InPairs(RawProcessor):
        def clip(self, frames, bounds):
            """The first frame, twice."""
            plan = self.picture(frames[0].width, frames[0].height, bounds)
            return (replace(plan, frames=(0, 0)),)

    plane = new_plane(InPairs())
    still = VideoPart(BytesSource(saved(noise(6, 5))))
    pixels_of(plane, plane.resolve(still, salt="", index=0).items)
    plane.close()
    assert plane.counters().num_pictures == 1


def test_requests_for_one_file_hold_its_bytes_once(tmp_path):
    """Items of several requests share one content, which is let go with the last of them."""
    clip, still = tmp_path / "a.mp4", tmp_path / "a.png"
    clip.write_bytes(CLIP.content)
    still.write_bytes(saved(noise(6, 5)))
    plane = new_plane(media_folder=str(tmp_path))
    for part in (VideoPart(PathSource(str(clip))), ImagePart(PathSource(str(still)))):
        items = [plane.resolve(part, salt=salt, index=0).items for salt in ("a", "b")]
        contents = {
            id(content) for one in items for item in one for content in item.origin.contents
        }
        assert len(contents) == 1
        assert len(plane._files) >= 1
    del items
    assert len(plane._files) == 0
    plane.close()


def test_a_pass_ends_when_nobody_needs_its_frames(held):
    """Frames let go are not decoded; asked for again, they come from a pass of their own."""
    plane, decoder = held
    items = at(plane, 1.0, 1.4)
    gone = asked(plane, items)
    assert decoder.waits.acquire(timeout=10)
    gone.wait(1)
    assert plane.let_go([item.digest for item in items]) == [items[1].digest]
    assert decoder.wishes[0].is_over
    again = asked(plane, items[1:])
    decoder.gate.set()
    again.wait(1)
    assert (len(gone.calls), len(again.inputs)) == (1, 1)


def test_letting_go_leaves_what_others_need(held):
    """A frame that is let go does not take other frames of its clip with it."""
    plane, decoder = held
    items = at(plane, 1.0, 1.2, 1.4)
    answers = asked(plane, items)
    assert decoder.waits.acquire(timeout=10)
    plane.let_go([items[1].digest])
    decoder.gate.set()
    answers.wait(2)
    assert set(answers.inputs) == {items[0].digest, items[2].digest}
    assert plane.counters().num_clip_passes == 1


def test_pictures_let_go_are_not_decoded():
    """A picture that waits for a worker and that nobody needs any more is left out."""
    processor = RawProcessor()
    plane = new_plane(processor, workers=1)
    processor.gate.clear()
    first = asked(plane, picture(plane, 0))
    assert processor.started.acquire(timeout=10)
    second, third = picture(plane, 1), picture(plane, 2)
    asked(plane, second)
    last = asked(plane, third)
    assert plane.let_go([second[0].digest, b"unknown"]) == [second[0].digest]
    processor.gate.set()
    first.wait(1), last.wait(1)
    plane.close()
    assert plane.counters().num_pictures == 2


def test_closing_does_not_wait_for_the_end_of_a_clip(held):
    """A pass is left where it stands; frames that had not come are aborted."""
    plane, decoder = held
    answers = asked(plane, at(plane, 1.0, 1.4))
    assert decoder.waits.acquire(timeout=10)
    threading.Timer(0.05, decoder.gate.set).start()
    plane.close()
    assert [type(error) for error in answers.errors.values()] == [Aborted]
    assert len(answers.inputs) == 1


def test_nothing_is_wanted_after_the_end():
    """Wishes that have ended are empty, and who listens was told."""
    told = []
    wishes = Wishes([3, 5])
    wishes.listen(lambda: told.append(1))
    wishes.end()
    wishes.remove(3)
    assert (wishes.all_from(0), told, wishes.is_over) == ([], [1], True)
