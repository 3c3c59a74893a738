"""Decoding in child processes: limits, crashes, and that nothing else is disturbed."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from plan.vision.making import (
    brightening,
    clip_of,
    hollow_png,
    noise,
    saved,
)

from mmserve.core import Broken, MediaConfig, MediaRefused
from mmserve.vision.children import process as process_module
from mmserve.vision.children.decoders import InThreads
from mmserve.vision.children.isolated import InChildren
from mmserve.vision.children.pool import Children, shared_children
from mmserve.vision.children.process import Child, Limits
from mmserve.vision.header import PictureHeader
from mmserve.vision.probe import probe_picture
from mmserve.vision.video import probe_clip
from mmserve.vision.wishes import Wishes

LIMITS = Limits(256 << 20, 30.0, 30.0)


@pytest.fixture
def children():
    """Children of the test's own."""
    own = Children()
    yield own
    own.close()


def decoder_of(children, **settings) -> InChildren:
    """A decoder in `children`."""
    return InChildren(MediaConfig(**settings), children)


def headed(content: bytes) -> tuple[bytes, PictureHeader]:
    """A picture file and its header."""
    return content, probe_picture(content, MediaConfig())


def is_running(process_id: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ended(process_id: int) -> bool:
    """Whether a process ends soon."""
    until = monotonic() + 10
    while is_running(process_id) and monotonic() < until:
        sleep(0.01)
    return not is_running(process_id)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF", "AVIF"])
def test_pixels_are_those_of_a_thread(name):
    """A child gives the pixels that decoding in this process gives."""
    content, header = headed(saved(noise(37, 53), name))
    expected = InThreads(MediaConfig()).picture(content, header)
    actual = decoder_of(shared_children()).picture(content, header)
    assert np.array_equal(expected, actual)
    assert actual.flags.writeable


def test_headers_come_from_children_only_for_formats_that_need_a_library():
    """JPEG, PNG, GIF, WebP, BMP and Netpbm are sized in this process, TIFF and AVIF are not."""
    asked = []

    def library(content, name):
        asked.append(name)
        return PictureHeader(name, 5, 6)

    for name in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "PPM", "TIFF", "AVIF"):
        probe_picture(saved(noise(6, 5), name), MediaConfig(), library)
    assert asked == ["TIFF", "AVIF"]


def test_clips_are_read_by_children():
    """Header and frames of a clip are those that reading it in this process gives."""
    content = clip_of(brightening(10))
    decoder, config = decoder_of(shared_children()), MediaConfig()
    clip = decoder.clip(content)
    assert clip == probe_clip(content, config)
    here = dict(_frames(InThreads(config), content, clip, (1, 4, 9)))
    there = dict(_frames(decoder, content, clip, (1, 4, 9)))
    assert list(here) == list(there) == [1, 4, 9]
    assert all(np.array_equal(here[number], there[number]) for number in here)


def _frames(decoder, content, clip, numbers):
    wishes = Wishes(numbers)
    for number, pixels in decoder.frames(content, clip, wishes):
        wishes.remove(number)
        yield number, pixels


def test_wishes_join_a_pass_while_it_waits_for_a_frame():
    """A number added while the child decodes is served by the same pass."""
    content = clip_of(brightening(40), options={"g": "100", "preset": "ultrafast"})
    decoder = decoder_of(shared_children())
    clip = decoder.clip(content)
    wishes, seen = Wishes([1]), []
    for number, _ in decoder.frames(content, clip, wishes):
        wishes.remove(number)
        seen.append(number)
        if number == 1:
            wishes.add(30)
        if number == 30:
            wishes.add(35)
            wishes.add(3)
    assert seen == [1, 30, 35]
    assert wishes.all_from(0) == [3]


def test_a_picture_that_needs_too_much_memory_is_refused(children):
    """A child that may take 16 MiB refuses a picture of 64 MB, and the next is served."""
    decoder = decoder_of(children, decode_memory_bytes=16 << 20)
    with pytest.raises(MediaRefused, match="within 16777216 bytes of memory") as caught:
        decoder.picture(*headed(hollow_png(4000, 4000, 8, 2)))
    assert caught.value.fields["reason"] == "undecodable"
    assert decoder.picture(*headed(saved(noise(6, 5)))).shape == (6, 5, 3)
    assert children.counters().num_started == 2


def test_a_child_that_hangs_is_killed(children):
    """A job over its time is refused, naming the limit; its process is gone, the next works."""
    decoder = decoder_of(children, decode_timeout_s=0.2)
    patient = decoder_of(children)
    patient.picture(*headed(saved(noise(6, 5))))
    (stopped,) = children.process_ids()
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(MediaRefused, match=r"within 0\.2 s, the limit") as caught:
        decoder.picture(*headed(saved(noise(6, 5))))
    assert caught.value.fields["limit_s"] == 0.2
    assert not is_running(stopped)
    assert patient.picture(*headed(saved(noise(6, 5)))).shape == (6, 5, 3)
    assert children.counters().num_lost == 1


def test_a_child_that_dies_ends_its_job_only(children, caplog):
    """A crash in the middle of a job refuses that file, saying how; other children go on."""
    content, header = headed(saved(noise(6, 5)))
    job = {"header": header}
    with caplog.at_level(logging.WARNING), children.lent() as other:
        with (
            pytest.raises(MediaRefused, match=r"crashed on it \(SIGKILL\)"),
            children.lent() as one,
        ):
            os.kill(_started(one), signal.SIGSTOP)
            one.give("picture", content, LIMITS, job)
            os.kill(one.process_id, signal.SIGKILL)
            one.listen()
        other.give("picture", content, LIMITS, job)
        assert other.listen() == {"shape": [6, 5, 3]}
    assert "ended while it decoded (SIGKILL)" in caplog.text


def _started(child: Child) -> int:
    """The number of a child that has done a job."""
    child.give("header", b"", LIMITS, {"name": "TIFF"})
    with pytest.raises(MediaRefused, match="cut short or damaged"):
        child.listen()
    return child.process_id


def test_a_child_that_died_while_it_waited_is_replaced(children):
    """A child lost between jobs costs no file its answer."""
    decoder = decoder_of(children)
    decoder.picture(*headed(saved(noise(6, 5))))
    (lost,) = children.process_ids()
    os.kill(lost, signal.SIGKILL)
    assert ended(lost)
    assert decoder.picture(*headed(saved(noise(6, 5)))).shape == (6, 5, 3)


def test_clips_have_a_limit_on_time_without_progress(children):
    """A pass that stands still is refused after decode_timeout_s."""
    content = clip_of(brightening(10))
    clip = decoder_of(children).clip(content)
    (process_id,) = children.process_ids()
    frames = decoder_of(children, decode_timeout_s=0.2).frames(content, clip, Wishes([2]))
    os.kill(process_id, signal.SIGSTOP)
    with pytest.raises(MediaRefused, match=r"within 0\.2 s"):
        next(frames)


def test_clips_have_a_limit_on_time_altogether(children):
    """A pass that goes on and on is refused after clip_timeout_s."""
    content = clip_of(brightening(10))
    clip = decoder_of(children).clip(content)
    (process_id,) = children.process_ids()
    frames = decoder_of(children, clip_timeout_s=0.1).frames(content, clip, Wishes([2]))
    os.kill(process_id, signal.SIGSTOP)
    with pytest.raises(MediaRefused, match=r"within 0\.1 s"):
        next(frames)


def test_leaving_a_pass_early_ends_its_child(children):
    """A pass that nobody waits for does not run on."""
    content = clip_of(brightening(10))
    decoder = decoder_of(children)
    clip = decoder.clip(content)
    (process_id,) = children.process_ids()
    frames = decoder.frames(content, clip, Wishes(range(10)))
    next(frames)
    frames.close()
    assert not is_running(process_id)


def test_children_are_shared_and_reused(children):
    """One picture after another needs one child, whoever decodes."""
    for _ in range(3):
        decoder_of(children).picture(*headed(saved(noise(6, 5))))
    assert children.counters().num_started == 1
    assert len(children.process_ids()) == 1


def test_children_that_wait_are_bounded(children):
    """After a rush no more children wait than the askers' workers may use."""
    decoder = decoder_of(children, workers=1)
    gate = threading.Barrier(5)

    def work() -> None:
        with children.lent():
            gate.wait(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.wait(10)
    for thread in threads:
        thread.join()
    assert decoder is not None
    assert (children.counters().num_started, len(children.process_ids())) == (4, 2)


def test_warming_starts_one_child_only(children):
    """A hint that something will be decoded starts a child if there is none."""
    children.warm()
    children.warm()
    assert children.counters().num_started == 1


def test_a_child_ends_after_many_jobs(children, monkeypatch):
    """What a library loses cannot pile up: a child serves a limited number of jobs."""
    monkeypatch.setattr("mmserve.vision.children.pool._MOST_JOBS", 2)
    decoder = decoder_of(children)
    for _ in range(5):
        decoder.picture(*headed(saved(noise(6, 5))))
    assert children.counters().num_started == 3
    assert children.counters().num_lost == 0


def test_a_child_sees_no_secrets(children, monkeypatch):
    """The environment of a child holds nothing but what it needs to run."""
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    decoder_of(children).picture(*headed(saved(noise(6, 5))))
    (process_id,) = children.process_ids()
    assert b"SECRET_TOKEN" not in Path(f"/proc/{process_id}/environ").read_bytes()


def test_files_of_a_job_do_not_stay(children):
    """The memory that a large picture travels through is given back."""
    decoder_of(children).picture(*headed(hollow_png(3000, 3000, 8, 2)))
    (process_id,) = children.process_ids()
    sizes = [path.stat().st_size for path in Path(f"/proc/{process_id}/fd").iterdir()]
    assert max(sizes) < 16 << 20


def test_children_end_with_their_parent():
    """A parent that is killed leaves no child behind."""
    code = (
        "import os, signal\n"
        "from mmserve.core import MediaConfig\n"
        "from mmserve.vision.children.decoders import new_decoder\n"
        "from mmserve.vision.children.pool import shared_children\n"
        "from mmserve.vision.header import PictureHeader\n"
        "new_decoder(MediaConfig()).warm()\n"
        "print(*shared_children().process_ids(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert ended(int(done.stdout))


def test_children_end_when_their_parent_ends_well():
    """A program that ends leaves no child behind, and says nothing about it."""
    code = (
        "from mmserve.core import MediaConfig\n"
        "from mmserve.vision.children.decoders import new_decoder\n"
        "from mmserve.vision.children.pool import shared_children\n"
        "new_decoder(MediaConfig()).warm()\n"
        "print(*shared_children().process_ids(), flush=True)\n"
    )
    words = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert not is_running(int(done.stdout))


def test_a_forked_process_leaves_children_alone(children):
    """What forgets its children starts its own, and does not end theirs."""
    decoder = decoder_of(children)
    decoder.picture(*headed(saved(noise(6, 5))))
    with children.lent() as child:
        children.forget()
        assert children.counters().num_alive == 0
        assert is_running(child.process_id)
        child.end()


def test_children_start_light(children):
    """A child has imported neither the house's front doors nor what talks to networks."""
    decoder_of(children).picture(*headed(saved(noise(6, 5))))
    (process_id,) = children.process_ids()
    maps = Path(f"/proc/{process_id}/maps").read_text()
    assert "PIL" in maps
    assert "torch" not in maps
    assert "ssl" not in maps
    assert "/av/" not in maps


def test_a_child_that_cannot_start_is_our_fault(children, monkeypatch):
    """A decoder that does not start is Broken, with the way out, and no refusal of the file."""
    monkeypatch.setattr(process_module, "_PROGRAM", Path(os.devnull))
    with pytest.raises(Broken, match="did not start") as caught:
        decoder_of(children).picture(*headed(saved(noise(6, 5))))
    assert "isolation='thread'" in caught.value.hint


def test_a_fault_in_a_child_is_broken_without_its_text(children, caplog):
    """A fault of ours in a child is told without its inner text, and logged with it."""
    with pytest.raises(Broken, match="an internal error") as caught, children.lent() as child:
        child.give("no such job", b"", LIMITS, {})
        child.listen()
    assert "no such job" not in str(caught.value)
    assert "no such job" in caplog.text
    assert children.counters().num_lost == 1


def test_files_on_disk_serve_where_memory_has_none(children, monkeypatch):
    """Without files in memory, content and pixels travel through nameless ones on disk."""

    def none(name):
        raise OSError("no such call")

    monkeypatch.setattr(process_module.os, "memfd_create", none)
    content, header = headed(saved(noise(6, 5)))
    assert np.array_equal(noise(6, 5), decoder_of(children).picture(content, header))


def test_ending_a_child_twice_is_harmless():
    """A child may be ended again."""
    child = Child()
    child.end()
    child.end()
    assert not child.is_alive()


def dying(monkeypatch, most: int) -> None:
    """The next `most` children die when they are given a picture or a pass."""
    give, left = Child.give, [most]

    def fatal(self, job, content, limits, values):
        if job in ("picture", "frames") and left[0]:
            left[0] -= 1
            self._await_start() if not self._is_ready else None
            os.kill(self.process_id, signal.SIGSTOP)
            give(self, job, content, limits, values)
            os.kill(self.process_id, signal.SIGKILL)
        else:
            give(self, job, content, limits, values)

    monkeypatch.setattr(Child, "give", fatal)


def test_a_file_is_not_blamed_for_a_child_that_others_have_harmed(children, monkeypatch):
    """A crash in a child that has served other files is tried once more in a fresh one."""
    decoder, picture = decoder_of(children), headed(saved(noise(6, 5)))
    decoder.picture(*picture)
    dying(monkeypatch, 1)
    assert np.array_equal(noise(6, 5), decoder.picture(*picture))
    assert (children.counters().num_started, children.counters().num_lost) == (2, 1)


def test_a_file_is_blamed_for_the_crash_of_a_fresh_child(children, monkeypatch):
    """A file under which a child crashes that has seen nothing else is refused."""
    decoder, picture = decoder_of(children), headed(saved(noise(6, 5)))
    decoder.picture(*picture)
    dying(monkeypatch, 9)
    with pytest.raises(MediaRefused, match="the decoder crashed on it"):
        decoder.picture(*picture)
    assert children.counters().num_lost == 2
    with pytest.raises(MediaRefused, match="the decoder crashed on it"):
        decoder.picture(*picture)
    assert children.counters().num_lost == 3


def test_a_pass_goes_on_in_a_fresh_child(children, monkeypatch):
    """Frames that a crashed child still owed come from another."""
    content = clip_of(brightening(10))
    decoder = decoder_of(children)
    clip = decoder.clip(content)
    dying(monkeypatch, 1)
    assert [number for number, _ in _frames(decoder, content, clip, (2, 7))] == [2, 7]
    assert children.counters().num_lost == 1


def test_a_machine_without_room_for_a_child_is_our_fault(children, monkeypatch, caplog):
    """A process that cannot be started is Broken; a hint of work to come only logs it."""

    def no_room(*args, **words):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(process_module.subprocess, "Popen", no_room)
    children.warm()
    assert "did not start" in caplog.text
    with pytest.raises(Broken, match="did not start"):
        decoder_of(children).picture(*headed(saved(noise(6, 5))))


@pytest.mark.parametrize(
    ("job", "answer"),
    [
        ("header", {"header": 5}),
        ("clip", {}),
        ("picture", {"shape": [1, 1, 3]}),
        ("frames", {"frame": "x", "offset": 0}),
        ("frames", {"frame": 1, "offset": -1}),
        ("frames", {"frame": 2, "offset": 0}),
        ("frames", {"frame": 1, "offset": 1 << 40}),
        ("frames", {"idle": "x"}),
        ("picture", {"refused": "no", "fields": 5}),
        ("picture", {"refused": "no"}),
    ],
)
def test_a_child_that_talks_nonsense_is_not_believed(children, monkeypatch, job, answer):
    """Answers that make no sense refuse the file and end the child."""
    content = clip_of(brightening(3))
    clip = probe_clip(content, MediaConfig())
    monkeypatch.setattr(Child, "_word", lambda self, **_: dict(answer))
    decoder = decoder_of(children)
    jobs = {
        "header": lambda: decoder.header(content, "TIFF"),
        "clip": lambda: decoder.clip(content),
        "picture": lambda: decoder.picture(*headed(saved(noise(6, 5)))),
        "frames": lambda: next(decoder.frames(content, clip, Wishes([1]))),
    }
    with pytest.raises(MediaRefused, match="cannot be decoded"):
        jobs[job]()
    assert children.process_ids() == ()
