"""Header only: what a picture is and how large, judged by the limits before any decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from PIL import Image

from mmserve.core import MediaConfig
from mmserve.vision.exif import exif_orientation, swaps_sides
from mmserve.vision.header import (
    SUPPORTED_FORMATS,
    PictureHeader,
    sniff_picture,
    sniff_unsupported,
)
from mmserve.vision.pillow import guarded, has_heif, opened
from mmserve.vision.refusal import refused
from mmserve.vision.walks import WALKS

__all__ = ["check_size", "library_header", "most_pixels", "probe_picture"]

_PILLOW_LIMIT = 89_478_485
_SUBFILE_TYPE, _SAMPLE_FORMAT, _DNG_VERSION = 254, 339, 50706


def probe_picture(
    content: bytes,
    config: MediaConfig,
    library: Callable[[bytes, str], PictureHeader] | None = None,
) -> PictureHeader:
    """Header of a picture file, `width` and `height` as shown (orientation applied).

    `library` reads headers of the formats that are not walked here; `library_header` if it is
    not given.

    Raises:
        MediaRefused: `unsupported` format, `undecodable` (cut short, damaged), `too_large`
            (pixels, or side to side).

    Pure. Reads structure only; a picture of any size costs at most a checksum over its bytes.
    """
    name = sniff_picture(content)
    if name is None:
        raise _unsupported(content)
    if name == "HEIC" and not has_heif():
        hint = 'pip install "mmserve[heif]"'
        raise refused("unsupported", "is HEIC, which needs an extra", hint=hint, format=name)
    walk = WALKS.get(name)
    header = walk(content) if walk else (library or library_header)(content, name)
    if swaps_sides(header.orientation):
        header = PictureHeader(name, header.height, header.width, header.orientation)
    check_size(header.width, header.height, config)
    return header


def check_size(width: int, height: int, config: MediaConfig) -> None:
    """Raise MediaRefused if a picture of this many pixels is over a limit of `config`. Pure."""
    if width < 1 or height < 1:
        raise refused("undecodable", f"has no pixels: its header says {width} x {height}")
    limit = most_pixels(config)
    if width * height > limit:
        raise refused(
            "too_large",
            f"has {width} x {height} = {width * height} pixels, the limit is {limit}",
            hint="make it smaller before sending it",
            num_pixels=width * height,
            limit_pixels=limit,
        )
    ratio = Fraction(max(width, height), min(width, height))
    if ratio > config.max_aspect_ratio:
        raise refused(
            "too_large",
            f"is {width} x {height}: its long side is {float(ratio):.1f} times its short side, "
            f"the limit is {config.max_aspect_ratio:g} (max_aspect_ratio)",
            limit_ratio=config.max_aspect_ratio,
        )


def most_pixels(config: MediaConfig) -> int:
    """Most pixels a picture may have: `max_pixels`, and never more than Pillow's own limit."""
    return min(config.max_pixels, Image.MAX_IMAGE_PIXELS or _PILLOW_LIMIT)


def library_header(content: bytes, name: str) -> PictureHeader:
    """Header of a format that only a library reads; sides as they are stored.

    Pillow turns TIFF upright itself, and HEIC comes upright from its decoder; the orientation
    that AVIF states in its own way is EXIF's in what Pillow gives.

    Raises MediaRefused. Pure.
    """
    with guarded(name):
        picture = opened(content, name)
        width, height = picture.size
        if name == "TIFF":
            _check_tiff(picture.tag_v2, len(content))  # type: ignore[attr-defined]
        orientation = 1
        if name == "AVIF":
            exif = picture.info.get("exif", b"").removeprefix(b"Exif\0\0")
            orientation = exif_orientation(exif)
    return PictureHeader(name, width, height, orientation)


def _check_tiff(tags: Mapping[int, Any], num_bytes: int) -> None:
    """Raise for a first page that is a thumbnail, holds floats, or reaches past the file."""
    if int(tags.get(_SUBFILE_TYPE, 0)) & 1 or _DNG_VERSION in tags:
        message = "is a camera's raw file, or begins with a thumbnail"
        raise refused("unsupported", message, hint="send the developed picture")
    if 3 in _as_tuple(tags.get(_SAMPLE_FORMAT, 1)):
        message = "holds floating-point pixels, of which no range is known"
        raise refused("unsupported", message, hint="scale them to 8 or 16 bits")
    for offsets, lengths in ((273, 279), (324, 325)):  # strips, tiles
        pairs = zip(tags.get(offsets, ()), tags.get(lengths, ()), strict=False)
        if any(start + length > num_bytes for start, length in pairs):
            raise EOFError


def _as_tuple(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - as the file has it
    return value if isinstance(value, tuple) else (value,)


def _unsupported(content: bytes) -> Exception:
    known = sniff_unsupported(content)
    what = (
        f"is {known}, which is not supported" if known else "has no recognised picture format"
    )
    supported = ", ".join(SUPPORTED_FORMATS)
    message = f"{what}; supported are {supported}"
    return refused("unsupported", message, format=known)
