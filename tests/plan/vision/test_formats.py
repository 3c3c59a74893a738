"""Every served format, in every kind of pixels it can hold, against exact expected pixels."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps
from plan.vision.making import (
    RED,
    flat,
    noise,
    png_chunk,
    quadrants,
    saved,
    shown,
    with_orientation,
)

from mmserve.core import MediaConfig, MediaRefused
from mmserve.vision import probe as probe_module
from mmserve.vision.header import SUPPORTED_FORMATS, is_still, sniff_picture, sniff_unsupported
from mmserve.vision.probe import probe_picture

WHITE_4 = flat(4, 4, (255, 255, 255))


def grey(samples) -> np.ndarray:
    """RGB of grey samples."""
    return np.dstack([np.asarray(samples, np.uint8)] * 3)


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: bytes) -> bytes:
    """A PNG from its filtered rows."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = png_chunk(b"IDAT", zlib.compress(rows))
    first = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)
    return first + b"".join(chunks) + body + png_chunk(b"IEND", b"")


def heic(picture: Image.Image, orientation: int = 1) -> bytes:
    """A HEIC file as good as lossless; the orientation becomes one of its own kind."""
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    container = pillow_heif.from_pillow(picture)
    container.info["exif"] = with_orientation(orientation).tobytes()
    container.save(file, quality=-1, chroma=444)
    return file.getvalue()


LOSSLESS = {
    "PNG": {},
    "GIF": {},
    "BMP": {},
    "PPM": {},
    "TIFF": {},
    "WEBP": {"lossless": True},
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_give_their_pixels(name):
    """Colours of a lossless file arrive exactly."""
    expected = quadrants(6, 9)
    assert np.array_equal(expected, shown(saved(expected, name, **LOSSLESS[name])))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("JPEG", {"quality": 90}),
        ("JPEG", {"quality": 90, "progressive": True}),
        ("JPEG", {"quality": 90, "subsampling": 0, "restart_marker_rows": 1}),
        ("AVIF", {"quality": 80}),
        ("WEBP", {"quality": 80}),
        ("TIFF", {"compression": "jpeg"}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_deflate"}),
        ("TIFF", {"compression": "packbits"}),
        ("TIFF", {"big_tiff": True}),
        ("PNG", {"compress_level": 0}),
    ],
)
def test_ways_to_compress_give_what_pillow_gives(name, options):
    """Each way to write a format is read as Pillow reads it."""
    content = saved(noise(33, 17), name, **options)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), shown(content))


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("1", ["PNG", "TIFF", "BMP", "PPM", "GIF"]),
        ("L", ["JPEG", "PNG", "TIFF", "BMP", "PPM", "GIF", "WEBP"]),
        ("P", ["PNG", "TIFF", "BMP", "GIF"]),
        ("CMYK", ["JPEG", "TIFF"]),
        ("YCbCr", ["JPEG", "TIFF"]),
    ],
)
def test_kinds_of_pixels_are_converted_as_pillow_does(mode, names):
    """Bilevel, grey, palette, CMYK and YCbCr pictures become RGB by Pillow's own conversion."""
    for name in names:
        content = saved(Image.fromarray(quadrants(16, 16)).convert(mode), name)
        expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert np.array_equal(expected, shown(content)), name


def test_cmyk_of_adobe_is_turned_back():
    """A CMYK JPEG, whose samples Adobe's programs invert, shows its colours (O-IMG-06)."""
    picture = Image.fromarray(quadrants(16, 16)).convert("CMYK")
    content = saved(picture, "JPEG", quality=100, subsampling=0)
    assert b"Adobe" in content
    assert np.abs(shown(content).astype(int) - quadrants(16, 16)).max() <= 2


@pytest.mark.parametrize(
    ("colour", "samples"), [(0, 1), (2, 3), (4, 2), (6, 4)], ids=["grey", "rgb", "la", "rgba"]
)
def test_16_bit_png(colour, samples):
    """16-bit PNG: grey is rounded to 8 bits, colours keep their high byte, as Pillow reads."""
    rng = np.random.default_rng(7)
    values = rng.integers(0, 65536, (4, 4, samples), np.uint16)
    if samples in (2, 4):
        values[..., -1] = 65535
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    actual = shown(png(4, 4, 16, colour, rows))
    wide = values[..., :1] if samples < 3 else values[..., :3]
    high = (wide >> 8).astype(np.uint8)
    if samples == 1:
        high = ((wide.astype(int) * 255 + 32767) // 65535).astype(np.uint8)
    assert np.array_equal(np.broadcast_to(high, (4, 4, 3)), actual)


def test_16_bit_colour_tiff_keeps_its_high_bytes():
    """A TIFF of 16-bit RGB shows the high byte of each sample."""
    values = np.arange(4 * 4 * 3, dtype=np.uint16).reshape(4, 4, 3) * 1000
    fields = [
        (256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 3, 134), (259, 3, 1, 1), (262, 3, 1, 2),
        (273, 4, 1, 140), (277, 3, 1, 3), (278, 3, 1, 4), (279, 4, 1, 96),
    ]  # fmt: skip
    directory = struct.pack("<H", len(fields))
    for tag, kind, count, value in fields:
        directory += struct.pack("<HHII", tag, kind, count, value)
    head = b"II*\0\x08\0\0\0" + directory + bytes(4)
    content = head.ljust(134, b"\0") + struct.pack("<3H", 16, 16, 16) + values.tobytes()
    assert np.array_equal((values >> 8).astype(np.uint8), shown(content))


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_transparent_grey_is_white_at_any_depth(depth):
    """The one grey that a PNG calls transparent lies on white, others do not (O-IMG-02)."""
    most = (1 << depth) - 1
    values = [0, most, 0, most] if depth == 1 else [0, 1, 2, most]
    bits = "".join(format(value, f"0{depth}b") for value in values).ljust(8, "0")
    row = int(bits, 2).to_bytes(len(bits) // 8, "big")
    key = values[0]
    content = png(4, 1, depth, 0, b"\0" + row, png_chunk(b"tRNS", struct.pack(">H", key)))
    levels = [(value * 255 + most // 2) // most for value in values]
    expected = [255 if v == key else lv for v, lv in zip(values, levels, strict=True)]
    assert np.array_equal(grey([expected]), shown(content))


@pytest.mark.parametrize("depth", [8, 16])
def test_a_transparent_colour_is_white_at_any_depth(depth):
    """The one colour that a PNG calls transparent lies on white, of 8 and of 16 bits."""
    step = 257 if depth == 16 else 1
    kind = ">3H" if depth == 16 else ">3B"
    colours = [(9, 8, 7), (200, 100, 50)]
    row = b"".join(struct.pack(kind, *(v * step for v in colour)) for colour in colours)
    key = png_chunk(b"tRNS", struct.pack(">3H", *(v * step for v in colours[0])))
    expected = np.array([[(255,) * 3, colours[1]]], np.uint8)
    assert np.array_equal(expected, shown(png(2, 1, depth, 2, b"\0" + row, key)))


@pytest.mark.parametrize("alphas", [b"\0\x80\xff", b"\xff\0"])
def test_palettes_with_alphas_are_over_white(alphas):
    """Each entry of a palette has its own alpha, missing ones are opaque (O-IMG-02)."""
    palette = bytes([*RED, 0, 200, 0, 0, 0, 200])
    content = png(
        3, 1, 8, 3, b"\0\0\1\2", png_chunk(b"PLTE", palette), png_chunk(b"tRNS", alphas)
    )
    picture = Image.open(io.BytesIO(content)).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    expected = np.asarray(white.convert("RGB")).astype(int)
    assert np.abs(expected - shown(content)).max() <= 1


def test_grey_with_alpha_is_over_white():
    """Half-transparent black is middle grey."""
    picture = Image.merge("LA", [Image.new("L", (4, 4), 0), Image.new("L", (4, 4), 128)])
    assert np.array_equal(flat(4, 4, (127,) * 3), shown(saved(picture)))


@pytest.mark.parametrize("name", ["PNG", "WEBP", "GIF", "TIFF", "AVIF"])
def test_only_the_first_of_several_pictures_is_shown(name):
    """Animated and paged files are one picture: the first (O-IMG-07)."""
    first, second = (
        Image.fromarray(flat(16, 16, RED)),
        Image.fromarray(flat(16, 16, (0, 0, 255))),
    )
    options = {"lossless": True} if name == "WEBP" else {}
    content = saved(first, name, save_all=True, append_images=[second], **options)
    assert np.abs(shown(content).astype(int) - flat(16, 16, RED)).max() <= 3


def test_colour_profiles_and_gamma_are_ignored():
    """A profile, a gamma and text beside the pixels change nothing, damaged or not."""
    plain = saved(noise(4, 4))
    at = plain.index(b"IDAT") - 4
    odd = (
        png_chunk(b"gAMA", struct.pack(">I", 10_000))
        + png_chunk(b"iCCP", b"x\0\0" + b"junk")
        + png_chunk(b"zTXt", b"key\0\0" + b"junk")
    )
    assert np.array_equal(shown(plain), shown(plain[:at] + odd + plain[at:]))


@pytest.mark.parametrize("turn", ["rgb", "keyed", "grey"])
@pytest.mark.parametrize("value", [1, 2, 3, 4, 5, 6, 7, 8])
def test_pictures_of_several_bands_are_turned_whole(turn, value):
    """A picture larger than one band of rows is turned as Pillow turns the whole (O-IMG-01)."""
    picture = Image.fromarray(noise(701, 503))
    picture = {"rgb": picture, "keyed": picture.convert("RGBA"), "grey": picture.convert("L")}[
        turn
    ]
    content = saved(picture, compress_level=1, exif=with_orientation(value))
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    assert np.array_equal(np.asarray(expected), shown(content))


NETPBM = [
    (b"P5 4 1 255\n\0\x40\x80\xff", [[0, 64, 128, 255]]),
    (b"P5\n# a comment\n2 2\n# another\n255\n\1\2\3\4", [[1, 2], [3, 4]]),
    (b"P5 2 1 65535\n\x01\x01\xff\xff", [[1, 255]]),
    (b"P4\n9 1\n\xaa\x80", [[0, 255] * 4 + [0]]),
]


@pytest.mark.parametrize(("content", "expected"), NETPBM)
def test_binary_netpbm_is_served(content, expected):
    """PBM and PGM of 8 and 16 bits, with comments, give their grey."""
    assert np.array_equal(grey(expected), shown(content))


@pytest.mark.parametrize(
    "content",
    [
        b"P5 4 1 255\n\0\x40",
        b"P6 4",
        b"P5 " + b"#" * 100_000,
        b"P5 99999999999 1 255\n",
        b"P5 0 1 255\n",
        b"P4 8 2\n\xff",
    ],
)
def test_damaged_netpbm_is_refused(content):
    """Netpbm without its rows or its sides is refused from the header."""
    with pytest.raises(MediaRefused) as caught:
        probe_picture(content, MediaConfig())
    assert caught.value.fields["reason"] in ("undecodable", "unsupported")


@pytest.mark.parametrize("value", [1, 2, 3, 4, 5, 6, 7, 8])
def test_heic_is_upright_once(value):
    """HEIC turned by its own properties is turned once, whatever EXIF repeats (O-IMG-01)."""
    picture = Image.fromarray(quadrants(32, 48))
    content = heic(picture, value)
    picture.getexif()[0x0112] = value
    expected = np.asarray(ImageOps.exif_transpose(picture)).astype(int)
    actual = shown(content)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 3


def test_transparent_heic_is_over_white():
    """Alpha of a HEIC file is laid over white."""
    rgba = np.dstack([noise(16, 16), np.zeros((16, 16), np.uint8)])
    assert np.array_equal(flat(16, 16, (255,) * 3), shown(heic(Image.fromarray(rgba))))


def test_heic_without_its_extra_says_what_to_install(monkeypatch):
    """HEIC is refused with the command that makes it work, if the extra is missing."""
    monkeypatch.setattr(probe_module, "has_heif", lambda: False)
    with pytest.raises(MediaRefused, match="is HEIC") as caught:
        probe_picture(HEIC_START, MediaConfig())
    assert caught.value.fields["reason"] == "unsupported"
    assert 'pip install "mmserve[heif]"' in caught.value.hint


HEIC_START = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"\0\0\1\0\1\0", "ICO"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\xff\x4f\xff\x51", "JPEG 2000"),
        (b"P3 1 1 255\n1 2 3\n", "Netpbm as text"),
        (b"8BPS", "PSD"),
        (b"%!PS-Adobe", "PostScript"),
        (b"\xff\x0a", "JPEG XL"),
        (b"icns", "ICNS"),
        (b"DDS ", "DDS"),
        (b"qoif", "QOI"),
        (b"v/1\1", "OpenEXR"),
        (b"#?RADIANCE", "Radiance HDR"),
        (b"P5 is not a picture but a sentence", "text"),
    ],
)
def test_formats_not_served_are_told_by_name(start, name):
    """Formats left out on purpose are recognised, and never opened (O-IMG-09)."""
    assert (sniff_picture(start), sniff_unsupported(start)) == (None, name)


def test_floating_point_is_refused():
    """A TIFF of floating-point samples has no known range, so it is refused with a hint."""
    content = saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF")
    with pytest.raises(MediaRefused, match="floating-point") as caught:
        shown(content)
    assert caught.value.fields["reason"] == "unsupported"


def test_camera_raw_is_refused():
    """A TIFF that begins with a thumbnail, as raw files do, is not taken for its thumbnail."""
    content = saved(noise(4, 4), "TIFF", tiffinfo={254: 1})
    with pytest.raises(MediaRefused, match="raw file"):
        shown(content)


def test_supported_formats_are_what_is_sniffed():
    """Each format named in refusals is recognised by its content, and is a still."""
    names = {"Netpbm": "PPM"}
    for name in SUPPORTED_FORMATS:
        content = HEIC_START if name == "HEIC" else saved(noise(4, 4), names.get(name, name))
        assert sniff_picture(content) == name
        assert is_still(content) == (name != "GIF")
