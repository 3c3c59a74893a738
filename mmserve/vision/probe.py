"""Header only: what a picture is and how large, judged by the limits before any decoding."""

from __future__ import annotations

from fractions import Fraction

from PIL import Image

from mmserve.core import MediaConfig
from mmserve.vision.exif import swaps_sides
from mmserve.vision.header import (
    SUPPORTED_FORMATS,
    PictureHeader,
    sniff_picture,
    sniff_unsupported,
)
from mmserve.vision.pillow import guarded, opened
from mmserve.vision.refusal import refused
from mmserve.vision.walks import WALKS

__all__ = ["check_size", "most_pixels", "probe_picture"]

_PILLOW_LIMIT = 89_478_485


def probe_picture(content: bytes, config: MediaConfig) -> PictureHeader:
    """Header of a picture file, `width` and `height` as shown (orientation applied).

    Raises:
        MediaRefused: `unsupported` format, `undecodable` (cut short, damaged), `too_large`
            (pixels, or side to side).

    Pure. Reads structure only; a picture of any size costs at most a checksum over its bytes.
    """
    name = sniff_picture(content)
    if name is None:
        raise _unsupported(content)
    walk = WALKS.get(name)
    header = walk(content) if walk else _through_pillow(content, name)
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


def _through_pillow(content: bytes, name: str) -> PictureHeader:
    """Headers of formats that Pillow turns upright itself (TIFF) or only a library reads."""
    with guarded(name):
        picture = opened(content, name)
        width, height = picture.size
        if name == "TIFF":
            _check_strips(picture.tag_v2, len(content))  # type: ignore[attr-defined]
            return PictureHeader(name, width, height)
        orientation = picture.getexif().get(0x0112, 1)
        orientation = orientation if orientation in range(1, 9) else 1
    return PictureHeader(name, width, height, orientation)


def _check_strips(tags: dict[int, tuple[int, ...]], num_bytes: int) -> None:
    """Raise if a strip (tags 273, 279) or tile (324, 325) reaches past the end of the file."""
    for offsets, lengths in ((273, 279), (324, 325)):
        pairs = zip(tags.get(offsets, ()), tags.get(lengths, ()), strict=False)
        if any(start + length > num_bytes for start, length in pairs):
            raise EOFError


def _unsupported(content: bytes) -> Exception:
    known = sniff_unsupported(content)
    what = (
        f"is {known}, which is not supported" if known else "has no recognised picture format"
    )
    supported = ", ".join(SUPPORTED_FORMATS)
    message = f"{what}; supported are {supported}"
    return refused("unsupported", message, format=known)
