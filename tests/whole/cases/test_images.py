"""Odd pictures over HTTP: what a viewer shows is what the model sees, the rest is refused."""

from __future__ import annotations

import io
import struct
import zlib

import httpx
import numpy as np
import pytest
from PIL import Image, ImageOps
from support.oracle import (
    Asker,
    Reply,
    data_uri,
    differ,
    encoded,
    image_part,
    png,
    refused,
    same,
)

import mmserve as sgl

QUESTION = "What is it?"


def quadrants(width: int = 48, height: int = 32) -> Image.Image:
    """Four quarters of different colours."""
    picture = Image.new("RGB", (width, height), "red")
    halves = (width // 2, height // 2)
    picture.paste("green", (halves[0], 0, width, halves[1]))
    picture.paste("blue", (0, halves[1], halves[0], height))
    picture.paste("yellow", (halves[0], halves[1], width, height))
    return picture


def solid(colour: str, size: tuple[int, int] = (64, 64)) -> Image.Image:
    """One colour."""
    return Image.new("RGB", size, colour)


def noise(seed: int, *shape: int) -> np.ndarray:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def canary(ask: Asker) -> None:
    """A text request and a picture request still work."""
    assert ask.chat("hello").status == 200
    assert ask.chat(png(solid("red")), "hello").status == 200
    assert ask.get("/health").status_code == 200


@pytest.mark.parametrize("tag", [2, 3, 6, 8])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_orientation_is_applied_on_every_path(
    ask: Asker, media_host, media_folder, engine, server_url, tag: int, kind: str
) -> None:
    """A picture with an orientation tag is seen as viewers show it, however it came."""
    exif = Image.Exif()
    exif[0x0112] = tag
    options = {"quality": 95} if kind == "JPEG" else {}
    tagged = encoded(quadrants(), kind, exif=exif.tobytes(), **options)
    assert (b"eXIf" in tagged) == (kind == "PNG")
    plain = Image.open(io.BytesIO(tagged))
    upright = png(ImageOps.exif_transpose(plain).convert("RGB"))
    control = png(Image.fromarray(np.asarray(plain.convert("RGB"))))
    reference = ask.chat(upright, QUESTION)
    differ(reference, ask.chat(control, QUESTION))
    path = media_folder / f"{tag}.{kind}"
    path.write_bytes(tagged)
    file = httpx.post(
        f"{server_url}/v1/files", files={"file": ("a", tagged)}, data={"purpose": "vision"}
    )
    for url in (
        data_uri(tagged),
        media_host.put(f"/{tag}.{kind}", tagged),
        f"file://{path}",
        file.json()["id"],
    ):
        same(ask.chat(image_part(url), QUESTION), reference)

    @sgl.function
    def program(s, picture):
        s += sgl.user(sgl.image(picture) + QUESTION)
        s += sgl.assistant(sgl.gen("a", max_tokens=8, temperature=0))

    with sgl.RuntimeEndpoint(server_url) as endpoint:
        for backend in (engine, endpoint):
            for picture in (tagged, str(path), plain):
                answer = program.run(picture, backend=backend)["a"]
                assert answer == reference.text, (backend, type(picture))


def test_transparency_lies_over_white(ask: Asker) -> None:
    """Colours hidden under transparent pixels are never seen."""
    hidden = noise(1, 64, 64, 3)
    alpha = np.zeros((64, 64), np.uint8)
    alpha[16:48, 16:48] = 255
    alpha[50] = 128
    hidden[16:48, 16:48] = (255, 0, 0)
    rgba = Image.fromarray(np.dstack([hidden, alpha]))
    white = Image.new("RGBA", rgba.size, "white")
    reference = Image.alpha_composite(white, rgba).convert("RGB")
    answer = ask.chat(png(rgba), QUESTION)
    same(answer, ask.chat(png(reference), QUESTION))
    differ(answer, ask.chat(png(Image.fromarray(hidden)), QUESTION))


@pytest.mark.parametrize("size", [(1093, 5), (5, 1093), (1005, 5), (5, 1005)])
def test_extreme_aspect_ratio_is_refused(ask: Asker, size: tuple[int, int]) -> None:
    """Sides further apart than 200 to 1 are refused with the limit, streaming or not."""
    assert "200" in refused(ask, png(solid("red", size)), QUESTION)
    canary(ask)


@pytest.mark.parametrize("size", [(1000, 5), (5, 1000)])
def test_aspect_ratio_at_the_limit_is_served(ask: Asker, size: tuple[int, int]) -> None:
    """Exactly 200 to 1 is served in both directions, streaming or not."""
    for stream in (False, True):
        assert ask.chat(png(solid("red", size)), QUESTION, stream=stream).status == 200


@pytest.mark.parametrize("size", [(1, 1), (3, 1), (1, 3), (3, 3), (1, 200), (200, 1)])
def test_tiny_pictures_are_served(ask: Asker, size: tuple[int, int]) -> None:
    """Pictures a channel guesser would misread are served, and their colours differ."""
    red, blue = (ask.chat(png(solid(colour, size)), QUESTION) for colour in ("red", "blue"))
    differ(red, blue)
    normal = png(quadrants())
    among = [
        ask.chat(normal, png(solid(colour, size)), normal, QUESTION)
        for colour in ("red", "blue")
    ]
    assert among[0].prompt_tokens == ask.chat(normal, normal, normal, QUESTION).prompt_tokens
    differ(*among)


def broken_pictures() -> dict[str, bytes]:
    """Files whose header is fine, or nothing is."""
    jpeg = encoded(Image.fromarray(noise(2, 64, 64, 3)), "JPEG")
    whole = png(Image.fromarray(noise(3, 64, 64, 3)))
    at = whole.index(b"IDAT") + 20
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    return {
        "cut jpeg": jpeg[:-128],
        "half png": whole[: len(whole) // 2],
        "wrong crc": flipped,
        "empty": b"",
        "random": noise(4, 20).tobytes(),
    }


@pytest.mark.parametrize("name", ["cut jpeg", "half png", "wrong crc", "empty", "random"])
def test_broken_pictures_are_refused(ask: Asker, media_host, name: str) -> None:
    """A picture that cannot be wholly decoded is a clear 4xx, by data URI and over http."""
    content = broken_pictures()[name]
    refused(ask, content, QUESTION)
    refused(ask, image_part(media_host.put("/broken", content)), QUESTION)
    canary(ask)


def test_cmyk_is_converted(ask: Asker) -> None:
    """A CMYK JPEG is seen as Pillow converts it."""
    cmyk = encoded(quadrants(32, 32).convert("CMYK"), "JPEG", quality=95)
    rgb = Image.open(io.BytesIO(cmyk)).convert("RGB")
    answer = ask.chat(cmyk, QUESTION)
    same(answer, ask.chat(png(rgb), QUESTION))
    differ(answer, ask.chat(png(ImageOps.invert(rgb)), QUESTION))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_pictures_count_as_their_first_frame(ask: Asker, kind: str) -> None:
    """GIF, WebP and APNG are one picture each: the first frame."""
    options = {"lossless": True} if kind == "WEBP" else {}
    frames = [solid("red"), solid("blue")]
    animated = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    same(ask.chat(animated, QUESTION), ask.chat(png(frames[0]), QUESTION))


def test_pictures_smaller_than_a_patch_are_served(ask: Asker) -> None:
    """Sizes around one patch, of 14 x 14 pixels, have at least one picture token."""
    bare = ask.chat(QUESTION)
    for size in [(13, 126), (126, 13), (13, 13), (14, 14), (257, 27)]:
        answer = ask.chat(png(solid("red", size)), QUESTION)
        assert answer.status == 200
        assert answer.prompt_tokens > bare.prompt_tokens
    canary(ask)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9"/></svg>', "image/svg+xml"),
        (b'\xef\xbb\xbf <?xml version="1.0"?><svg width="9" height="9"/>', "image/png"),
        (b"%PDF-1.7\n%....", "application/pdf"),
        (b"just some text", "image/png"),
        (b"<!doctype html><html></html>", "image/jpeg"),
    ],
)
def test_documents_are_refused_with_what_is_supported(
    ask: Asker, media_host, content: bytes, media_type: str
) -> None:
    """SVG, PDF and text are never rendered; the message lists formats that work."""
    for url in (data_uri(content, media_type), media_host.put("/x", content, media_type)):
        message = refused(ask, image_part(url), QUESTION)
        assert "not supported" in message or "no recognised" in message
        assert "JPEG" in message
        assert "PNG" in message
    canary(ask)


def test_a_damaged_heic_is_refused_by_name(ask: Asker) -> None:
    """With the extra to install, where there is no decoder."""
    header = b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(40)
    assert "HEIC" in refused(ask, image_part(data_uri(header, "image/heic")), QUESTION)


def test_avif_is_served(ask: Asker) -> None:
    """AVIF, which Pillow decodes, is seen as Pillow decodes it."""
    avif = encoded(quadrants(), "AVIF", quality=100)
    decoded = Image.open(io.BytesIO(avif)).convert("RGB")
    same(ask.chat(avif, QUESTION), ask.chat(png(decoded), QUESTION))


def test_declared_types_do_not_matter(ask: Asker, media_host) -> None:
    """Content decides, whatever type a client or a host declares."""
    picture = png(quadrants())
    reference = ask.chat(picture, QUESTION)
    jpeg = encoded(quadrants(), "JPEG")
    webp = encoded(quadrants(), "WEBP", lossless=True)
    same(ask.chat(image_part(data_uri(picture, "image/jpeg")), QUESTION), reference)
    same(ask.chat(image_part(data_uri(picture, "")), QUESTION), reference)
    same(
        ask.chat(image_part(data_uri(jpeg, "image/png")), QUESTION),
        ask.chat(image_part(data_uri(jpeg, "image/jpeg")), QUESTION),
    )
    url = media_host.put("/x", picture, "application/octet-stream")
    same(ask.chat(image_part(url), QUESTION), reference)
    same(
        ask.chat(image_part(media_host.put("/x.gif", webp, "image/gif")), QUESTION),
        ask.chat(image_part(data_uri(webp, "image/webp")), QUESTION),
    )


def padded_pngs() -> list[bytes]:
    """PNGs whose base64 ends in one and in two padding signs, and has signs that vary."""
    found = {}
    for length in range(3):
        text = b"tEXtComment\0" + b"\xff" * (3 + length)
        body = text[4:]
        chunk = struct.pack(">I", len(body)) + text + struct.pack(">I", zlib.crc32(text))
        plain = png(quadrants())
        content = plain[:33] + chunk + plain[33:]
        found[len(content) % 3] = content
    return [found[2], found[1]]


def test_base64_may_lack_padding_but_not_be_wrong(ask: Asker) -> None:
    """Missing padding and the URL-safe alphabet are read; illegal characters are refused."""
    for content in padded_pngs():
        uri = data_uri(content)
        assert uri.endswith("=")
        reference = ask.chat(image_part(uri), QUESTION)
        same(ask.chat(image_part(uri.rstrip("=")), QUESTION), reference)
        head, _, body = uri.partition(",")
        assert {"+", "/"} & set(body)
        safe = f"{head},{body.replace('+', '-').replace('/', '_')}"
        same(ask.chat(image_part(safe), QUESTION), reference)
        middle = len(body) // 2
        illegal = f"{head},{body[:middle]}*{body[middle:]}"
        refused(ask, image_part(illegal), QUESTION)


def test_bare_base64_may_lack_padding_but_not_be_wrong(ask: Asker) -> None:
    """The same holds for content that is no address, in a native request."""

    def answer(words: str) -> Reply:
        sampling = {"max_new_tokens": 8, "temperature": 0}
        body = {"text": "<image>", "image_data": words, "sampling_params": sampling}
        return ask.post("/generate", body)

    for content in padded_pngs():
        words = data_uri(content).partition(",")[2]
        reference = answer(words)
        safe = words.replace("+", "-").replace("/", "_").rstrip("=")
        assert reference.status == 200
        for spelled in (words.rstrip("="), safe, f"data:;base64,{safe}"):
            assert answer(spelled).body["text"] == reference.body["text"]
        middle = len(words) // 2
        for wrong in (
            f"{words[:middle]}*{words[middle:]}",
            f"{words[:middle]}={words[middle:]}",
        ):
            assert answer(wrong).status == 400
