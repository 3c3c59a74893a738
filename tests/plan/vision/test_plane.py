"""The media plane: header first, pixels on demand, once for all who ask."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from plan.vision.making import (
    Answers,
    RawProcessor,
    brightening,
    clip_of,
    flat,
    new_plane,
    noise,
    pixels_of,
    png_chunk,
    saved,
)

from mmserve.core import (
    Aborted,
    BadRequest,
    Broken,
    BytesSource,
    FramesSource,
    ImagePart,
    MediaRefused,
    UrlSource,
    VideoPart,
)
from mmserve.vision import MediaCounters
from mmserve.vision import plane as plane_module
from mmserve.vision import sources as sources_module
from mmserve.vision.facts import RecentFacts


@pytest.fixture
def gated():
    """A plane whose processor waits, its processor, and answers."""
    processor = RawProcessor()
    plane = new_plane(processor, workers=2)
    yield plane, processor
    processor.gate.set()
    plane.close()


def picture(seed: int = 0) -> ImagePart:
    """A small picture."""
    return ImagePart(BytesSource(saved(noise(6, 5, seed))))


def clip(**wishes) -> VideoPart:
    """Ten frames in two seconds."""
    return VideoPart(BytesSource(clip_of(brightening(10))), **wishes)


def resolved(plane, part, salt=""):
    """Items of a part."""
    return plane.resolve(part, salt=salt, index=0).items


def test_resolving_decodes_nothing(gated):
    """Identity, size and tokens of a picture need no pixels."""
    plane, _ = gated
    media = plane.resolve(picture(), salt="", index=0)
    (item,) = media.items
    assert (item.kind, item.width, item.height) == ("image", 5, 6)
    assert (item.num_tokens, item.num_patches, item.timestamp_s) == (30, 2, None)
    assert media.clip is None
    assert media.fetch_ms >= 0 <= media.probe_ms
    assert plane.counters() == MediaCounters(0, 0, 0, 0)


def test_frames_are_items_of_their_own(gated):
    """Each frame has its own identity, its time, and the clip's size."""
    plane, _ = gated
    media = plane.resolve(clip(num_frames=4), salt="", index=0)
    assert [item.timestamp_s for item in media.items] == [0.0, 0.6, 1.2, 1.8]
    assert media.clip.timestamps_s == (0.0, 0.6, 1.2, 1.8)
    assert len({item.digest for item in media.items}) == 4
    assert {(item.kind, item.width, item.height) for item in media.items} == {("video", 64, 48)}


def test_windows_and_rates_share_identities(gated):
    """A frame has one identity, whichever window or rate has led to it."""
    plane, _ = gated
    whole = {item.timestamp_s: item.digest for item in resolved(plane, clip(num_frames=10))}
    part = resolved(plane, clip(fps=2.5, start_s=0.5, end_s=1.5))
    assert [whole[item.timestamp_s] for item in part] == [item.digest for item in part]
    assert len(part) > 1


def test_frames_given_as_pictures_share_identities_with_pictures(gated):
    """A picture is one identity, sent alone or as a frame of a clip."""
    plane, _ = gated
    (alone,) = resolved(plane, picture())
    frames = VideoPart(FramesSource((picture().source, picture(1).source)))
    assert resolved(plane, frames)[0].digest == alone.digest


def test_headers_of_known_bytes_are_not_walked_again(gated, monkeypatch):
    """The same bytes are probed once, whoever sends them."""
    plane, _ = gated
    walked = []
    probe = plane_module.probe_picture
    monkeypatch.setattr(
        plane_module, "probe_picture", lambda *args: walked.append(1) or probe(*args)
    )
    for salt in ("a", "b", "a"):
        resolved(plane, picture(), salt)
    assert len(walked) == 1


def test_one_picture_asked_for_twice_is_decoded_once(gated):
    """Requests that arrive while a picture is being decoded wait for the same work."""
    plane, processor = gated
    processor.gate.clear()
    items = resolved(plane, picture())
    first, second = Answers(), Answers()
    plane.request_pixels(items, first)
    assert processor.started.acquire(timeout=10)
    plane.request_pixels(items * 2, second)
    processor.gate.set()
    first.wait(1), second.wait(1)
    digest = items[0].digest
    assert first.inputs[digest] is second.inputs[digest]
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert plane.counters() == MediaCounters(0, 1, 0, 1)


def test_results_are_not_kept(gated):
    """After delivery a picture that is asked for again is decoded again."""
    plane, _ = gated
    items = resolved(plane, picture())
    for _ in range(2):
        pixels_of(plane, items)
    assert plane.counters().num_pictures == 2


def test_inputs_are_read_only(gated):
    """What several receivers share, none can change."""
    plane, _ = gated
    (pixels,) = pixels_of(plane, resolved(plane, picture()))
    with pytest.raises(ValueError, match="read-only"):
        pixels[0] = 0


def test_frames_requested_together_need_one_pass(gated):
    """Frames of one clip are decoded in one pass, whatever their order and salt."""
    plane, _ = gated
    items = resolved(plane, clip(num_frames=4))[::-1] + resolved(plane, clip(num_frames=2), "b")
    frames = pixels_of(plane, items)
    brightness = [round(float(frame.mean()) / 25) for frame in frames]
    assert brightness == [9, 6, 3, 0, 0, 9]
    assert plane.counters() == MediaCounters(0, 0, 1, 4)


def test_frames_join_a_running_pass(gated):
    """Frames wanted later than where a pass stands join it; earlier ones take one more pass."""
    plane, processor = gated
    processor.gate.clear()
    frames = resolved(plane, clip(num_frames=10))
    answers = Answers()
    plane.request_pixels(frames[4:5], answers)
    assert processor.started.acquire(timeout=10)
    plane.request_pixels(frames[6:9], answers)
    processor.gate.set()
    answers.wait(4)
    assert plane.counters().num_clip_passes == 1
    processor.gate.clear()
    plane.request_pixels(frames[4:5], answers)
    assert processor.started.acquire(timeout=10)
    for _ in range(3):
        assert processor.started.acquire(timeout=10)
    plane.request_pixels(frames[:2], answers)
    processor.gate.set()
    answers.wait(7)
    assert plane.counters().num_clip_passes == 3
    assert answers.errors == {}


def test_two_clips_do_not_wait_for_each_other(gated):
    """A clip that is being decoded holds one worker; other media go on."""
    plane, processor = gated
    processor.gate.clear()
    answers = Answers()
    plane.request_pixels(resolved(plane, clip(num_frames=1)), answers)
    plane.request_pixels(resolved(plane, picture()), answers)
    for _ in range(2):
        assert processor.started.acquire(timeout=10)
    processor.gate.set()
    answers.wait(2)


def broken_png() -> bytes:
    """Right checksums, half of the pixels."""
    png = saved(noise(64, 64))
    start = png.index(b"IDAT") - 4
    return (
        png[:start]
        + png_chunk(b"IDAT", png[start + 8 : start + 2000])
        + png_chunk(b"IEND", b"")
    )


def test_each_waiter_gets_an_error_of_its_own(gated):
    """One failed decode tells every request which of its own parts failed."""
    plane, _ = gated
    parts = [ImagePart(BytesSource(broken_png())), VideoPart(BytesSource(broken_png()))]
    answers = [Answers(), Answers()]
    items = [
        plane.resolve(part, salt="", index=index).items
        for index, part in zip((0, 4), parts, strict=True)
    ]
    assert items[0][0].digest == items[1][0].digest
    for wanted, answer in zip(items, answers, strict=True):
        plane.request_pixels(wanted, answer)
    errors = [next(iter(answer.wait(1).errors.values())) for answer in answers]
    assert [str(error)[:7] for error in errors] == ["image 1", "video 5"]
    assert [error.fields["index"] for error in errors] == [0, 4]
    assert all(isinstance(error, MediaRefused) for error in errors)
    assert "Traceback" not in str(errors[0])


def test_failed_picture_may_be_asked_for_again(gated):
    """A failure is not remembered, and does not harm other media."""
    plane, _ = gated
    bad = resolved(plane, ImagePart(BytesSource(broken_png())))
    for _ in range(2):
        with pytest.raises(MediaRefused):
            pixels_of(plane, bad)
    assert len(pixels_of(plane, resolved(plane, picture()))) == 1


class FailingProcessor(RawProcessor):
    """Cannot process anything, and refuses bounds."""

    def picture(self, width, height, bounds):
        """Refuse any bound."""
        if bounds.max_pixels is not None:
            raise BadRequest("asks too much", field="max_pixels", reason="range")
        return super().picture(width, height, bounds)

    def inputs(self, frames, recipe):
        """Fail with something nobody should read."""
        raise RuntimeError("secret /path/to/a/file.py")


@pytest.mark.parametrize("part", [picture(), clip(num_frames=2)])
def test_internal_errors_are_typed(part, caplog):
    """A fault of ours reaches the receiver as Broken, without its inner text."""
    plane = new_plane(FailingProcessor())
    with pytest.raises(Broken) as caught:
        pixels_of(plane, resolved(plane, part))
    plane.close()
    assert "secret" not in str(caught.value)
    assert "decoding failed" in caplog.text


def test_bounds_are_checked_first():
    """Bounds that the processor cannot keep are refused, naming part and field."""
    plane = new_plane(FailingProcessor())
    with pytest.raises(BadRequest, match=r"^image 3 asks too much") as caught:
        plane.resolve(replace(picture(), max_pixels=1), salt="", index=2)
    plane.close()
    assert (caught.value.param, caught.value.fields["index"]) == ("max_pixels", 2)


def test_receiver_that_fails_harms_nobody(gated, caplog):
    """An exception in one receiver is logged; the others get their pixels."""
    plane, processor = gated
    processor.gate.clear()
    items = resolved(plane, picture())
    answers = Answers()

    def failing(*args) -> None:
        raise ValueError("no")

    plane.request_pixels(items, failing)
    plane.request_pixels(items, answers)
    processor.gate.set()
    answers.wait(1)
    assert "receiver of pixels failed" in caplog.text


def test_closing_answers_everyone():
    """Closing finishes what has begun and aborts the rest; afterwards requests are refused."""
    processor = RawProcessor()
    plane = new_plane(processor, workers=1)
    processor.gate.clear()
    answers = Answers()
    plane.request_pixels(resolved(plane, picture(0)), answers)
    assert processor.started.acquire(timeout=10)
    plane.request_pixels(resolved(plane, clip(num_frames=2)), answers)
    assert processor.started.acquire(timeout=10)
    waiting = resolved(plane, picture(1))
    plane.request_pixels(waiting, answers)
    threading.Timer(0.05, processor.gate.set).start()
    plane.close()
    plane.close()
    assert len(answers.calls) == 4
    assert [type(error) for error in answers.errors.values()] == [Aborted] * 2
    with pytest.raises(Aborted):
        plane.request_pixels(waiting, answers)


def test_many_threads_agree(gated):
    """Threads that ask for the same media get the same identities and pixels."""
    plane, _ = gated
    parts = [picture(seed) for seed in range(3)] + [clip(num_frames=3)]

    def work(number: int) -> tuple[list[bytes], list[int]]:
        items = [item for part in parts for item in resolved(plane, part)]
        return [item.digest for item in items], [int(p.sum()) for p in pixels_of(plane, items)]

    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(work, range(16)))
    assert all(one == seen[0] for one in seen)
    assert len(set(seen[0][0])) == 6


def test_frames_are_not_pictures(gated):
    """Frames of a clip given where a picture is expected are refused."""
    plane, _ = gated
    with pytest.raises(BadRequest, match=r"^image 1 is given as frames"):
        resolved(plane, ImagePart(FramesSource((picture().source,))))


def test_gif_is_a_picture_or_a_clip(gated):
    """A GIF is one picture as an image part, and all its frames as a video part."""
    plane, _ = gated
    source = BytesSource(clip_of(brightening(3), container="gif", codec="gif", layout="gray"))
    assert len(resolved(plane, ImagePart(source))) == 1
    frames = pixels_of(plane, resolved(plane, VideoPart(source)))
    assert [round(float(frame.mean()) / 25) for frame in frames] == [0, 1, 2]


def test_transparent_gif_frames_are_over_white(gated):
    """Transparent pixels of a GIF clip are white, as in a picture."""
    plane, _ = gated
    first = Image.fromarray(np.dstack([flat(8, 8, (255, 0, 0)), np.zeros((8, 8), np.uint8)]))
    second = Image.fromarray(
        np.dstack([flat(8, 8, (0, 0, 255)), np.full((8, 8), 255, np.uint8)])
    )
    content = saved(
        first, "GIF", save_all=True, append_images=[second], duration=100, disposal=2
    )
    frames = pixels_of(plane, resolved(plane, VideoPart(BytesSource(content))))
    assert np.array_equal(frames[0], flat(8, 8, (255, 255, 255)))


def test_memory_of_headers_is_bounded():
    """Facts are forgotten, least recently used first, when their weight is over the limit."""
    facts: RecentFacts[int] = RecentFacts(10)
    worked = []

    def get(name: bytes, weight: int) -> int:
        return facts.get(name, lambda: worked.append(name) or weight, lambda fact: fact)

    for name, weight in [(b"a", 4), (b"b", 4), (b"a", 4), (b"c", 4), (b"a", 4), (b"b", 4)]:
        assert get(name, weight) == weight
    assert worked == [b"a", b"b", b"c", b"b"]
    get(b"huge", 11)
    get(b"huge", 11)
    assert worked[-2:] == [b"huge", b"huge"]


def test_a_data_address_is_read_from_base64_once(gated, monkeypatch):
    """A text seen before is known without its bytes; its pixels still need them."""
    plane, _ = gated
    url = "data:image/png;base64," + base64.b64encode(saved(noise(6, 5))).decode()
    read = []
    original = sources_module.read_data_url
    monkeypatch.setattr(
        sources_module, "read_data_url", lambda *args: read.append(1) or original(*args)
    )
    first, second, third = (resolved(plane, ImagePart(UrlSource(url))) for _ in range(3))
    assert len(read) == 1
    assert first[0].digest == second[0].digest == resolved(plane, picture())[0].digest
    assert len(second[0].origin.contents[0]) == len(third[0].origin.contents[0])
    for items in (first, second):
        assert np.array_equal(noise(6, 5), pixels_of(plane, items)[0])
    assert len(read) == 3


def test_damaged_data_addresses_are_not_remembered(gated):
    """A text that could not be read is refused each time."""
    plane, _ = gated
    for _ in range(2):
        with pytest.raises(MediaRefused, match="base64"):
            resolved(plane, ImagePart(UrlSource("data:;base64,*")))


def asked_at_once(facts: RecentFacts[int], work) -> set[object]:
    """What four threads get that ask for one name while it is being worked out."""
    gate = threading.Event()

    def slow_work() -> int:
        gate.wait(10)
        return work()

    def ask() -> object:
        try:
            return facts.get(b"a", slow_work, lambda _: 1)
        except MediaRefused as error:
            return error.message

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        gate.set()
        return {one.result() for one in asked}


def test_facts_missed_at_a_time_are_worked_out_once():
    """Threads that ask for one new name share the work of the first."""
    worked = []
    assert asked_at_once(RecentFacts(10), lambda: worked.append(1) or 5) == {5}
    assert len(worked) == 1


def test_facts_that_failed_are_worked_out_again():
    """An error reaches all who waited for it, and whoever asks later tries again."""
    worked = []

    def work() -> int:
        worked.append(1)
        raise MediaRefused("is bad", reason="undecodable")

    facts: RecentFacts[int] = RecentFacts(10)
    assert asked_at_once(facts, work) == {"is bad"}
    count = len(worked)
    assert facts.get(b"a", lambda: 7, lambda _: 1) == 7
    assert 1 <= count <= 4
