"""How child processes begin and end, whatever state the process around them is in."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from plan.vision.making import brightening, clip_of, noise, saved
from plan.vision.test_children import LIMITS, decoder_of, ended, headed, is_running

from mmserve.core import Broken, MediaConfig, MediaRefused
from mmserve.vision.children import process as process_module
from mmserve.vision.children.decoders import InThreads, new_decoder
from mmserve.vision.children.pool import Children
from mmserve.vision.children.process import Child
from mmserve.vision.wishes import Wishes

PICTURE = headed(saved(noise(6, 5)))
BEGINNING = (
    "import json, os, sys\n"
    "from mmserve.core import MediaConfig\n"
    "from mmserve.vision.children.decoders import new_decoder\n"
    "from mmserve.vision.children.pool import shared_children\n"
    "from mmserve.vision.probe import probe_picture\n"
    "content = bytes.fromhex(sys.argv[1])\n"
    "def shown():\n"
    "    decoder = new_decoder(MediaConfig())\n"
    "    pixels = decoder.picture(content, probe_picture(content, MediaConfig()))\n"
    "    return [type(decoder).__name__, pixels.tolist()]\n"
)
EXPECTED = ["InChildren", noise(6, 5).tolist()]


@pytest.fixture
def children():
    """Children of the test's own."""
    own = Children()
    yield own
    own.close()


def said(code: str, *flags: str) -> tuple[str, str]:
    """What a program prints that can show a picture, and its complaints."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", BEGINNING + code, PICTURE[0].hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def num_descriptors() -> int:
    """Open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_children_work_where_the_standard_streams_are_closed():
    """A daemon without stdin, stdout and stderr decodes like any other process."""
    code = (
        "out = os.dup(1)\n"
        "os.closerange(0, 3)\n"
        "os.write(out, json.dumps(shown()).encode())\n"
        "os._exit(0)\n"
    )
    assert json.loads(said(code)[0]) == EXPECTED


@pytest.mark.parametrize("flag", ["-O", "-P", "-E"])
def test_children_work_under_flags_of_the_interpreter(flag):
    """How the interpreter was started makes no difference."""
    assert json.loads(said("print(json.dumps(shown()))\n", flag)[0]) == EXPECTED


def test_a_fork_has_children_of_its_own():
    """A forked process closes what it inherits of its parent's children, and says nothing."""
    code = (
        "first = shown()\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "if fork := os.fork():\n"
        "    os.waitpid(fork, 0)\n"
        "    print(json.dumps([first, shown(), shared_children().counters().num_started]))\n"
        "else:\n"
        "    assert len(os.listdir('/proc/self/fd')) < before\n"
        "    print(json.dumps(shown()), flush=True)\n"
    )
    output, complaints = said(code, "-Werror")
    forked, parent = map(json.loads, output.splitlines())
    assert (forked, parent) == (EXPECTED, [EXPECTED, EXPECTED, 1])
    assert complaints == ""


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_all_processes_leave_children_to_their_parent(which):
    """What a terminal or a service manager sends to a whole group ends no child's job."""
    child = Child()
    os.kill(child.process_id, which)
    child.give("picture", PICTURE[0], LIMITS, {"header": PICTURE[1]})
    os.kill(child.process_id, which)
    assert child.listen() == {"shape": [6, 5, 3]}
    child.end()


def test_starting_a_child_leaves_the_parents_signals_as_they_were():
    """The thread that starts a child can be interrupted as before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    Child().end()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_child_that_cannot_be_killed_holds_nobody_up(children, monkeypatch):
    """A job over its time is refused even if its child stands in the kernel."""
    decoder_of(children).picture(*PICTURE)
    (stuck,) = children.process_ids()
    os.kill(stuck, signal.SIGSTOP)
    monkeypatch.setattr(process_module, "_END_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: None)
    with pytest.raises(MediaRefused, match=r"within 0\.2 s"):
        decoder_of(children, decode_timeout_s=0.2).picture(*PICTURE)
    os.kill(stuck, signal.SIGKILL)
    assert ended(stuck)


def test_a_pass_ends_with_its_wishes(children):
    """A child that decodes what nobody wants any more is ended, whatever it is doing."""
    content = clip_of(brightening(10))
    decoder = decoder_of(children)
    clip = decoder.clip(content)
    (process_id,) = children.process_ids()
    os.kill(process_id, signal.SIGSTOP)
    wishes, began = Wishes([9]), monotonic()
    threading.Timer(0.05, wishes.end).start()
    assert list(decoder.frames(content, clip, wishes)) == []
    assert monotonic() - began < MediaConfig().decode_timeout_s
    assert not is_running(process_id)


def test_what_belongs_to_dead_children_is_freed_before_others_start(children, monkeypatch):
    """A child lost between jobs leaves no descriptor open, even if none takes its place."""
    before = num_descriptors()
    decoder_of(children).picture(*PICTURE)
    (lost,) = children.process_ids()
    os.kill(lost, signal.SIGKILL)
    assert ended(lost)

    def no_room(*args, **words):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(process_module.subprocess, "Popen", no_room)
    with pytest.raises(Broken, match="did not start"):
        decoder_of(children).picture(*PICTURE)
    assert num_descriptors() == before


def test_pictures_are_looked_at_beside_clips(children):
    """A look at a clip that takes long holds up no header of a picture."""
    decoder = decoder_of(children, workers=1)
    content = clip_of(brightening(3))
    decoder.clip(content)
    (process_id,) = children.process_ids()
    os.kill(process_id, signal.SIGSTOP)
    look = threading.Thread(target=decoder.clip, args=(content,))
    look.start()
    while children.process_ids():
        sleep(0.001)
    assert decoder.header(saved(noise(6, 5), "TIFF"), "TIFF").height == 6
    os.kill(process_id, signal.SIGCONT)
    look.join()


def test_paths_that_are_no_text_are_left_out(children, monkeypatch, tmp_path):
    """An import path that holds something else, which Python ignores, is no obstacle."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert np.array_equal(noise(6, 5), decoder_of(children).picture(*PICTURE))


@pytest.mark.parametrize("case", ["frozen", "archive"])
def test_an_application_in_one_file_decodes_in_threads(case, monkeypatch, tmp_path):
    """Where the interpreter is the application, or the package no folder, none is started."""
    if case == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:
        monkeypatch.setattr(process_module, "_PROGRAM", tmp_path / "a.zip" / "child.py")
    assert isinstance(new_decoder(MediaConfig()), InThreads)


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="needs Linux")
def test_the_kernel_ends_a_child_before_its_parent(children):
    """Where memory runs out, a child is the first to go."""
    with children.lent() as child:
        child.give("header", PICTURE[0], LIMITS, {"name": "PNG"})
        child.listen()
        score = Path(f"/proc/{child.process_id}/oom_score_adj").read_text().strip()
    assert score == "1000"
