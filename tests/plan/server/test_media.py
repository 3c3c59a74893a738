"""Pictures and clips as clients name them."""

from __future__ import annotations

import base64
import io
import random

import pytest
from PIL import Image

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    ImagePart,
    MediaRefused,
    UrlSource,
    VideoPart,
)
from mmserve.server.frames import split_frames
from mmserve.server.media import MediaDefaults, address, clip_item, decode_base64, picture_item


def encoded(kind: str, seed: int, **options: object) -> bytes:
    """A noisy picture as a file, so that coded data holds every byte."""
    noise = random.Random(seed).randbytes(24 * 24 * 3)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (24, 24), noise).save(buffer, kind, **options)
    return buffer.getvalue()


def b64(content: bytes) -> str:
    """Bytes as base64."""
    return base64.b64encode(content).decode()


FRAMES = [
    encoded("PNG", 1),
    encoded("JPEG", 2, quality=95),
    encoded("JPEG", 3, progressive=True, quality=90),
    encoded("JPEG", 4, restart_marker_blocks=1),
    encoded("PNG", 5),
]


def test_frames_in_a_row_are_split() -> None:
    """PNG and JPEG files one after another come apart as they were."""
    assert split_frames(b"".join(FRAMES), "video") == FRAMES


@pytest.mark.parametrize("number", range(5))
def test_cut_frames_are_refused(number: int) -> None:
    """A picture without its end is refused, wherever it is cut."""
    for length in (1, 9, len(FRAMES[number]) // 2, len(FRAMES[number]) - 1):
        with pytest.raises(MediaRefused):
            split_frames(FRAMES[number][:length], "video")


def test_strange_bytes_are_refused() -> None:
    """What follows a picture must be a picture."""
    with pytest.raises(MediaRefused):
        split_frames(FRAMES[0] + b"GIF89a", "video")


@pytest.mark.parametrize("length", range(1, 9))
def test_base64_may_lack_padding(length: int) -> None:
    """Padded, unpadded and URL-safe text give the same bytes."""
    content = bytes(range(250, 250 + min(length, 6))) + bytes(length)
    words = b64(content)
    safe = words.replace("+", "-").replace("/", "_")
    assert decode_base64(words, "x") == content
    assert decode_base64(words.rstrip("="), "x") == content
    assert decode_base64(safe, "x") == content


@pytest.mark.parametrize("words", ["AA*A", "A", "AAAA AAAA", "", "=", "é"])
def test_other_characters_are_no_base64(words: str) -> None:
    """Nothing is skipped in silence."""
    with pytest.raises(BadRequest):
        decode_base64(words, "x")


@pytest.mark.parametrize(
    "url",
    ["/etc/passwd", "./x.png", "~/.ssh/id_rsa", "C:\\x.png", "\\\\h\\x.png", "ftp://x/", ""],
)
def test_paths_are_no_addresses(url: str) -> None:
    """Only http, https, data and file addresses are; the rest is refused without an echo."""
    with pytest.raises(BadRequest) as caught:
        address(url, "image_url")
    assert caught.value.param == "image_url"
    assert not url or url not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h/x", "HTTPS://h/x", "data:,x", "file:///x"])
def test_addresses_pass(url: str) -> None:
    """Whether they may be fetched is for the guards to say."""
    assert address(url, "x") == url
    assert MediaDefaults().address(url, "x") == UrlSource(url)


def test_picture_items() -> None:
    """Base64, an address, an object with bounds, and frames that are a clip."""
    png = FRAMES[0]
    assert picture_item(b64(png), "x") == ImagePart(BytesSource(png))
    assert picture_item("http://h/x", "x") == ImagePart(UrlSource("http://h/x"))
    sized = picture_item({"url": b64(png), "max_pixels": 9, "min_pixels": None}, "x")
    assert sized == ImagePart(BytesSource(png), 9, None)
    clip = picture_item("video:" + b64(png + png), "x")
    assert clip == VideoPart(FramesSource((BytesSource(png), BytesSource(png))))


def test_clip_items() -> None:
    """An address with a window, or frames whose rate is `fps`."""
    window = clip_item({"url": "http://h/c", "fps": 2, "start_s": 1, "end_s": 3}, "x")
    assert window == VideoPart(UrlSource("http://h/c"), None, 2.0, 1.0, 3.0)
    png = FRAMES[0]
    uri = f"data:image/png;base64,{b64(png)}"
    frames = clip_item({"frames": [b64(png), uri], "fps": 4, "num_frames": 2}, "x")
    pair = (BytesSource(png), BytesSource(png))
    assert frames == VideoPart(FramesSource(pair, 4.0), num_frames=2)


@pytest.mark.parametrize(
    "item",
    [
        5,
        {},
        {"url": 5},
        {"url": "http://h/c", "start_s": 3, "end_s": 3},
        {"url": "http://h/c", "num_frames": 0},
        {"url": "http://h/c", "times_s": [1, -1]},
        {"url": "http://h/c", "times_s": 3},
        {"url": "http://h/c", "times_s": [1], "num_frames": 2},
        {"url": "http://h/c", "key_frames": 1},
        {"url": "http://h/c", "fps": 0},
        {"url": "http://h/c", "start_s": -1},
        {"url": "http://h/c", "frames": ["AAAA"]},
        {"url": "http://h/c", "speed": 2},
        {"frames": []},
        {"frames": ["*"]},
    ],
)
def test_wrong_clips_are_refused(item: object) -> None:
    """Empty windows, odd values, both sources at once, unknown fields."""
    with pytest.raises(BadRequest):
        clip_item(item, "x")


def test_own_values_come_first() -> None:
    """A body's values hold where an item says nothing."""
    body = MediaDefaults(num_frames=4, max_pixels=100)
    clip = clip_item({"url": "http://h/c", "num_frames": 2}, "x", body)
    assert (clip.num_frames, clip.max_pixels) == (2, 100)


def test_a_clips_moments_may_be_named():
    """Times replace what the request says of all clips; key frames go along with it."""
    body = MediaDefaults(num_frames=4, fps=2.0)
    named = clip_item({"url": "http://h/c", "times_s": [0, 2.5]}, "x", body)
    assert named == VideoPart(UrlSource("http://h/c"), times_s=(0.0, 2.5))
    keys = clip_item({"url": "http://h/c", "key_frames": True}, "x", body)
    assert keys == VideoPart(UrlSource("http://h/c"), 4, 2.0, key_frames=True)
