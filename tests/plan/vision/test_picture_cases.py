"""Acceptance cases O-IMG-01 to 11: what pictures look like, and what is refused."""

import base64
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps
from plan.vision.making import (
    BLUE,
    RED,
    flat,
    hollow_png,
    noise,
    png_chunk,
    quadrants,
    saved,
    shown,
    with_orientation,
)

from mmserve.core import MediaConfig, MediaRefused
from mmserve.vision.probe import probe_picture


def data_url(content: bytes, media_type: str = "image/png") -> str:
    """A picture as a data address."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize("value", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_is_applied(name, value):
    """A picture tagged with an orientation is seen as a viewer shows it (O-IMG-01)."""
    options = {"quality": 95} if name in ("JPEG", "WEBP", "AVIF") else {}
    plain = Image.fromarray(shown(saved(quadrants(32, 48), name, **options)))
    tagged = saved(quadrants(32, 48), name, exif=with_orientation(value), **options)
    plain.getexif()[0x0112] = value
    expected = np.asarray(ImageOps.exif_transpose(plain))
    actual = shown(tagged)
    assert np.array_equal(expected, actual)
    assert not np.array_equal(np.asarray(plain), actual)


@pytest.mark.parametrize("block", [b"", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", b"junk" * 9])
def test_damaged_exif_means_upright(block):
    """A damaged EXIF block leaves the picture as it is."""
    plain = saved(noise(4, 6))
    at = plain.index(b"IDAT") - 4
    tagged = plain[:at] + png_chunk(b"eXIf", block) + plain[at:]
    assert np.array_equal(shown(plain), shown(tagged))


def test_transparency_is_over_white():
    """Hidden colours under transparent pixels are not seen (O-IMG-02)."""
    rgba = np.dstack([noise(64, 64), np.zeros((64, 64), np.uint8)])
    rgba[16:48, 16:48] = (*RED, 255)
    rgba[0] = (0, 0, 0, 128)
    expected = flat(64, 64, (255, 255, 255))
    expected[16:48, 16:48] = RED
    expected[0] = 127
    assert np.array_equal(expected, shown(saved(rgba)))


@pytest.mark.parametrize("mode", ["LA", "P", "PA", "RGBA"])
def test_every_kind_of_transparency_is_over_white(mode):
    """Grey, palette and true colour pictures with alpha all lie on white (O-IMG-02)."""
    picture = Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert("P" if mode == "PA" else mode)
    picture = picture.convert(mode)
    name = "TIFF" if mode == "PA" else "PNG"
    if mode == "PA":
        picture.putalpha(0)
    options = {"transparency": 0} if mode == "P" else {}
    assert np.array_equal(flat(4, 4, (255,) * 3), shown(saved(picture, name, **options)))


@pytest.mark.parametrize(
    ("width", "height", "is_served"),
    [(1093, 5, False), (5, 1093, False), (1000, 5, True), (5, 1000, True), (1005, 5, False)],
)
def test_aspect_ratio_has_one_limit(width, height, is_served):
    """Exactly 200 to 1 is served, more is refused, wide or tall (O-IMG-03)."""
    content = saved(flat(height, width, RED))
    if is_served:
        assert shown(content).shape == (height, width, 3)
    else:
        with pytest.raises(MediaRefused, match="max_aspect_ratio") as caught:
            shown(content)
        assert caught.value.fields["limit_ratio"] == 200


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (3, 1), (3, 3), (200, 1), (1, 200)])
def test_tiny_pictures_keep_their_colour(size):
    """Pictures of one pixel's height or width are served, channels in order (O-IMG-04, 08)."""
    assert np.array_equal(flat(*size, (10, 20, 30)), shown(saved(flat(*size, (10, 20, 30)))))


def damaged_files() -> dict[str, bytes]:
    """Files that are cut, altered or no pictures at all."""
    jpeg = saved(noise(64, 64), "JPEG")
    png = saved(noise(64, 64))
    wrong = bytearray(png)
    wrong[png.index(b"IDAT") + 40] ^= 1
    webp, gif, bmp = (saved(noise(64, 64), name) for name in ("WEBP", "GIF", "BMP"))
    tiff, avif = (saved(noise(64, 64), name) for name in ("TIFF", "AVIF"))
    files = {
        "JPEG less 128 bytes": jpeg[:-128],
        "JPEG less its end marker": jpeg[:-2],
        "PNG half": png[: len(png) // 2],
        "PNG with a wrong checksum": bytes(wrong),
        "PNG without pixels": png[:33] + png_chunk(b"IEND", b""),
        "nothing": b"",
        "random": np.random.default_rng(5).bytes(20),
        "signature only": png[:8],
    }
    whole = {"WebP": webp, "GIF": gif, "BMP": bmp, "TIFF": tiff, "AVIF": avif}
    return files | {f"{name} half": file[: len(file) // 2] for name, file in whole.items()}


@pytest.mark.parametrize("name", list(damaged_files()))
def test_damage_is_refused_before_decoding(name):
    """A cut or damaged file is refused when it is identified, not later (O-IMG-05)."""
    with pytest.raises(MediaRefused) as caught:
        probe_picture(damaged_files()[name], MediaConfig())
    assert caught.value.fields["reason"] in ("undecodable", "unsupported")


def test_damage_that_only_the_decoder_sees_is_refused():
    """A PNG whose checksums are right but whose pixels are missing is refused on decoding."""
    png = saved(noise(64, 64))
    start = png.index(b"IDAT") - 4
    (length,) = struct.unpack(">I", png[start : start + 4])
    body = png[start + 8 : start + 8 + length // 2]
    short = png[:start] + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")
    with pytest.raises(MediaRefused, match=r"^image 1 cannot be decoded") as caught:
        shown(short)
    assert caught.value.fields["reason"] == "undecodable"


@pytest.mark.parametrize("tail", [b"\0" * 40, b"trailing words", b"\xff\xd8\xff\xe0"])
def test_bytes_behind_the_end_do_not_matter(tail):
    """Garbage after the end of a JPEG or PNG is tolerated."""
    for name in ("JPEG", "PNG"):
        content = saved(noise(16, 16), name)
        assert np.array_equal(shown(content), shown(content + tail))


def test_cmyk_looks_as_pillow_converts_it():
    """A CMYK JPEG is neither inverted nor tinted (O-IMG-06)."""
    content = saved(Image.fromarray(quadrants(32, 32)).convert("CMYK"), "JPEG", quality=95)
    actual = shown(content)
    control = 255 - quadrants(32, 32)
    assert np.abs(actual.astype(int) - quadrants(32, 32)).mean() < 40
    assert np.abs(actual.astype(int) - control).mean() > 100


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "AVIF"])
def test_animation_is_its_first_picture(name):
    """An animated GIF, WebP, PNG or AVIF counts as one picture, its first (O-IMG-07)."""
    first, second = (Image.fromarray(flat(8, 8, colour)) for colour in (RED, BLUE))
    options = {"lossless": True} if name == "WEBP" else {}
    content = saved(first, name, save_all=True, append_images=[second], **options)
    assert np.abs(shown(content).astype(int) - flat(8, 8, RED)).max() <= 3


def test_animated_png_may_be_damaged_beyond_its_default_picture():
    """Wrong animation chunks of a PNG are never looked at, and no warning escapes."""
    plain = saved(flat(4, 4, RED))
    at = plain.index(b"IDAT") - 4
    odd = png_chunk(b"acTL", bytes(8)) + png_chunk(b"fcTL", b"\xff" * 26)
    assert np.array_equal(flat(4, 4, RED), shown(plain[:at] + odd + plain[at:]))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b'<svg xmlns="http://www.w3.org/2000/svg"><rect fill="red"/></svg>', "SVG"),
        (b'<?xml version="1.0"?><svg/>', "SVG"),
        (b"%PDF-1.7\n%\xe2\xe3", "PDF"),
        (b"just some words", "text"),
        (b"\0\0\1\0\1\0", "ICO"),
        (b"\0\0\0\x18ftypisom\0\0\0\0mp41isom" + bytes(64), "MP4 video"),
    ],
)
def test_unsupported_formats_are_named(content, name):
    """What is not a supported picture is refused by name, with the others named (O-IMG-09)."""
    with pytest.raises(
        MediaRefused, match=f"^image 1 is {name}.*supported are JPEG, PNG"
    ) as caught:
        shown(data_url(content))
    assert caught.value.fields["reason"] == "unsupported"


@pytest.mark.parametrize("label", ["image/jpeg", "image/gif", "application/pdf", ""])
def test_declared_type_is_ignored(label):
    """Pictures are known by their bytes, whatever they are said to be (O-IMG-10)."""
    for name in ("PNG", "JPEG"):
        content = saved(noise(8, 8), name)
        assert np.array_equal(shown(content), shown(data_url(content, label)))


@pytest.mark.parametrize("bits", [1, 8, 16])
def test_grey_of_any_depth_is_scaled(bits):
    """Grey of 1, 8 and 16 bits covers black to white."""
    ramp = np.linspace(0, 1, 256).reshape(16, 16)
    if bits == 1:
        picture, expected = Image.fromarray(ramp > 0.5), np.where(ramp > 0.5, 255, 0)
    elif bits == 8:
        picture = Image.fromarray((ramp * 255).round().astype(np.uint8))
        expected = (ramp * 255).round()
    else:
        picture = Image.fromarray((ramp * 65535).round().astype(np.uint16))
        expected = (ramp * 255).round()
    actual = shown(saved(picture))
    assert np.array_equal(np.dstack([expected] * 3).astype(np.uint8), actual)


def test_wide_grey_tiff_is_scaled():
    """A TIFF of 32-bit integers in the range of 16 bits is scaled too."""
    grey = np.array([[0, 257, 65535, 70000]], np.int32)
    expected = np.array([[0, 1, 255, 255]], np.uint8)
    assert np.array_equal(
        np.dstack([expected] * 3), shown(saved(Image.fromarray(grey), "TIFF"))
    )


@pytest.mark.parametrize(("side", "depth"), [(40000, 1), (13000, 1)])
def test_bombs_are_refused_by_their_header(side, depth):
    """A small file of very many pixels is refused at once, naming the limit (O-SEC-05)."""
    content = hollow_png(side, 1, depth, 0)
    header = struct.pack(">IIBBBBB", side, side, depth, 0, 0, 0, 0)
    content = content[:8] + png_chunk(b"IHDR", header) + content[33:]
    with pytest.raises(MediaRefused, match="limit is 64000000") as caught:
        shown(content)
    assert caught.value.fields["reason"] == "too_large"
    assert caught.value.fields["num_pixels"] == side * side


@pytest.mark.parametrize("name", ["JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_every_format_has_the_pixel_limit(name):
    """The limit on pixels holds for every format."""
    content = saved(noise(20, 20), name)
    assert shown(content, max_pixels=400).shape == (20, 20, 3)
    with pytest.raises(MediaRefused, match="20 x 20 = 400 pixels, the limit is 399"):
        shown(content, max_pixels=399)


def test_pixel_limit_never_exceeds_pillows_own():
    """A higher setting does not lift the limit above Pillow's."""
    content = hollow_png(10000, 10000, 1, 0)
    with pytest.raises(MediaRefused, match=f"the limit is {Image.MAX_IMAGE_PIXELS}"):
        shown(content, max_pixels=10**9)
