"""Media: from what a program names to a source, with the content taken at once."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image

from mmserve.core import BytesSource, FramesSource, MediaRefused, UrlSource
from mmserve.lang.media import image_source, media_type, video_source
from mmserve.lang.png import encode_png

PIXELS = (np.arange(4 * 5 * 3).reshape(4, 5, 3) * 4).astype(np.uint8)


def decoded(source):
    """The pixels of a PNG source."""
    return np.asarray(Image.open(io.BytesIO(source.content)))


@given(
    st.sampled_from([(), (3,), (4,)]).flatmap(
        lambda channels: array_shapes(min_dims=2, max_dims=2, max_side=9).flatmap(
            lambda shape: arrays(np.uint8, shape + channels)
        )
    )
)
@settings(max_examples=20, deadline=None)
def test_a_png_gives_back_its_pixels(pixels):
    """Grey, RGB and RGBA are stored without loss."""
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_png(pixels)))), pixels)


def test_the_same_pixels_give_the_same_bytes():
    """A picture named twice is one picture to every cache."""
    assert encode_png(PIXELS) == encode_png(PIXELS[:, :, :].copy(order="F"))


def test_bytes_paths_and_file_objects_are_the_file(tmp_path):
    """All three hold the file's bytes, whatever they are."""
    path = tmp_path / "p.png"
    path.write_bytes(b"file")
    with path.open("rb") as handle:
        sources = [image_source(given) for given in (path, str(path), b"file", handle)]

    assert sources == [BytesSource(b"file")] * 4


@pytest.mark.parametrize(
    "address", ["http://h/p.png", "https://h/p.png", "data:image/png;base64,AA==", "file-12ab"]
)
def test_addresses_stay_addresses(address):
    """The server fetches them, under its guards."""
    assert image_source(address) == UrlSource(address)


def test_a_float_array_in_the_unit_range_is_scaled():
    """0 to 1 becomes 0 to 255."""
    assert np.array_equal(decoded(image_source(PIXELS / 255.0)), PIXELS)


def test_a_pil_picture_keeps_its_pixels_and_orientation():
    """The picture is stored as PNG, the camera's orientation with it."""
    picture = Image.fromarray(PIXELS)
    picture.getexif()[274] = 6
    source = image_source(picture)

    assert np.array_equal(decoded(source), PIXELS)
    assert Image.open(io.BytesIO(source.content)).getexif()[274] == 6


def test_a_pil_picture_of_a_mode_png_lacks_is_converted():
    """CMYK becomes RGB."""
    assert decoded(image_source(Image.new("CMYK", (2, 2)))).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("/no/such/file.png", "fetch_failed"),
        ("", "fetch_failed"),
        ("nul\0", "fetch_failed"),
        (b"", "undecodable"),
        (io.StringIO("text"), "unsupported"),
        (3, "unsupported"),
        ([b"a"], "unsupported"),
        (np.zeros((2, 2), np.int64), "unsupported"),
        (np.full((2, 2), 1.5), "unsupported"),
        (np.full((2, 2), np.nan), "unsupported"),
        (np.zeros((0, 2), np.uint8), "unsupported"),
        (np.zeros((2, 2, 2), np.uint8), "unsupported"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_reason(given, reason):
    """A missing file, an empty one, and shapes or types that are no picture."""
    with pytest.raises(MediaRefused) as caught:
        image_source(given)

    assert caught.value.fields["reason"] == reason


def test_a_list_of_pictures_is_a_clip_at_its_own_rate():
    """`fps` is the list's rate, and no rate is left to sample by."""
    data = "data:image/png;base64," + base64.b64encode(b"two").decode()

    assert video_source([b"one", data], 2.0) == (
        FramesSource((BytesSource(b"one"), BytesSource(b"two")), 2.0),
        None,
    )


def test_an_array_of_frames_is_a_clip_of_one_frame_a_second():
    """[T, H, W, 3] is T pictures."""
    source, rate = video_source(np.stack([PIXELS, PIXELS]), None)

    assert isinstance(source, FramesSource)
    assert (len(source.frames), source.fps, rate) == (2, 1.0, None)
    assert np.array_equal(decoded(source.frames[1]), PIXELS)


def test_a_clip_by_path_keeps_the_sampling_rate(tmp_path):
    """For a file `fps` says how to sample."""
    path = tmp_path / "c.mp4"
    path.write_bytes(b"clip")

    assert video_source(path, 2.0) == (BytesSource(b"clip"), 2.0)


@pytest.mark.parametrize("given", [[], 3, np.zeros((2, 2), np.uint8), ["http://h/p.png"]])
def test_what_is_no_clip_is_refused(given):
    """No frames, no known kind, a wrong shape, or frames by address."""
    with pytest.raises(MediaRefused):
        video_source(given, None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF0000WEBP", "image/webp"),
        (b"0000ftypisom", "video/mp4"),
        (b"hello", "application/octet-stream"),
    ],
)
def test_the_type_is_read_from_the_bytes(content, expected):
    """Names and claims do not count."""
    assert media_type(content) == expected
