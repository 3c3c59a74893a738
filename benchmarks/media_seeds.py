"""Sound pictures and clips of every format and codec, small; made from one seed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

__all__ = ["Seed", "clip_seeds", "picture_seeds"]

_SEED = 20_000
_NUM_FRAMES = 8

_PICTURES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("jpeg", "JPEG", "RGB", {"quality": 80}),
    ("jpeg progressive", "JPEG", "RGB", {"quality": 80, "progressive": True}),
    ("jpeg grey", "JPEG", "L", {"quality": 80}),
    ("jpeg cmyk", "JPEG", "CMYK", {"quality": 80}),
    ("jpeg turned", "JPEG", "RGB", {"quality": 80, "orientation": 6}),
    ("png", "PNG", "RGB", {}),
    ("png alpha", "PNG", "RGBA", {}),
    ("png palette", "PNG", "P", {"transparency": 0}),
    ("png bits", "PNG", "1", {}),
    ("png wide grey", "PNG", "I;16", {}),
    ("png turned", "PNG", "RGB", {"orientation": 8}),
    ("png animated", "PNG", "RGB", {"save_all": True}),
    ("gif", "GIF", "P", {}),
    ("gif animated", "GIF", "RGB", {"save_all": True}),
    ("webp", "WEBP", "RGB", {"quality": 80}),
    ("webp lossless", "WEBP", "RGBA", {"lossless": True}),
    ("webp animated", "WEBP", "RGB", {"save_all": True}),
    ("bmp", "BMP", "RGB", {}),
    ("bmp palette", "BMP", "P", {}),
    ("pgm", "PPM", "L", {}),
    ("ppm", "PPM", "RGB", {}),
    ("tiff", "TIFF", "RGB", {}),
    ("tiff lzw", "TIFF", "RGB", {"compression": "tiff_lzw"}),
    ("tiff deflate", "TIFF", "CMYK", {"compression": "tiff_deflate"}),
    ("tiff jpeg", "TIFF", "RGB", {"compression": "jpeg"}),
    ("tiff fax", "TIFF", "1", {"compression": "group4"}),
    ("tiff big", "TIFF", "L", {"big_tiff": True}),
    ("avif", "AVIF", "RGB", {"quality": 60, "speed": 10}),
    ("avif alpha", "AVIF", "RGBA", {"quality": 60, "speed": 10}),
    ("avif turned", "AVIF", "RGB", {"quality": 60, "speed": 10, "orientation": 6}),
)
_CLIPS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("mp4", "libx264", "yuv420p", {"preset": "ultrafast"}),
    ("matroska", "libx264", "yuv420p", {"preset": "veryfast", "bf": "2"}),
    ("mpegts", "libx264", "yuv420p", {"preset": "ultrafast"}),
    ("mp4", "libx265", "yuv420p", {"preset": "ultrafast", "x265-params": "log-level=none"}),
    (
        "matroska",
        "libx265",
        "yuv420p10le",
        {"preset": "ultrafast", "x265-params": "log-level=none"},
    ),
    ("webm", "libvpx", "yuv420p", {"deadline": "realtime"}),
    ("webm", "libvpx-vp9", "yuv420p", {"deadline": "realtime", "cpu-used": "8"}),
    ("mp4", "libsvtav1", "yuv420p", {"preset": "12", "svtav1-params": "lp=1"}),
    ("avi", "mpeg4", "yuv420p", {}),
    ("mov", "mjpeg", "yuvj420p", {}),
    ("matroska", "ffv1", "yuv444p", {}),
    ("mpeg", "mpeg2video", "yuv420p", {}),
    ("flv", "flv", "yuv420p", {}),
    ("gif", "gif", "rgb8", {}),
)


@dataclass(frozen=True, slots=True)
class Seed:
    """A sound file: its format or codec, and its bytes."""

    name: str
    content: bytes


def picture_seeds() -> list[Seed]:
    """A file of each format and kind of pixels. Pure."""
    seeds = [Seed(name, _saved(*rest)) for name, *rest in _PICTURES]
    if find_spec("pillow_heif") is not None:
        seeds.append(Seed("heic", _heic()))
    return seeds


def clip_seeds() -> list[Seed]:
    """A clip of each codec that this build of FFmpeg writes. Pure."""
    return [
        Seed(f"{codec} in {container}", _clip(container, codec, layout, options))
        for container, codec, layout, options in _CLIPS
        if codec in av.codecs_available
    ]


def _pixels(height: int, width: int, shift: int = 0) -> NDArray[np.uint8]:
    """Smooth colours with a little noise, so that files have something of everything."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin((rows + shift) / 9 + k) * np.cos(columns / (7 + k)) for k in range(3)]
    noise = np.random.default_rng(_SEED + shift).integers(-20, 20, (height, width, 3))
    return np.clip(np.dstack(waves) * 100 + 128 + noise, 0, 255).astype(np.uint8)


def _picture(mode: str, shift: int = 0) -> Image.Image:
    picture = Image.fromarray(_pixels(48, 64, shift))
    if mode == "I;16":
        return Image.fromarray(_pixels(48, 64)[..., 0].astype(np.uint16) * 257)
    if mode == "RGBA":
        picture.putalpha(Image.fromarray(_pixels(48, 64, 5)[..., 0]))
        return picture
    return picture.convert(mode)


def _saved(name: str, mode: str, options: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    words = dict(options)
    orientation = words.pop("orientation", None)
    if orientation is not None:
        words["exif"] = Image.Exif()
        words["exif"][0x0112] = orientation
    if "save_all" in words:
        words["append_images"] = [_picture(mode, 1), _picture(mode, 2)]
    _picture(mode).save(file, name, **words)
    return file.getvalue()


def _heic() -> bytes:
    import pillow_heif  # noqa: PLC0415  an extra

    file = io.BytesIO()
    pillow_heif.from_pillow(_picture("RGB")).save(file, quality=60)
    return file.getvalue()


def _clip(container: str, codec: str, layout: str, options: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, layout
        for packet in _packets(stream):
            out.mux(packet)
    return file.getvalue()


def _packets(stream: Any) -> Iterator[Any]:  # noqa: ANN401 - PyAV's, without types
    for number in range(_NUM_FRAMES):
        frame = av.VideoFrame.from_ndarray(_pixels(48, 64, number), format="rgb24")
        yield from stream.encode(frame)
    yield from stream.encode()
