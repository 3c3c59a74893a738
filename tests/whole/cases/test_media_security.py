"""What requests may make a server fetch, open, decode, log and say: the cases O-SEC-01 to 07.

Keys and routes, O-SEC-06, are beside the server's guard.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from plan.vision.conftest import LocalServer
from plan.vision.making import png_chunk
from support.oracle import Asker, Reply, data_uri, image_part, png, refused, same

import mmserve as sgl
from mmserve.core import EngineConfig, MediaConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

QUESTION = "What is it?"
PICTURE = png(Image.new("RGB", (56, 56), "red"))


@contextlib.contextmanager
def serving(model: Path, **media: Any) -> Iterator[Asker]:
    """A server of a test's own under these settings of the media plane."""
    config = EngineConfig(
        model=str(model),
        served_name="tiny",
        num_slots=4096,
        threads=1,
        verify_steps=True,
        media=MediaConfig(**media),
    )
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as up,
    ):
        asker = Asker(up.url)
        yield asker
        asker.close()


@pytest.fixture(scope="module")
def strict(tiny_directory: Path) -> Iterator[Asker]:
    """A server with the default guards."""
    with serving(tiny_directory) as asker:
        yield asker


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[LocalServer, LocalServer]]:
    """Two web servers: one that may be asked, as localhost, and one that may not."""
    permitted, secret = LocalServer(), LocalServer()
    yield permitted, secret
    permitted.close()
    secret.close()


@pytest.fixture(scope="module")
def listed(tiny_directory: Path, hosts) -> Iterator[Asker]:
    """A server that may ask one host on one port."""
    allowed = (f"localhost:{hosts[0].port}",)
    with serving(tiny_directory, allow_private_hosts=True, allowed_hosts=allowed) as asker:
        yield asker


def video_part(url: str) -> dict[str, Any]:
    """A clip as a content part."""
    return {"type": "video_url", "video_url": {"url": url}}


def in_chat(make: Callable[[str], dict[str, Any]]) -> Callable[[Asker, str], Reply]:
    """Asks about an address in a conversation."""
    return lambda ask, url: ask.chat(make(url), QUESTION)


def in_row(field: str, mark: str) -> Callable[[Asker, str], Reply]:
    """Asks about an address in the second row of a batch, whose first is harmless."""

    def send(ask: Asker, url: str) -> Reply:
        rows = [[data_uri(PICTURE)], [url]]
        texts = [f"{mark} {QUESTION}"] * 2
        sampling = {"max_new_tokens": 2, "temperature": 0}
        body = {"text": texts, field: rows, "sampling_params": sampling}
        return ask.post("/generate", body)

    return send


WAYS = {
    "image": in_chat(image_part),
    "video": in_chat(video_part),
    "image row": in_row("image_data", "<image>"),
    "video row": in_row("video_data", "<video>"),
    "part": lambda ask, url: ask.post("/generate", {"parts": [{"image": url}, {"text": "x"}]}),
}


def said(reply: Reply) -> str:
    """The message of a clear 4xx."""
    assert 400 <= reply.status < 500, reply.body
    message: str = reply.error["message"]
    assert len(message) <= 300
    return message


# --- O-SEC-01: redirects ---------------------------------------------------------------------

FORBIDDEN = {
    "/private": "http://127.0.0.1:{secret}/secret.png",
    "/metadata": "http://169.254.169.254/",
    "/file": "file:///etc/hostname",
    "/data": data_uri(PICTURE),
    "/ftp": "ftp://localhost/x.png",
    "/port": "http://localhost:{secret}/secret.png",
    "/broken": "http://[x/",
    "/loop": "/loop",
    **{f"/chain{n}": f"/chain{n + 1}" for n in range(15)},
}


@pytest.mark.parametrize("path", [path for path in FORBIDDEN if path[-1] not in "123456789"])
@pytest.mark.parametrize("way", ["image", "video", "image row"])
def test_no_redirect_leads_past_the_guards(listed: Asker, hosts, path: str, way: str) -> None:
    """Every hop is checked like the first address, and there are few of them (O-SEC-01)."""
    permitted, secret = hosts
    secret.pages["/secret.png"] = (200, {}, PICTURE)
    for name, target in FORBIDDEN.items():
        location = target.replace("{secret}", str(secret.port))
        permitted.pages[name] = (302, {"Location": location}, b"")
    permitted.asked.clear()
    said(WAYS[way](listed, permitted.url(path, host="localhost")))
    assert secret.asked == []
    assert 1 <= len(permitted.asked) <= 11


@pytest.mark.parametrize("location", ["a.png", "/a.png", "//localhost:{port}/a.png", "?again"])
def test_redirects_on_a_permitted_host_are_followed(
    listed: Asker, hosts, location: str
) -> None:
    """Also those that are relative (O-SEC-01)."""
    permitted, _ = hosts
    where = location.replace("{port}", str(permitted.port))
    permitted.pages["/r"] = (302, {"Location": where}, b"")
    permitted.pages["/r?again"] = permitted.pages["/a.png"] = (200, {}, PICTURE)
    url = permitted.url("/r", host="localhost")
    same(listed.chat(image_part(url), QUESTION), listed.chat(PICTURE, QUESTION))


# --- O-SEC-02: internal addresses ------------------------------------------------------------

INTERNAL = [
    "http://127.1:{port}/", "http://2130706433:{port}/", "http://0x7f.1:{port}/",
    "http://0177.0.0.1:{port}/", "http://[::1]:{port}/", "http://[::ffff:127.0.0.1]:{port}/",
    "http://0.0.0.0:{port}/", "http://localhost.:{port}/", "http://127.0.0.1:{port}/",
    "HTTP://LOCALHOST:{port}/", "http://10.0.0.1/", "http://100.64.0.1/", "ftp://x/",
    "http://169.254.169.254/", "gopher://x/", "http://u:p@127.0.0.1:{port}/",
]  # fmt: skip


@pytest.mark.parametrize("way", ["image", "video", "image row", "part"])
def test_internal_addresses_are_not_asked_by_default(strict: Asker, hosts, way: str) -> None:
    """However they are spelled, and wherever they stand in a request (O-SEC-02)."""
    permitted, _ = hosts
    permitted.pages["/"] = (200, {}, PICTURE)
    permitted.asked.clear()
    for address in INTERNAL:
        said(WAYS[way](strict, address.format(port=permitted.port)))
    strict.post("/prepare", {"image_data": [permitted.url("/")]})
    assert permitted.asked == []


def test_the_switch_permits_internal_addresses(ask: Asker, hosts) -> None:
    """An operator may allow them (O-SEC-02)."""
    permitted, _ = hosts
    permitted.pages["/"] = (200, {}, PICTURE)
    url = f"http://127.1:{permitted.port}/"
    same(ask.chat(image_part(url), QUESTION), ask.chat(PICTURE, QUESTION))


# --- O-SEC-03: the media folder --------------------------------------------------------------


@pytest.fixture(scope="module")
def around(media_folder: Path) -> Path:
    """The folder's parent; in the folder a picture and a link out, beside it what is secret."""
    other, sibling = media_folder.parent / "other", Path(f"{media_folder}ay")
    for path in (media_folder / "a.png", other / "secret.png", sibling / "x.png"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(PICTURE)
    (media_folder / "evil.png").symlink_to(other / "secret.png")
    (media_folder / "way").symlink_to(other)
    return media_folder.parent


def outside(folder: str) -> list[str]:
    """Addresses that are not served, of files that exist and of one that does not."""
    return [
        f"file://{folder}/../other/secret.png",
        f"file://{folder}/%2e%2e/other/secret.png",
        f"file://{folder}/%252e%252e/other/secret.png",
        f"file://{folder}ay/x.png",
        f"file://{folder}/evil.png",
        f"file://{folder}/way/secret.png",
        f"file://elsewhere{folder}/a.png",
        f"file://{folder}/missing.png",
        "file:///etc/passwd",
        "file://[x/a.png",
    ]


@pytest.mark.parametrize("way", WAYS)
def test_only_files_in_the_folder_are_served(
    ask: Asker, around: Path, media_folder: Path, way: str
) -> None:
    """Nothing else, and the error is the same whether the target exists (O-SEC-03)."""
    messages = {said(WAYS[way](ask, url)) for url in outside(str(media_folder))}
    assert len(messages) == 1
    assert not any(word in str(messages) for word in ("exist", "secret", str(around)))
    assert WAYS[way](ask, f"file://{media_folder}/a.png").status == 200


@pytest.mark.parametrize("way", WAYS)
def test_without_a_folder_no_file_is_served(
    strict: Asker, around: Path, media_folder: Path, way: str
) -> None:
    """Not even one that a folder would hold (O-SEC-03)."""
    urls = [f"file://{media_folder}/a.png", *outside(str(media_folder))]
    assert len({said(WAYS[way](strict, url)) for url in urls}) == 1


# --- O-SEC-04: paths -------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_paths_are_no_addresses(ask: Asker, around: Path, media_folder: Path, way: str) -> None:
    """Over HTTP no path is opened, not even one in the media folder (O-SEC-04)."""
    paths = [
        "/etc/passwd", "./x.png", "~/.ssh/id_rsa", "C:\\x.png", "\\\\host\\share\\x.png",
        str(media_folder / "a.png"), f"{media_folder}/../other/secret.png",
    ]  # fmt: skip
    for path in paths:
        said(WAYS[way](ask, path))


def test_local_programs_name_paths(backend: Any, around: Path) -> None:
    """A program's own user may open what he can, here and for a server (O-SEC-04)."""

    @sgl.function
    def program(s: Any, picture: Any) -> None:
        s += sgl.user(sgl.image(picture) + QUESTION)
        s += sgl.assistant(sgl.gen("a", max_tokens=8, temperature=0))

    path = str(around / "other" / "secret.png")
    answers = [program.run(picture, backend=backend)["a"] for picture in (path, PICTURE)]
    assert answers[0] == answers[1]


# --- O-SEC-05: bombs -------------------------------------------------------------------------


def bomb(side: int) -> bytes:
    """A square PNG of one-bit zeros: small to send, large to decode."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", rows), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def peak_mib(during: Callable[[], None]) -> float:
    """How far this process's memory rises above what it is now."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory_kib("VmRSS")
    during()
    return (_memory_kib("VmHWM") - before) / 1024


def _memory_kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.mark.parametrize("side", [40_000, 13_000])
@pytest.mark.parametrize("way", ["image", "video", "image row"])
def test_bombs_are_refused_from_their_header(
    engine: Engine, ask: Asker, side: int, way: str
) -> None:
    """With the limit, and nothing is decoded (O-SEC-05)."""
    decoded = engine.counters()["media_decodes_total"]
    message = said(WAYS[way](ask, data_uri(bomb(side))))
    assert f"{side} x {side}" in message
    assert "64000000" in message
    assert engine.counters()["media_decodes_total"] <= decoded + (way == "image row")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_bombs_side_by_side_take_no_memory(ask: Asker) -> None:
    """Eight at once raise the process's memory by less than 100 MB (O-SEC-05)."""
    uri = data_uri(bomb(13_000))
    ask.chat(image_part(uri), QUESTION)

    def send(_: int) -> None:
        said(ask.chat(image_part(uri), QUESTION))

    def together() -> None:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(send, range(8)))

    assert peak_mib(together) < 100
    assert ask.chat(PICTURE, QUESTION).status == 200


# --- O-SEC-07: what is said and logged -------------------------------------------------------


def secrets(ask: Asker, hosts) -> list[str]:
    """Addresses with a payload or a token that is nobody's business."""
    permitted, _ = hosts
    noise = np.random.default_rng(0).bytes(1_500_000)
    payload = data_uri(noise)
    permitted.pages["/r?token=abc123"] = (302, {"Location": "ftp://h/x?token=abc123"}, b"")
    permitted.pages["/page?token=abc123"] = (200, {"Content-Type": "text/html"}, b"<html>")
    return [
        payload,
        payload[:-9] + "*" + payload[-8:],
        payload[:-9] + "\u00e9" + payload[-8:],
        payload.replace("data:", "dat:"),
        payload.partition(",")[2],
        f"http://h.invalid/{'a' * 3000}?token=abc123",
        f"http://user:abc123@h.invalid/{'a' * 9000}?token=abc123",
        "http://[bad/?token=abc123",
        "nothing://h/x?token=abc123",
        "/x.png?token=abc123",
        permitted.url("/r?token=abc123"),
        permitted.url("/page?token=abc123"),
        permitted.url("/missing?token=abc123"),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_what_was_sent_is_not_repeated(ask: Asker, hosts, caplog, way: str) -> None:
    """No answer and no line of the log is long, or tells a payload or a token (O-SEC-07)."""
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, logger="mmserve")
    for url in secrets(ask, hosts):
        words = url.partition(",")[2] or url
        reply = WAYS[way](ask, url)
        said(reply)
        for text in (str(reply.body), caplog.text):
            assert max(map(len, [*text.splitlines(), ""])) < 2000
            assert "abc123" not in text
            assert len(words) <= 100 or words[:101] not in text
        caplog.clear()


def test_a_page_is_refused_as_a_page(ask: Asker, hosts) -> None:
    """An address of a web page gets a refusal that says what to send instead."""
    permitted, _ = hosts
    page = b"<!doctype html><title>A picture</title>"
    permitted.pages["/page"] = (200, {"Content-Type": "text/html"}, page)
    assert "web page" in refused(ask, image_part(permitted.url("/page")), QUESTION)
