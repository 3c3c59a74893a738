"""Files that want much: refused from the header, or served in little memory."""

import struct
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from plan.vision.making import flat, hollow_png, noise, png_chunk, saved
from plan.vision.test_formats import heic

from mmserve.core import MediaConfig, MediaRefused
from mmserve.vision.children.isolated import InChildren
from mmserve.vision.children.pool import Children
from mmserve.vision.probe import probe_picture

MOST_KB = 250_000


@pytest.fixture(scope="module")
def module_children():
    """Children of this module's own."""
    own = Children()
    yield own
    own.close()


@pytest.fixture
def children(module_children):
    """A child whose peak of memory begins anew."""
    module_children.warm()
    for process_id in module_children.process_ids():
        Path(f"/proc/{process_id}/clear_refs").write_text("5")
    return module_children


def peak_kb(children) -> int:
    """Most memory that the child has held since the test began, in KiB."""
    (process_id,) = children.process_ids()
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def looked_at(children, content: bytes, **settings) -> np.ndarray:
    """Pixels of a picture by way of children."""
    config = MediaConfig(**settings)
    decoder = InChildren(config, children)
    return decoder.picture(content, probe_picture(content, config, decoder.header))


def with_size(content: bytes, at: int, kind: str, *sides: int) -> bytes:
    """The same file, saying other sides."""
    return content[:at] + struct.pack(kind, *sides) + content[at + struct.calcsize(kind) :]


def png_with(*chunks: bytes) -> bytes:
    """A small PNG with more chunks in front of its pixels."""
    plain = saved(flat(8, 8, (1, 2, 3)))
    at = plain.index(b"IDAT") - 4
    return plain[:at] + b"".join(chunks) + plain[at:]


def tiff(*fields: tuple[int, int, int, int], body: bytes = b"") -> bytes:
    """A little-endian TIFF of one directory."""
    entries = b"".join(struct.pack("<HHII", *field) for field in fields)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(fields)) + entries + bytes(4) + body


def tiff_of(width: int, height: int, *more: tuple[int, int, int, int]) -> bytes:
    """A TIFF of 8-bit grey that says these sides, with 64 bytes of zeros for pixels."""
    fields = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 279: 64}
    plain = [(tag, 4, 1, value) for tag, value in fields.items()]
    return tiff(
        *sorted({field[0]: field for field in [*plain, *more]}.values()), body=bytes(64)
    )


def lying_avif(width: int, height: int) -> bytes:
    """An AVIF file of 16 x 16 whose container says other sides."""
    content = saved(noise(16, 16), "AVIF")
    return with_size(content, content.index(b"ispe") + 8, ">II", width, height)


def lying_heic(width: int, height: int) -> bytes:
    """A HEIC file of 64 x 64 whose container says other sides."""
    content = heic(Image.fromarray(noise(64, 64)))
    return with_size(content, content.index(b"ispe") + 8, ">II", width, height)


def animated_webp(width: int, height: int) -> bytes:
    """An animated WebP of small frames on a canvas that is said to be larger."""
    second = Image.fromarray(noise(16, 16, 1))
    content = saved(
        Image.fromarray(noise(16, 16)), "WEBP", save_all=True, append_images=[second]
    )
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return content[:24] + sides + content[30:]


@cache
def huge_files() -> dict[str, bytes]:
    """Small files whose headers promise more pixels than the limit."""
    jpeg = saved(noise(16, 16), "JPEG")
    gif, bmp = saved(noise(16, 16), "GIF"), saved(noise(16, 16), "BMP")
    bmp = with_size(bmp, 18, "<ii", 2**30, 2**30)
    return {
        "JPEG": with_size(jpeg, jpeg.index(b"\xff\xc0") + 5, ">HH", 65_000, 65_000),
        "GIF canvas": with_size(gif, 6, "<HH", 65_535, 65_535),
        "GIF frame": with_size(
            gif, gif.index(b",\0\0\0\0\x10\0\x10\0") + 5, "<HH", 65_535, 65_535
        ),
        "BMP": bmp[:30] + struct.pack("<I", 1) + bmp[34:],
        "WebP": animated_webp(16_384, 16_384),
        "Netpbm": b"P5 1000000 1000000 255\n",
        "TIFF": tiff_of(2**31, 2**31),
        "AVIF": lying_avif(60_000, 60_000),
        "HEIC": lying_heic(60_000, 60_000),
        "PNG": hollow_png(40_000, 1, 1, 0)[:16]
        + struct.pack(">II", 40_000, 40_000)
        + hollow_png(40_000, 1, 1, 0)[24:],
    }


@pytest.mark.parametrize("name", list(huge_files()))
def test_huge_promises_are_refused_from_the_header(children, name):
    """A file that says it has more pixels than the limit is refused before any is decoded."""
    with pytest.raises(MediaRefused) as caught:
        looked_at(children, huge_files()[name])
    assert caught.value.fields["reason"] in ("too_large", "undecodable")
    assert peak_kb(children) < MOST_KB


@cache
def bombs() -> dict[str, bytes]:
    """PNG files whose chunks inflate to 300 MB, or are very many."""
    packer = zlib.compressobj(1)
    zeros = b"".join(packer.compress(bytes(10_000_000)) for _ in range(30)) + packer.flush()
    plain = saved(flat(8, 8, (0, 0, 0)))
    start, end = plain.index(b"IDAT") - 4, plain.index(b"IEND") - 4
    return {
        "text": png_with(png_chunk(b"zTXt", b"key\0\0" + zeros)),
        "international text": png_with(png_chunk(b"iTXt", b"key\0\1\0\0\0" + zeros)),
        "profile": png_with(png_chunk(b"iCCP", b"name\0\0" + zeros)),
        "many texts": png_with(*[png_chunk(b"tEXt", b"k\0" + bytes(100))] * 10_000),
        "pixels": plain[:start] + png_chunk(b"IDAT", zeros) + plain[end:],
    }


@pytest.mark.parametrize("name", list(bombs()))
def test_png_bombs_are_served_in_little_memory(children, name):
    """Text, profiles and pixels that nobody asked for are not inflated."""
    assert looked_at(children, bombs()[name]).shape == (8, 8, 3)
    assert peak_kb(children) < MOST_KB


@pytest.mark.parametrize(
    "content",
    [
        tiff(*((tag, 3, 1, 1) for tag in range(300, 60_300))),
        tiff(*((tag % 500 + 256, 12, 2**28, 8) for tag in range(1000))),
        tiff_of(7000, 7000, (278, 4, 1, 7000)),
        tiff_of(7000, 7000, (279, 4, 1, 2**32 - 1)),
        tiff_of(7000, 7000, (273, 4, 2**30, 8), (279, 4, 2**30, 8)),
        tiff_of(8, 8, (330, 4, 1, 8)),
        tiff_of(8000, 8000, (322, 4, 1, 2**31), (323, 4, 1, 2**31), (259, 4, 1, 8)),
    ],
    ids=["tags", "arrays", "strip", "length", "strips", "loop", "tile"],
)
def test_lying_tiffs_end_in_little_memory(children, content):
    """Many tags, huge arrays, strips, tiles and directories that loop end without harm."""
    try:
        shape = looked_at(children, content).shape
    except MediaRefused as refusal:
        assert refusal.fields["reason"] == "undecodable"
    else:
        assert shape == (8, 8, 3)
    assert peak_kb(children) < MOST_KB


@pytest.mark.parametrize(
    "content",
    [lying_avif(8, 8), lying_avif(4000, 4000), animated_webp(8, 8), animated_webp(4000, 4000)],
)
def test_containers_that_lie_are_refused(children, content):
    """A container whose sides are not its picture's is refused, in bounded memory."""
    try:
        looked_at(children, content)
    except MediaRefused as refusal:
        assert refusal.fields["reason"] == "undecodable"
    assert peak_kb(children) < 400_000


def test_a_jpeg_of_two_sizes_is_refused(children):
    """A JPEG whose second frame header says other sides is never decoded at those."""
    jpeg = saved(noise(16, 16), "JPEG")
    at = jpeg.index(b"\xff\xc0")
    header = jpeg[at : at + 19]
    other = header[:5] + struct.pack(">HH", 4000, 4000) + header[9:]
    for content in (jpeg[:at] + other + jpeg[at:], jpeg[: at + 19] + other + jpeg[at + 19 :]):
        with pytest.raises(MediaRefused, match="cannot be decoded"):
            looked_at(children, content)


def test_bytes_are_limited_before_anything_is_read():
    """A header that only a library reads does not lift the limit on memory."""
    config = MediaConfig(decode_memory_bytes=1 << 20)
    own = Children()
    decoder = InChildren(config, own)
    content = saved(flat(2000, 2000, (1, 2, 3)), "AVIF", speed=10)
    with pytest.raises(MediaRefused):
        decoder.picture(content, probe_picture(content, config, decoder.header))
    own.close()
