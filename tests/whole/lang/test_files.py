"""Pictures that a program uses many times cross the wire once, on a real engine and server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image
from support.live import strict_series
from support.oracle import png

import mmserve as sgl
from mmserve.engine import Engine
from mmserve.lang import ClientBackend

NOISE = np.random.default_rng(3).integers(0, 256, (2, 48, 64, 3), dtype=np.uint8)
PICTURE, OTHER = (png(Image.fromarray(pixels)) for pixels in NOISE)


@pytest.fixture
def endpoint(server_url: str) -> Iterator[sgl.RuntimeEndpoint]:
    """An endpoint that has uploaded nothing yet."""
    backend = sgl.RuntimeEndpoint(server_url)
    yield backend
    backend.close()


def told(url: str) -> dict[str, float]:
    """What the server counts now."""
    return strict_series(httpx.get(f"{url}/metrics").text)


@sgl.function
def interview(s, picture):
    """One picture, three answers, one choice."""
    s += sgl.user(sgl.image(picture) + "What is it?")
    s += sgl.assistant(sgl.gen("a", max_tokens=4))
    s += sgl.user("Is it round?") + sgl.assistant(sgl.select("c", ["yes", "no"]))
    s += sgl.user("Why?") + sgl.assistant(sgl.gen("b", max_tokens=4))
    s += sgl.user("Sure?") + sgl.assistant(sgl.gen("d", max_tokens=4))


@sgl.function
def watch(s, frames):
    """One clip of frames, two answers."""
    s += sgl.user(sgl.video(frames) + "What happens?")
    s += sgl.assistant(sgl.gen("a", max_tokens=4))
    s += sgl.user("And then?") + sgl.assistant(sgl.gen("b", max_tokens=4))


def test_one_picture_is_one_upload_and_one_decode(engine: Engine, server_url, endpoint) -> None:
    """Three answers and a choice about it, equal to those of the engine itself."""
    assert engine.flush_cache(timeout_s=5.0)
    before = told(server_url)
    text = interview.run(PICTURE, backend=endpoint, temperature=0).text()
    after = told(server_url)

    for name in ("file_uploads_total", "media_decodes_total", "encoded_items_total"):
        assert after[name] - before[name] == 1, name
    assert text == interview.run(PICTURE, backend=ClientBackend(engine), temperature=0).text()


def test_a_restarted_server_is_sent_the_picture_again(server_url, endpoint) -> None:
    """The program does not notice that all files are gone."""
    before = told(server_url)
    text = interview.run(PICTURE, backend=endpoint, temperature=0).text()
    for file in httpx.get(f"{server_url}/v1/files").json()["data"]:
        httpx.delete(f"{server_url}/v1/files/{file['id']}")

    assert interview.run(PICTURE, backend=endpoint, temperature=0).text() == text
    assert told(server_url)["file_uploads_total"] - before["file_uploads_total"] == 2


def test_frames_of_a_clip_are_named_and_answer_alike(
    engine: Engine, server_url, endpoint
) -> None:
    """Each distinct frame is uploaded once; the answers are those of the engine itself."""
    before = told(server_url)
    frames = [PICTURE, OTHER, PICTURE]
    text = watch.run(frames, backend=endpoint, temperature=0).text()

    assert told(server_url)["file_uploads_total"] - before["file_uploads_total"] == 2
    assert text == watch.run(frames, backend=ClientBackend(engine), temperature=0).text()
