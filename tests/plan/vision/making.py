"""Makes the pictures and clips of the tests, and looks at them through a media plane."""

import io
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import (
    BytesSource,
    ImagePart,
    MediaConfig,
    MediaLayout,
    MediaStyle,
    MmserveError,
    UrlSource,
    VideoPart,
)
from mmserve.vision import Bounds, FrameFacts, ItemPlan, MediaItem, MediaPlane, Recipe

Pixels = NDArray[np.uint8]

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


class RawProcessor:
    """A processor that hands pixels on as they are; may be held until `gate` opens."""

    fingerprint = b"raw processor 16"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)

    style = MediaStyle(image_token_id=3)

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:
        """Two patches, and a token a pixel, so that sizes show; bounds do not matter."""
        return ItemPlan(MediaLayout((width * height,)), 2)

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """Every frame is a picture."""
        return tuple(
            replace(self.picture(frame.width, frame.height, bounds), frames=(place,))
            for place, frame in enumerate(frames)
        )

    def inputs(self, frames: Sequence[Pixels], recipe: Recipe) -> dict[str, Pixels]:
        """A copy of the pixels, once the gate is open."""
        self.started.release()
        self.gate.wait(10)
        return {"pixels": frames[0].copy()}


class Answers:
    """Receives pixels and waits for them."""

    def __init__(self) -> None:
        self.inputs: dict[bytes, dict[str, Pixels]] = {}
        self.errors: dict[bytes, MmserveError] = {}
        self.calls: list[bytes] = []
        self._changed = threading.Condition()

    def __call__(self, digest, inputs, error, decode_ms, preprocess_ms) -> None:
        """Note one delivery."""
        with self._changed:
            self.calls.append(digest)
            if inputs is not None:
                self.inputs[digest] = inputs
            if error is not None:
                self.errors[digest] = error
            self._changed.notify_all()

    def wait(self, num_calls: int) -> "Answers":
        """Wait for so many deliveries."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= num_calls, 10)
        return self


def new_plane(processor=None, **settings) -> MediaPlane:
    """A plane with a fixed key; close it."""
    config = MediaConfig(**settings)
    return MediaPlane(
        config, processor or RawProcessor(), model_fingerprint=b"model", key=bytes(16)
    )


def pixels_of(plane: MediaPlane, items: Sequence[MediaItem]) -> list[Pixels]:
    """Pixels of `items`, in order; raises the first error."""
    answers = Answers()
    plane.request_pixels(items, answers)
    answers.wait(len({item.digest for item in items}))
    for error in answers.errors.values():
        raise error
    return [answers.inputs[item.digest]["pixels"] for item in items]


def shown(content: bytes | str, **settings) -> Pixels:
    """Pixels of a picture given as bytes or as an address, through a plane of its own."""
    source = BytesSource(content) if isinstance(content, bytes) else UrlSource(content)
    plane = new_plane(**settings)
    try:
        (item,) = plane.resolve(ImagePart(source), salt="", index=0).items
        (pixels,) = pixels_of(plane, [item])
    finally:
        plane.close()
    assert pixels.shape == (item.height, item.width, 3)
    return pixels


def frames_shown(
    content: bytes, **wishes
) -> tuple[list[Pixels], tuple[float, ...], str | None]:
    """Pixels, times and note of a clip, through a plane of its own."""
    plane = new_plane()
    try:
        resolved = plane.resolve(VideoPart(BytesSource(content), **wishes), salt="", index=0)
        assert resolved.clip is not None
        pixels = pixels_of(plane, resolved.items)
    finally:
        plane.close()
    assert len(pixels) == len(resolved.clip.timestamps_s)
    return pixels, resolved.clip.timestamps_s, resolved.clip.note


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    """Random RGB pixels."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def flat(height: int, width: int, colour: Sequence[int]) -> Pixels:
    """Pixels of one colour."""
    return np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)).copy()


def quadrants(height: int, width: int) -> Pixels:
    """Four differently coloured quarters."""
    pixels = flat(height, width, WHITE)
    pixels[: height // 2, : width // 2] = RED
    pixels[: height // 2, width // 2 :] = GREEN
    pixels[height // 2 :, : width // 2] = BLUE
    return pixels


def saved(picture: Pixels | Image.Image, format: str = "PNG", **options) -> bytes:  # noqa: A002 - Pillow's word
    """A picture file."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def with_orientation(value: int) -> Image.Exif:
    """EXIF that holds an orientation only."""
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """One chunk of a PNG file."""
    return (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    )


def hollow_png(width: int, height: int, depth: int, colour: int) -> bytes:
    """A valid PNG of zeros, made without holding its pixels."""
    channels = {0: 1, 2: 3}[colour]
    row = bytes(1 + (width * depth * channels + 7) // 8)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", body)
        + png_chunk(b"IEND", b"")
    )


def clip_of(
    frames: Sequence[Pixels],
    *,
    container: str = "mp4",
    codec: str = "libx264",
    layout: str = "yuv420p",
    rate: Fraction | int = 5,
    options: dict[str, str] | None = None,
) -> bytes:
    """A clip of `frames`, nearly lossless by default."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, options=options or _GOOD.get(codec, {}))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = layout
        for pixels in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode())
    return file.getvalue()


_GOOD = {
    "libx264": {"crf": "1", "preset": "ultrafast"},
    "libx265": {"x265-params": "log-level=none:crf=1", "preset": "ultrafast"},
    "libsvtav1": {"crf": "5", "preset": "10", "svtav1-params": "lp=1"},
}


def brightening(num: int, height: int = 48, width: int = 64, step: int = 25) -> list[Pixels]:
    """Frame i has brightness i * step."""
    return [flat(height, width, (min(255, step * i),) * 3) for i in range(num)]


def turned_mp4(mp4: bytes, entries: Sequence[int]) -> bytes:
    """The same MP4 with another display matrix: nine 32-bit integers."""
    at = mp4.index(b"tkhd") + 44
    return mp4[:at] + struct.pack(">9i", *entries) + mp4[at + 36 :]


def close_to(left: Pixels, right: Pixels) -> bool:
    """Whether two pictures differ by at most 6 of 255 on average."""
    return (
        left.shape == right.shape
        and float(np.abs(left.astype(int) - right.astype(int)).mean()) <= 6
    )


def zeroed(mp4: bytes) -> bytes:
    """The last quarter of the payload becomes zeros."""
    start = mp4.index(b"mdat") + 4
    length = int.from_bytes(mp4[start - 8 : start - 4], "big") - 8
    keep = start + length * 3 // 4
    return mp4[:keep] + bytes(start + length - keep) + mp4[start + length :]
