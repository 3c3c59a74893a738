"""A server that a program starts: the same answers, and gone with whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import mmserve as sgl
from mmserve.core import BackendFailed, BadRequest
from mmserve.lang import Runtime
from mmserve.testing import scene

SMALL = {"threads": 1, "num_slots": 4096}
_LIMIT_S = 60.0


@sgl.function
def ask(s, picture):
    """A turn with a picture, an answer, a second one with a choice."""
    s += sgl.user(sgl.image(picture) + "How many objects are there?")
    s += sgl.assistant(sgl.gen("count", max_tokens=8, temperature=0))
    s += sgl.user("Is there a cross?")
    s += sgl.assistant(sgl.select("cross", ["yes", "no"]))


def servers() -> list[int]:
    """Process ids of the servers that this process has started and that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # ended meanwhile
        if b"mmserve.lang.lifeline" in words and parent == os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """A server of the embedded model."""
    with Runtime("tabletop", **SMALL) as runtime:
        yield runtime


def test_it_answers_as_the_engine_in_this_process(runtime):
    """Text, choice and prompt length of a program with a picture."""
    picture = scene(7).image
    told = ask.run(picture, backend=runtime)
    with sgl.Engine(model="tabletop", **SMALL) as engine:
        expected = ask.run(picture, backend=engine)
        expected.sync()

    for name in ("count", "cross"):
        assert told[name] == expected[name]
        meta, other = told.get_meta_info(name), expected.get_meta_info(name)
        assert meta["prompt_tokens"] == other["prompt_tokens"]


def test_it_is_a_backend_like_its_endpoint(runtime):
    """Both can be the default backend, and tell about the same server."""
    picture = scene(8).image
    try:
        sgl.set_default_backend(runtime)
        by_runtime = ask.run(picture)["count"]
        info = sgl.get_server_info()
        sgl.set_default_backend(runtime.endpoint)
        by_endpoint = ask.run(picture)["count"]
    finally:
        sgl.set_default_backend(None)

    assert by_runtime == by_endpoint
    assert info["model_path"] == sgl.get_server_info(runtime)["model_path"]
    assert sgl.flush_cache(runtime)
    assert runtime.name == runtime.url == runtime.endpoint.name


@pytest.mark.slow
def test_shutdown_ends_the_process(tiny_directory):
    """Once and for all: a second one does nothing, calls fail, no process is left."""
    before = servers()
    runtime = Runtime(tiny_directory, api_key="open", **SMALL)
    (pid,) = set(servers()) - set(before)
    state = ask.run(scene(9).image, backend=runtime)
    state.sync()
    runtime.shutdown()
    runtime.shutdown()

    assert pid not in servers()
    with pytest.raises(BackendFailed, match="shut down"):
        sgl.get_server_info(runtime)
    with pytest.raises(BackendFailed, match="shut down"):
        ask.run(scene(9).image, backend=runtime)["count"]


@pytest.mark.slow
def test_it_ends_with_the_object(tiny_directory):
    """A program that forgets its runtime leaves no process."""
    before = servers()
    runtime = Runtime(tiny_directory, **SMALL)
    assert len(servers()) == len(before) + 1
    del runtime

    assert servers() == before


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_it_ends_with_its_parent(tiny_directory, ending):
    """A program that ends, or is killed, takes its server with it."""
    code = f"""
import sys
from mmserve.lang import Runtime
runtime = Runtime({str(tiny_directory)!r}, threads=1, num_slots=4096)
print(runtime.url, flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True
    ) as parent:
        url = parent.stdout.readline().strip()
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        if ending == "kill":
            parent.kill()
        parent.communicate()

    deadline = time.monotonic() + _LIMIT_S
    with pytest.raises(httpx.HTTPError):
        while time.monotonic() < deadline:
            httpx.get(f"{url}/health", trust_env=False)
            time.sleep(0.02)


def test_an_unknown_flag_is_refused_by_name():
    """What the command line says is told, and no process is left."""
    before = servers()
    with pytest.raises(BadRequest, match="--unheard-of"):
        Runtime(unheard_of=3)

    assert servers() == before


def test_a_server_that_ends_tells_why():
    """The end of its output is in the message."""
    with pytest.raises(BackendFailed, match="no/such/model"):
        Runtime("no/such/model")


def test_a_server_that_is_late_is_ended():
    """After `launch_timeout_s`; no process is left."""
    before = servers()
    with pytest.raises(BackendFailed, match="not ready in time"):
        Runtime("tabletop", launch_timeout_s=0.01, **SMALL)

    assert servers() == before
